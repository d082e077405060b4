from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_runner.core.plan import (
    Answered,
    Event,
    Exited,
    Kill,
    Launch,
    Record,
    Request,
    StopProcess,
    WakeAfter,
    decide,
)
from backend_runner.core.states import State


def after(*events: Event, gap_ms: int = 1000) -> tuple[Record, tuple[object, ...]]:
    record = Record()
    actions: tuple[object, ...] = ()
    for number, event in enumerate(events, 1):
        record, actions = decide(record, event, number * gap_ms)
    return record, actions


def test_a_start_launches_and_the_first_answer_makes_it_ready() -> None:
    record, actions = after(Request.START)
    assert (record.state, actions) == (State.STARTING, (Launch(1),))
    assert after(Request.START, Answered(1))[0].state is State.READY


def test_any_unasked_end_starts_it_again() -> None:
    record, actions = after(Request.START, Answered(1), Exited(1, "engine died"))
    assert (record.state, record.reason, actions) == (State.BACKOFF, "engine died", (WakeAfter(1000),))
    record, actions = decide(record, Request.RETRY, 9000)
    assert (record.state, actions) == (State.STARTING, (Launch(2),))


def test_what_cannot_help_is_not_tried_again() -> None:
    record, actions = after(Request.START, Exited(1, "no such model", permanent=True))
    assert (record.state, record.reason, actions) == (State.FAILED, "no such model", ())
    assert decide(record, Request.RESTART, 1)[1] == (Launch(2),)


def test_five_failed_starts_are_enough() -> None:
    events: list[Event] = [Request.START]
    for attempt in range(1, 6):
        events += [Exited(attempt, "boom"), Request.RETRY]
    assert after(*events)[0].state is State.FAILED


def test_a_long_good_time_forgets_earlier_failures() -> None:
    events = (Request.START, Exited(1, "x"), Request.RETRY, Answered(2), Exited(2, "x"))
    assert after(*events, gap_ms=1000)[1] == (WakeAfter(2000),)
    assert after(*events, gap_ms=200_000)[1] == (WakeAfter(1000),)


def test_a_stop_drains_a_ready_worker_and_kills_one_that_loads() -> None:
    assert after(Request.START, Answered(1), Request.STOP)[1] == (StopProcess(1),)
    assert after(Request.START, Request.STOP)[1] == (Kill(1),)
    assert after(Request.START, Answered(1), Request.STOP, Exited(1, "gone"))[0].state is State.STOPPED


def test_a_restart_is_a_stop_and_a_start() -> None:
    record, actions = after(Request.START, Answered(1), Request.RESTART, Exited(1, "gone"))
    assert (record.state, record.failures, actions) == (State.STARTING, 0, (Launch(2),))


def test_a_stop_during_a_restart_wins() -> None:
    record, _ = after(Request.START, Answered(1), Request.RESTART, Request.STOP, Exited(1, "gone"))
    assert record.state is State.STOPPED


def test_a_drained_worker_runs_on_without_new_requests() -> None:
    record, actions = after(Request.START, Answered(1), Request.DRAIN)
    assert (record.state, actions) == (State.DRAINING, ())


@pytest.mark.parametrize("late", [Answered(1), Exited(1, "old")])
def test_late_news_of_an_old_process_changes_nothing(late: Event) -> None:
    record, _ = after(Request.START, Exited(1, "x"), Request.RETRY)
    assert decide(record, late, 9) == (record, ())


numbers = st.integers(1, 3)
events = st.one_of(
    st.sampled_from(list(Request)),
    st.builds(Answered, numbers),
    st.builds(Exited, numbers, st.just("x"), st.booleans()),
)


@given(st.lists(events, max_size=30))
def test_no_sequence_breaks_the_table_or_runs_two_processes(sequence: list[Event]) -> None:
    record = Record()
    alive: set[int] = set()
    for number, event in enumerate(sequence):
        if isinstance(event, Exited):
            if event.attempt not in alive:
                continue
            alive.discard(event.attempt)
        record, actions = decide(record, event, number)
        alive |= {action.attempt for action in actions if isinstance(action, Launch)}
        assert len(alive) <= 1
        assert bool(alive) == (record.state in (State.STARTING, State.READY, State.DRAINING, State.STOPPING))
