"""Where keys, reservations and the ledger live: the `Store` protocol in `base`, one module for each implementation."""
