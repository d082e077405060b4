"""routes.yaml as typed values."""
