"""Launches and watches vLLM workers. It knows nothing of the gateway, which meets it over HTTP (`api.py`)."""
