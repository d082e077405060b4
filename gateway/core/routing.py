"""Which worker serves a request, and whether a failed attempt may be repeated. Pure; the tables come in as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

__all__ = ["Candidate", "choose", "may_retry"]

MAX_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """A backend as routing sees it. `in_flight`: requests of this gateway that it serves now."""

    name: str
    is_ready: bool
    in_flight: int


def choose(candidates: Iterable[Candidate], excluded: Collection[str] = ()) -> str | None:
    """The ready backend with the fewest requests in flight, not `excluded`; ties go by name. None: there is none."""
    open_to_us = [c for c in candidates if c.is_ready and c.name not in excluded]
    return min(open_to_us, key=lambda c: (c.in_flight, c.name)).name if open_to_us else None


def may_retry(attempts: int, worker_known_dead: bool, body_byte_seen: bool) -> bool:
    """Once, on another worker, only where the first is known dead (refused, reset, closed) and no byte of its answer's
    body has come. Never after a time-out: the worker may still be computing."""
    return attempts < MAX_ATTEMPTS and worker_known_dead and not body_byte_seen
