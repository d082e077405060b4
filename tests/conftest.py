"""Shared fixtures: the loop guard, system programs, and a running gateway over a fake worker."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from gateway.app import gateway
from gateway.config.model import Routes
from gateway.dispatch import Dispatcher
from keys.admin import create_key
from keys.model import Key, LedgerRow
from tests.fakes.fake_vllm import FakeVllm, fake_vllm

os.environ["LC_ALL"] = "C"  # texts follow the locale; tests of the Chinese ones name it themselves


@pytest.fixture(autouse=True)
def a_blocked_loop_fails(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """Any blocking call of our code inside the event loop fails the test (real-vLLM tests drive other programs)."""
    if "real" in request.keywords:
        yield None
        return
    with blockbuster_ctx(["gateway.dispatch", "gateway.relay", "gateway.server", "gateway.upstream"]) as guard:
        yield guard


@pytest.fixture(autouse=True)
def programs(request: pytest.FixtureRequest) -> None:
    """Skips, and counts, a test whose system program is missing; with DCUGATE_REQUIRE_PROGRAMS it fails instead."""
    for mark in request.node.iter_markers("program"):
        name = mark.args[0]
        if shutil.which(name) is None:
            if os.environ.get("DCUGATE_REQUIRE_PROGRAMS"):
                pytest.fail(f"the system program {name} is missing")
            pytest.skip(f"the system program {name} is missing")


@dataclass
class Service:
    """A gateway that listens, its one key, and the fake behind it."""

    base: str
    dispatcher: Dispatcher
    fake: FakeVllm
    key: Key
    secret: str
    http: aiohttp.ClientSession
    state: Path

    @property
    def auth(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}

    def ask(self, text: str, **fields: object) -> dict[str, object]:
        return {"model": "public", "messages": [{"role": "user", "content": text}]} | fields

    async def rows(self) -> list[LedgerRow]:
        """The ledger, once every settlement under way is written."""
        await self.dispatcher.finish(5)
        return await self.dispatcher.store.rows()


@pytest.fixture
def routes_of(unused_tcp_port: int) -> object:
    def make(socket: Path, **deadlines: float) -> Routes:
        return Routes.model_validate(
            {
                "listen": [{"address": f"127.0.0.1:{unused_tcp_port}"}],
                "backends": [
                    {"name": "b", "address": f"unix:{socket}", "model": "served"},
                    {"name": "gone", "address": f"unix:{socket}.gone", "model": "served"},
                ],
                "models": [
                    {"name": "public", "aliases": ["other"], "workers": ["b"], "default_output_tokens": 64},
                    {"name": "two", "workers": ["b", "gone"]},
                ],
                "deadlines": {"drain_s": 5} | deadlines,
                "limits": {"body_bytes": 65536},
            }
        )

    return make


@pytest.fixture
async def service(tmp_path: Path, routes_of: object, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """A real gateway on a free port over the scripted model server. Parametrise indirectly with deadlines."""
    deadlines = getattr(request, "param", {})
    with tempfile.TemporaryDirectory() as short:  # a unix socket's path is at most 107 bytes long
        socket = Path(short) / "w.sock"
        async with fake_vllm(socket) as fake, gateway(routes_of(socket, **deadlines), tmp_path) as dispatcher:  # type: ignore[operator]
            state = dispatcher.backends.get("b")
            assert state is not None
            state.is_ready = True
            key, secret = await create_key(
                dispatcher.store,
                dispatcher.pepper,
                name="test",
                purpose="chat",
                limit_tokens=None,
                now_ms=0,
            )
            async with aiohttp.ClientSession() as http:
                base = f"http://{dispatcher.routes.listen[0].address}"
                yield Service(base, dispatcher, fake, key, secret.reveal(), http, tmp_path)
