"""The composition root: wires configuration, store, backends and server, and runs them until told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from gateway.config.model import Routes
from gateway.dispatch import Dispatcher
from gateway.server.api import make_api
from gateway.telemetry.metrics import Metrics
from gateway.upstream.backends import Backends
from gateway.upstream.runner_feed import follow_runner, probe_address
from keys.state import open_state

__all__ = ["ListenError", "gateway", "serve_until_stopped"]

log = logging.getLogger(__name__)


class ListenError(Exception):
    """A listener could not be opened; the message says which, why, and what to do."""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@asynccontextmanager
async def gateway(routes: Routes, state: Path) -> AsyncIterator[Dispatcher]:
    """A running gateway: listening when the block is entered, drained and settled when it is left.

    Raises ListenError; errors of keys.errors where the state folder cannot be used.
    """
    kept = await open_state(state)
    store, backends = kept.store, Backends()
    dispatcher = Dispatcher(routes, store, kept.pepper, backends, Metrics(), _wall_ms, time.monotonic)
    tasks = [asyncio.create_task(dispatcher.renew_leases())]
    if routes.workers:
        tasks.append(asyncio.create_task(follow_runner(state / "runner.sock", backends)))
    runner = web.AppRunner(
        make_api(dispatcher), handler_cancellation=True, access_log=None, shutdown_timeout=routes.deadlines.drain_s
    )
    try:
        for backend in routes.backends:
            key = backend.api_key_file.read_text(encoding="ascii").strip() if backend.api_key_file else None
            backends.add_address(backend.name, backend.address, backend.model, key)
            tasks.append(asyncio.create_task(probe_address(backend.name, backends)))
        await runner.setup()
        for listener in routes.listen:
            try:
                await web.TCPSite(runner, listener.host, listener.port).start()
            except OSError as problem:
                raise ListenError(
                    f"cannot listen on {listener.address}: {problem.strerror or problem}; end the program that uses it "
                    "or change `listen` in routes.yaml"
                ) from None
        yield dispatcher
    finally:
        await runner.cleanup()
        await dispatcher.finish(routes.deadlines.drain_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.aclose()


async def serve_until_stopped(routes: Routes, state: Path, on_ready: Callable[[Dispatcher], Awaitable[None]]) -> None:
    """Runs a gateway until SIGINT or SIGTERM, then drains it. `on_ready` is awaited once it listens."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with gateway(routes, state) as dispatcher:
        await on_ready(dispatcher)
        await stop.wait()
        log.info("stopping: no new requests, running ones have %g s", routes.deadlines.drain_s)
