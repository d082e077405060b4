"""The state folder: where it is, and opening what this package keeps in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from keys.errors import StoreUnavailable
from keys.os_errors import store_unavailable
from keys.pepper import load_or_make_pepper
from keys.stores.base import Store
from keys.stores.sqlite import open_sqlite

__all__ = ["State", "database_path", "default_state_dir", "has_database", "open_state", "pepper_path"]


@dataclass(frozen=True, slots=True)
class State:
    """An open store and the pepper that belongs to it. The caller closes the store: `await state.store.aclose()`."""

    store: Store
    pepper: bytes = field(repr=False)


def default_state_dir() -> Path:
    """Return $DCUGATE_STATE, or ~/.local/state/dcugate where it is unset or empty."""
    named = os.environ.get("DCUGATE_STATE")
    return Path(named).expanduser() if named else Path.home() / ".local" / "state" / "dcugate"


def database_path(state_dir: Path) -> Path:
    """Return where the SQLite store of a state folder is."""
    return state_dir / "dcugate.db"


def pepper_path(state_dir: Path) -> Path:
    """Return where the pepper of a state folder is."""
    return state_dir / "pepper"


def has_database(state_dir: Path) -> bool:
    """Tell whether anything was ever kept in a state folder. Raises StoreUnavailable where that may not be seen."""
    return _exists(database_path(state_dir))


async def open_state(state_dir: Path) -> State:
    """Open the folder's store and pepper, making folder (0700), database and pepper where they are missing.

    Raises StoreUnavailable where any of them cannot be used, and where the pepper is gone though keys exist: a fresh
    one would silently turn every issued key away. Nothing stays open then.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise store_unavailable(error, state_dir) from error
    store = await open_sqlite(database_path(state_dir))
    try:
        path = pepper_path(state_dir)
        # Keys first, then the file: whoever issues a key makes the pepper before, so a racing first start is no alarm.
        if await store.list_keys() and not _exists(path):
            raise StoreUnavailable("pepper_missing", str(path))
        return State(store, load_or_make_pepper(path))
    except BaseException:
        await store.aclose()
        raise


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # the folder may not be searched
        raise store_unavailable(error, path) from error
