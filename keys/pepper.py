"""The pepper file: 32 random bytes that key the digests of all secrets of one state folder. Blocks on the disk."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from keys.errors import StoreUnavailable
from keys.os_errors import store_unavailable
from keys.secret import PEPPER_BYTES

__all__ = ["load_or_make_pepper"]


def load_or_make_pepper(path: Path) -> bytes:
    """Return the pepper at `path`; the first call makes it, readable by its owner only.

    Several processes may call at once: all get the same bytes, and a crash leaves either no file or a whole one.
    Raises StoreUnavailable for a file that is damaged, open to every user, or cannot be read or made.
    """
    try:
        if not path.exists():
            _make(path)
        mode = path.stat().st_mode
        pepper = path.read_bytes()
    except OSError as error:
        raise store_unavailable(error, path) from error
    if mode & 0o007:
        raise StoreUnavailable("pepper_exposed", str(path))
    if len(pepper) != PEPPER_BYTES:
        raise StoreUnavailable("pepper_damaged", str(path))
    return pepper


def _make(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(PEPPER_BYTES))
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: where another process was first, its pepper stays.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
