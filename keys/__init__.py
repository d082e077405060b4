"""Keys: who may call, how much is left, and one ledger row for each finished request.

Pure: `model`, `secret`, `quota`, `errors`. I/O: `stores` (behind the `stores.base.Store` protocol), `pepper`, `state`.
Use cases: `admin`. Command line: `cli`. Nothing here imports the gateway or the runner.
"""
