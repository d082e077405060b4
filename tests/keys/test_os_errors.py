from __future__ import annotations

import errno
from pathlib import Path

import pytest

from keys.os_errors import store_unavailable


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EIO, "io_error"),
        (errno.EACCES, "not_writable"),
        (errno.EROFS, "not_writable"),
        (errno.ENOTDIR, "not_writable"),
    ],
)
def test_each_errno_gets_its_reason_and_the_path(number: int, reason: str) -> None:
    error = store_unavailable(OSError(number, "x"), Path("/state"))
    assert (error.reason, error.path) == (reason, "/state")
