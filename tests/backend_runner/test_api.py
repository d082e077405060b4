from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from backend_runner.api import Hub, make_api
from backend_runner.core.plan import Event, Request
from backend_runner.core.progress import Progress, RequestProgress
from backend_runner.core.worker_config import WorkerConfig
from backend_runner.launchers.process import ProcessLauncher
from backend_runner.loop import Paths, Worker


class Posted(Worker):
    """A worker that only remembers what it was told."""

    def post(self, event: Event) -> None:
        self.heard = event


class Setup:
    def __init__(self, folder: Path) -> None:
        self.hub = Hub()
        paths = Paths.below(folder, "w")

        def no_launch(_: str) -> Any:
            raise AssertionError("nothing is launched here")

        self.worker = Posted(
            WorkerConfig("w", "vllm", ("m",), "/m"), paths, ProcessLauncher(), no_launch, lambda _: None, lambda _: None
        )
        self.client = TestClient(TestServer(make_api({"w": self.worker}, self.hub)))


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    made = Setup(tmp_path)
    async with made.client:
        yield made


async def next_event(answer: ClientResponse) -> tuple[str, Any]:
    text = (await answer.content.readuntil(b"\n\n")).decode()
    kind, data = text.strip().split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_the_list_has_what_the_gateway_needs(setup: Setup) -> None:
    [worker] = (await (await setup.client.get("/v1/workers")).json())["workers"]
    assert set(worker) == {
        "name", "address", "model", "max_model_len", "state", "reason", "api_key", "cards", "profile", "pid",
        "started_s", "log_path", "steps", "requests",
    }  # fmt: skip
    assert (worker["state"], worker["profile"]) == ("stopped", None)


@pytest.mark.parametrize(
    ("what", "event"), [("drain", Request.DRAIN), ("restart", Request.RESTART), ("stop", Request.STOP)]
)
async def test_a_post_reaches_the_worker(setup: Setup, what: str, event: Request) -> None:
    answer = await setup.client.post(f"/v1/workers/w/{what}")
    assert (answer.status, setup.worker.heard) == (202, event)


async def test_an_unknown_worker_is_told_with_the_known_ones(setup: Setup) -> None:
    answer = await setup.client.post("/v1/workers/nope/stop")
    assert (answer.status, await answer.json()) == (404, {"error": "no worker nope; known: w"})
    assert (await setup.client.post("/v1/workers/w/explode")).status == 404


async def test_the_log_comes_as_text(setup: Setup) -> None:
    setup.worker.paths.log.parent.mkdir(parents=True)
    setup.worker.paths.log.write_text("a\nb\nc\n")
    assert await (await setup.client.get("/v1/workers/w/logs?lines=2")).text() == "b\nc\n"
    assert (await setup.client.get("/v1/workers/w/logs?lines=x")).status == 400


async def test_the_stream_starts_with_everything_and_goes_on_with_changes(setup: Setup) -> None:
    a, b = RequestProgress(1, 4, 0, 0), RequestProgress(5, 4, 0, 1, 2.0)
    setup.worker.progress = Progress(1, 1.0, {"a": a, "b": b})
    async with setup.client.get("/v1/events") as answer:
        assert (await next_event(answer))[0] == "workers"
        kind, data = await next_event(answer)
        assert (kind, data["worker"], data["steps"], set(data["requests"])) == ("progress", "w", 1, {"a", "b"})
        assert data["requests"]["b"] == b.as_json() | {"ended": True}
        setup.worker.progress = Progress(2, 1.5, {"a": RequestProgress(2, 4, 0, 0), "b": b})
        setup.hub.progressed()
        kind, data = await next_event(answer)
        assert (data["steps"], set(data["requests"])) == (2, {"a"})
        setup.hub.changed()
        assert (await next_event(answer))[0] == "workers"
        setup.hub.close()
        await next_event(answer)
        assert await answer.content.read() == b""
