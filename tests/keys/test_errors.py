from __future__ import annotations

from typing import get_args

from keys import errors
from keys.errors import InvalidKey, InvalidReason, KeysError, StoreReason, StoreUnavailable


def test_the_tree_at_the_top_of_the_module_names_every_error_with_its_status() -> None:
    listed = {
        name: int(rest[0])
        for name, *rest in (line.strip("├└─ ").split() for line in (errors.__doc__ or "").splitlines() if "──" in line)
    }
    assert listed == {error.__name__: error.status for error in KeysError.__subclasses__()}


def test_every_reason_has_one_line() -> None:
    for reason in get_args(StoreReason):
        message = str(StoreUnavailable(reason, "/state/dcugate.db"))
        assert "/state/dcugate.db" in message
        assert "\n" not in message
    for invalid in get_args(InvalidReason):
        assert str(InvalidKey(invalid))
