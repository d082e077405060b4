"""What every store must pass is tested here; each store is one parameter of the `store` fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keys.stores.base import Store
from keys.stores.sqlite import open_sqlite


@pytest.fixture(params=["sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    assert request.param == "sqlite"
    opened = await open_sqlite(tmp_path / "dcugate.db")
    yield opened
    await opened.aclose()


@pytest.fixture
async def neighbour(store: Store, tmp_path: Path) -> AsyncIterator[Store]:
    """A second store over the same data, as another process has it."""
    opened = await open_sqlite(tmp_path / "dcugate.db")
    yield opened
    await opened.aclose()
