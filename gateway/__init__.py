"""The API gateway: admit, choose, relay, settle."""
