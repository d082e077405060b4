from __future__ import annotations

import inspect

from keys.stores import base
from keys.stores.base import Store
from keys.stores.sqlite import SqliteStore


def test_every_operation_has_a_contract_and_the_store_offers_nothing_else() -> None:
    operations = {name: value for name, value in vars(Store).items() if inspect.iscoroutinefunction(value)}
    assert all(inspect.getdoc(operation) for operation in operations.values())
    assert base.LEASE_MS == 30_000
    public = {name for name in vars(SqliteStore) if not name.startswith("_")}
    assert public == set(operations)
    for name, operation in operations.items():
        assert inspect.signature(getattr(SqliteStore, name)) == inspect.signature(operation)
