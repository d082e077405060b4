"""Errors of the operating system as the package's own: translated in this one place."""

from __future__ import annotations

import errno
from pathlib import Path

from keys.errors import StoreReason, StoreUnavailable

__all__ = ["store_unavailable"]

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def store_unavailable(error: OSError, path: Path) -> StoreUnavailable:
    """Return the StoreUnavailable that says what `error` means for `path`; raise it `from error`."""
    reason: StoreReason = "not_writable"
    if error.errno in _FULL:
        reason = "disk_full"
    elif error.errno == errno.EIO:
        reason = "io_error"
    return StoreUnavailable(reason, str(path))
