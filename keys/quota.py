"""The reference arithmetic of quota. Every store must agree with it on tests/contract/test_quota_cases.py."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Denied", "Granted", "decide"]


@dataclass(frozen=True, slots=True)
class Granted:
    """The reservation fits; `remaining_tokens` are left after it (None: the key has no limit)."""

    remaining_tokens: int | None


@dataclass(frozen=True, slots=True)
class Denied:
    """The reservation does not fit; `remaining_tokens` were left, never below 0."""

    remaining_tokens: int


def decide(limit_tokens: int | None, used: int, reserved: int, requested: int) -> Granted | Denied:
    """Tell whether `requested` tokens fit beside what is used and what is reserved by leases that have not expired.

    A settle may take `used` above the limit (it is charged in full); then nothing is granted, not even 0 tokens.
    Raises ValueError where `requested` is negative.
    """
    if requested < 0:
        raise ValueError("requested tokens are negative")
    if limit_tokens is None:
        return Granted(None)
    remaining = limit_tokens - used - reserved
    if requested > remaining:
        return Denied(max(0, remaining))
    return Granted(remaining - requested)
