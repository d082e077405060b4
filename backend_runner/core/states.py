"""The states of a worker, as a table. `plan.py` is the one engine that walks it."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["IllegalTransition", "State", "TRANSITIONS", "moved"]


class State(StrEnum):
    """What a worker is doing. Only a `ready` one gets new requests."""

    STOPPED = "stopped"  # by request; no process
    STARTING = "starting"  # its process loads the model
    READY = "ready"
    DRAINING = "draining"  # runs, finishes what it has, gets nothing new
    STOPPING = "stopping"  # was told to end
    BACKOFF = "backoff"  # ended unasked; starts again in a while
    FAILED = "failed"  # ended unasked, and starting again would not help; waits for a `restart`


TRANSITIONS: dict[State, frozenset[State]] = {
    State.STOPPED: frozenset({State.STARTING}),
    State.STARTING: frozenset({State.READY, State.STOPPING, State.BACKOFF, State.FAILED}),
    State.READY: frozenset({State.DRAINING, State.STOPPING, State.BACKOFF}),
    State.DRAINING: frozenset({State.STOPPING, State.BACKOFF}),
    State.STOPPING: frozenset({State.STOPPED, State.STARTING}),
    State.BACKOFF: frozenset({State.STARTING, State.STOPPED}),
    State.FAILED: frozenset({State.STARTING, State.STOPPED}),
}


class IllegalTransition(Exception):
    """A step that the table does not have: a bug in the caller."""


def moved(state: State, to: State) -> State:
    """`to`, where the table allows the step. Raises IllegalTransition."""
    if to not in TRANSITIONS[state]:
        raise IllegalTransition(f"a worker cannot go from {state} to {to}")
    return to
