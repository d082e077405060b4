"""The client side of the gateway: connections to workers and the runner's event feed."""
