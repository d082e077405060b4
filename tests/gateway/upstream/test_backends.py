from __future__ import annotations

import asyncio

import pytest

from gateway.core import endings
from gateway.core.usage import TokenUsage
from gateway.upstream import backends as backends_module
from gateway.upstream.backends import ENDED_KEPT, Backends, BackendState
from gateway.upstream.connection import parse_address

USAGE = TokenUsage(10, 0, 3)


async def test_a_final_count_is_handed_out_whether_it_came_before_or_after_it_was_asked_for() -> None:
    backends = Backends()
    backends.update_progress("w", 1, [], [("a", USAGE)])
    assert await backends.final_usage("a", "w", 0.01, True) == USAGE
    waiting = asyncio.create_task(backends.final_usage("b", "w", 5, True))
    await asyncio.sleep(0)
    backends.update_progress("w", 1, [], [("b", USAGE)])
    assert await waiting == USAGE
    assert await backends.final_usage("c", "w", 0.01, True) is None


async def test_a_count_of_the_worker_that_died_is_not_the_one_of_the_worker_that_took_over() -> None:
    backends = Backends()
    backends.update_progress("died", 1, [], [("a", USAGE)])
    assert await backends.final_usage("a", "took over", 0.01, True) is None
    assert await backends.final_usage("a", "died", 0.01, True) == USAGE


async def test_who_waits_is_let_go_at_shutdown() -> None:
    backends = Backends()
    waiting = asyncio.create_task(backends.final_usage("a", "w", 60, True))
    await asyncio.sleep(0)
    backends.stop_waiting()
    assert await waiting is None
    assert await backends.final_usage("b", "w", 60, True) is None


async def test_a_request_that_never_reached_the_engine_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends_module, "LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(endings, "UNSEEN_AFTER_S", 0.01)
    backends = Backends()
    assert await backends.final_usage("a", "w", 0.05, seen=False) is None  # no feed: nothing is proved
    backends.update_progress("w", 5, [], [])
    assert await backends.final_usage("a", "w", 5, seen=False) == TokenUsage(0, 0, 0)  # an idle engine
    backends.update_progress("w", 7, ["other"], [])
    assert await backends.final_usage("a", "w", 0.05, seen=False) is None  # a busy one, in a long step: not decided yet
    waiting = asyncio.create_task(backends.final_usage("a", "w", 5, seen=False))
    await asyncio.sleep(0)
    backends.update_progress("w", 9, ["other"], [])
    assert await waiting == TokenUsage(0, 0, 0)
    backends.update_progress("w", 20, ["a"], [])
    backends.update_progress("w", 30, ["other"], [])  # an event tells only what changed: "a" waits in the queue
    assert await backends.final_usage("a", "w", 0.05, seen=False) is None  # it runs: its end will come


def test_the_kept_counts_are_bounded() -> None:
    backends = Backends()
    backends.update_progress("w", 1, [], ((str(i), USAGE) for i in range(ENDED_KEPT + 5)))
    assert len(backends._final) == ENDED_KEPT


def test_a_new_state_keeps_the_requests_in_flight_and_shows_no_key() -> None:
    backends = Backends()
    state = BackendState("w", parse_address("unix:/w"), "m", api_key="sk-internal", in_flight=2)
    backends.update(state)
    backends.update(BackendState("w", parse_address("unix:/w"), "m", is_ready=True))
    assert backends.get("w") is state  # a request that began before counts itself off the same object
    assert backends.candidates(["w", "unknown"])[0].in_flight == 2
    assert backends.candidates(["x"]) == []
    assert "sk-internal" not in repr(state)
    assert "w: ready" in repr(backends)
