from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiohttp import web

from gateway.core.usage import TokenUsage
from gateway.upstream.backends import Backends
from gateway.upstream.runner_feed import apply_event, follow_runner, probe_address
from tests.fakes.fake_vllm import fake_vllm

WORKERS = {
    "workers": [
        {
            "name": "w",
            "address": "unix:/run/w.sock",
            "model": "m",
            "max_model_len": 8192,
            "state": "ready",
            "reason": None,
            "api_key": "k",
            "cards": 2,
            "profile": None,
        }
    ]
}


def progress(**counts: int | bool) -> bytes:
    one = {"computed_tokens": 0, "prompt_tokens": 90, "cached_tokens": 0, "output_tokens": 0, "ended": True} | counts
    return (
        b"event: progress\ndata: " + json.dumps({"worker": "w", "steps": 1, "requests": {"r": one}}).encode() + b"\n\n"
    )


def workers(state: str = "ready") -> bytes:
    return b"event: workers\ndata: " + json.dumps(WORKERS).replace("ready", state).encode() + b"\n\n"


def test_a_workers_event_fills_the_table() -> None:
    backends = Backends()
    apply_event(workers(), backends)
    state = backends.get("w")
    assert state is not None
    assert (state.is_ready, state.cards, state.max_model_len, state.api_key) == (True, 2, 8192, "k")
    apply_event(workers("starting"), backends)
    state = backends.get("w")
    assert state is not None
    assert not state.is_ready
    assert "starting" in state.reason
    apply_event(b"event: something-newer\ndata: {}\n\n", backends)


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ({"computed_tokens": 40, "cached_tokens": 16}, TokenUsage(40, 16, 0)),  # left in prefill: what was computed
        ({"computed_tokens": 99, "output_tokens": 10}, TokenUsage(90, 0, 10)),  # in decode: the whole prompt
    ],
)
async def test_a_cut_requests_final_count(counts: dict[str, int], usage: TokenUsage) -> None:
    backends = Backends()
    apply_event(progress(ended=False, **counts), backends)
    assert await backends.final_usage("r", "w", 0.01, True) is None
    apply_event(progress(**counts), backends)
    assert await backends.final_usage("r", "w", 0.01, True) == usage


async def test_the_feed_reconnects_when_the_runner_comes_back() -> None:
    async def send(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(workers("ready" if connections else "starting"))
        connections.append(1)
        return answer

    connections: list[int] = []
    backends = Backends()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "r.sock"
        follower = asyncio.create_task(follow_runner(path, backends))  # before the runner is there
        app = web.Application()
        app.router.add_get("/v1/events", send)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        async with asyncio.timeout(5):
            while not ((state := backends.get("w")) and state.is_ready):
                await asyncio.sleep(0.01)
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)
        await runner.cleanup()
    assert len(connections) >= 2


async def test_a_backend_named_by_address_is_probed() -> None:
    backends = Backends()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "w.sock"
        backends.add_address("b", f"unix:{path}", "m", None)
        state = backends.get("b")
        assert state is not None
        async with fake_vllm(path):
            probe = asyncio.create_task(probe_address("b", backends))
            async with asyncio.timeout(5):
                while not state.is_ready:
                    await asyncio.sleep(0.01)
            probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        path.unlink(missing_ok=True)
        probe = asyncio.create_task(probe_address("b", backends))
        async with asyncio.timeout(5):
            while state.is_ready:
                await asyncio.sleep(0.01)
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert "no connection" in state.reason
