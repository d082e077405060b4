"""How long a worker that ended unasked waits before it starts again."""

from __future__ import annotations

__all__ = ["FIRST_DELAY_MS", "MAX_DELAY_MS", "STABLE_AFTER_MS", "delay_ms"]

FIRST_DELAY_MS = 1_000
MAX_DELAY_MS = 60_000
STABLE_AFTER_MS = 120_000  # ready for this long: the next failure is a first one again


def delay_ms(failures: int) -> int:
    """1 s after the first failure in a row, doubled with each further one, at most a minute.

    No random part: the workers of one runner are few, and an operator reads the number.
    """
    if failures < 1:
        raise ValueError(f"failures counts from 1, not {failures}")
    return int(min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** min(failures - 1, 16)))
