from __future__ import annotations

from typing import get_args

import pytest

from keys.errors import (
    AmbiguousName,
    DuplicateReservation,
    InvalidKey,
    InvalidReason,
    KeysError,
    NoSuchKey,
    QuotaExceeded,
    StoreReason,
    StoreUnavailable,
    UnknownKey,
)
from keys.explain import explain

EVERY: list[KeysError] = [
    *(StoreUnavailable(reason, "/state/dcugate.db") for reason in get_args(StoreReason)),
    *(InvalidKey(reason) for reason in get_args(InvalidReason)),
    UnknownKey(),
    QuotaExceeded("limit_tokens", 3, 5),
    DuplicateReservation("dcu-1"),
    NoSuchKey("a\nb"),
    AmbiguousName("app", ["k_1", "k_2"]),
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: f"{type(error).__name__}-{getattr(error, 'reason', '')}")
def test_every_error_is_one_line_in_both_languages(error: KeysError, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    assert explain(error).isascii()
    assert "\n" not in explain(error)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert not explain(error).isascii()
    assert "\n" not in explain(error)


def test_every_kind_of_error_is_among_those_tried() -> None:
    assert {type(error) for error in EVERY} == set(KeysError.__subclasses__())
