"""The table of endings: what a request is charged, by how it ended and by what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.core.usage import TokenUsage

__all__ = ["Charge", "Ending", "Evidence", "charge", "never_reached_engine"]


class Ending(Enum):
    """How a request ended; the value is the ledger row's status."""

    COMPLETED = "completed"
    CLIENT_CLOSED = "client_closed"
    UPSTREAM_ERROR = "upstream_error"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a request when it ends, best first. Each may be None.

    feed: the engine's own final count from the worker's progress file (computed prompt tokens, not the whole prompt).
    reported: the last usage the worker reported in its answer.
    estimate: what the gateway believes from bytes and time alone.
    reached_worker: False when no worker was asked, or none did any work.
    """

    feed: TokenUsage | None = None
    reported: TokenUsage | None = None
    estimate: TokenUsage | None = None
    reached_worker: bool = True


@dataclass(frozen=True, slots=True)
class Charge:
    """Tokens of the ledger row: `input_tokens` is the uncached part of the prompt."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    estimated: bool


_NOTHING = TokenUsage(0, 0, 0)


def charge(ending: Ending, evidence: Evidence) -> Charge:
    """What is charged (architecture, table of endings).

    A finished answer carries the engine's usage. A cut one is charged from the feed, else from the last usage it
    reported, else by estimate; only the last is marked `estimated`. A worker's failure costs what is known to have been
    done, never a guess. A refused request costs nothing.
    """
    if ending is Ending.REFUSED or not evidence.reached_worker:
        known, estimated = _NOTHING, False
    elif ending is Ending.COMPLETED and evidence.reported is not None:
        known, estimated = evidence.reported, False
    elif evidence.feed is not None:
        known, estimated = evidence.feed, False
    elif evidence.reported is not None:
        known, estimated = evidence.reported, False
    elif ending is Ending.UPSTREAM_ERROR:
        known, estimated = _NOTHING, False
    else:
        known, estimated = evidence.estimate or _NOTHING, True
    return Charge(known.prompt_tokens - known.cached_tokens, known.cached_tokens, known.output_tokens, estimated)


UNSEEN_AFTER_S = 3.0  # vLLM's server tokenises a 131K prompt in about a second before its engine hears of it


def never_reached_engine(waited_s: float, is_running: bool, others_running: bool, steps_since: int) -> bool:
    """Whether a cut request can be taken as never having reached the engine, so that it cost nothing.

    waited_s: since its connection was closed; is_running: the feed shows it; others_running: the engine has other work;
    steps_since: engine steps since the connection was closed. The engine takes new requests and aborts between two
    steps, so a busy one has had its chance after two; an idle one takes them at once.
    """
    return waited_s >= UNSEEN_AFTER_S and not is_running and (not others_running or steps_since >= 2)
