from __future__ import annotations

import asyncio

from gateway.core.usage import TokenUsage
from gateway.upstream.backends import ENDED_KEPT, Backends, BackendState
from gateway.upstream.connection import parse_address

USAGE = TokenUsage(10, 0, 3)


async def test_a_final_count_is_handed_out_whether_it_came_before_or_after_it_was_asked_for() -> None:
    backends = Backends()
    backends.update_progress([("a", USAGE)])
    assert await backends.final_usage("a", 0.01) == USAGE
    waiting = asyncio.create_task(backends.final_usage("b", 5))
    await asyncio.sleep(0)
    backends.update_progress([("b", USAGE)])
    assert await waiting == USAGE
    assert await backends.final_usage("c", 0.01) is None


async def test_who_waits_is_let_go_at_shutdown() -> None:
    backends = Backends()
    waiting = asyncio.create_task(backends.final_usage("a", 60))
    await asyncio.sleep(0)
    backends.stop_waiting()
    assert await waiting is None
    assert await backends.final_usage("b", 60) is None


def test_the_kept_counts_are_bounded() -> None:
    backends = Backends()
    backends.update_progress((str(i), USAGE) for i in range(ENDED_KEPT + 5))
    assert len(backends._final) == ENDED_KEPT


def test_a_new_state_keeps_the_requests_in_flight_and_shows_no_key() -> None:
    backends = Backends()
    state = BackendState("w", parse_address("unix:/w"), "m", api_key="sk-internal", in_flight=2)
    backends.update(state)
    backends.update(BackendState("w", parse_address("unix:/w"), "m", is_ready=True))
    assert backends.candidates(["w", "unknown"])[0].in_flight == 2
    assert backends.candidates(["x"]) == []
    assert "sk-internal" not in repr(state)
    assert "w: ready" in repr(backends)
