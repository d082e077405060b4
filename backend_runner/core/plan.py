"""What to do with a worker when something happens: decide here, do in `loop.py`.

`decide(record, event, now_ms)` returns the new record and the actions. No I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from backend_runner.core.backoff import STABLE_AFTER_MS, delay_ms
from backend_runner.core.states import State, moved

__all__ = [
    "Action",
    "Answered",
    "Event",
    "Exited",
    "Kill",
    "Launch",
    "Record",
    "Request",
    "StopProcess",
    "WakeAfter",
    "decide",
]

MAX_START_FAILURES = 5  # in a row, never once ready: it will not heal by itself


@dataclass(frozen=True, slots=True)
class Record:
    """A worker as the runner knows it. `attempt` numbers its processes, so that late news of an old one is told apart."""

    state: State = State.STOPPED
    reason: str = "not started"
    attempt: int = 0
    failures: int = 0  # unasked ends in a row
    since_ms: int = 0  # when `state` was entered
    start_again: bool = False  # while stopping: whether a new process follows


class Request(Enum):
    """What a person, or the runner itself, asks of a worker. RETRY comes from WakeAfter."""

    START = auto()
    DRAIN = auto()
    STOP = auto()
    RESTART = auto()
    RETRY = auto()


@dataclass(frozen=True, slots=True)
class Answered:
    """The process of that attempt answered its health check for the first time."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Exited:
    """The process of that attempt is gone. `permanent`: starting it again unchanged cannot help."""

    attempt: int
    reason: str
    permanent: bool = False


Event = Request | Answered | Exited


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a process under this number."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StopProcess:
    """End the process in peace: requests in flight finish within the drain bound."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process now: it serves nobody yet."""

    attempt: int


@dataclass(frozen=True, slots=True)
class WakeAfter:
    """Send RETRY after the delay."""

    delay_ms: int


Action = Launch | StopProcess | Kill | WakeAfter


def decide(record: Record, event: Event, now_ms: int) -> tuple[Record, tuple[Action, ...]]:
    """The numbers are those of the branches below.

    1. Answered: starting -> ready. Late or unexpected ones change nothing.
    2. Exited: asked for -> stopped, or started again after a restart. Unasked -> backoff; failed where it cannot help.
       Any unasked exit counts, exit status 0 too: vLLM ends with 0 when its engine died.
    3. STOP, RESTART: a running process is ended first; one that still loads has no requests and is killed.
    4. START, RETRY, DRAIN: each from the states where it makes sense, elsewhere nothing.
    """
    if isinstance(event, Answered):  # 1
        if event.attempt != record.attempt or record.state is not State.STARTING:
            return record, ()
        return _to(record, State.READY, "", now_ms), ()

    if isinstance(event, Exited):  # 2
        if event.attempt != record.attempt or record.state in (State.STOPPED, State.BACKOFF, State.FAILED):
            return record, ()
        if record.state is State.STOPPING:
            if record.start_again:
                return _launch(replace(record, failures=0), "restarting", now_ms)
            return _to(record, State.STOPPED, "stopped by request", now_ms), ()
        was_stable = record.state is State.READY and now_ms - record.since_ms >= STABLE_AFTER_MS
        failures = 1 if was_stable else record.failures + 1
        failed = replace(record, failures=failures)
        if record.state is State.STARTING and (event.permanent or failures >= MAX_START_FAILURES):
            return _to(failed, State.FAILED, event.reason, now_ms), ()
        delay = delay_ms(failures)
        return _to(failed, State.BACKOFF, event.reason, now_ms), (WakeAfter(delay),)

    if event in (Request.STOP, Request.RESTART):  # 3
        again = event is Request.RESTART
        if record.state is State.STOPPING:
            return replace(record, start_again=again), ()
        if record.state in (State.STOPPED, State.BACKOFF, State.FAILED):
            if again:
                return _launch(replace(record, failures=0), "restarting", now_ms)
            if record.state is State.STOPPED:
                return record, ()
            return _to(record, State.STOPPED, "stopped by request", now_ms), ()
        was_starting = record.state is State.STARTING
        reason = "restarting" if again else "stopping by request"
        stopping = replace(_to(record, State.STOPPING, reason, now_ms), start_again=again)
        return stopping, (Kill(record.attempt) if was_starting else StopProcess(record.attempt),)

    if event is Request.START and record.state in (State.STOPPED, State.BACKOFF, State.FAILED):  # 4
        return _launch(record, "loading the model", now_ms)
    if event is Request.RETRY and record.state is State.BACKOFF:
        return _launch(record, f"starting again; before: {record.reason}", now_ms)
    if event is Request.DRAIN and record.state is State.READY:
        return _to(record, State.DRAINING, "draining by request", now_ms), ()
    return record, ()


def _to(record: Record, state: State, reason: str, now_ms: int) -> Record:
    return replace(record, state=moved(record.state, state), reason=reason, since_ms=now_ms)


def _launch(record: Record, reason: str, now_ms: int) -> tuple[Record, tuple[Action, ...]]:
    started = replace(_to(record, State.STARTING, reason, now_ms), attempt=record.attempt + 1, start_again=False)
    return started, (Launch(started.attempt),)
