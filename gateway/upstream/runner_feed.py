"""Follows the runner's `/v1/events`: worker states and the engines' progress, into the table of backends.

Runner gone: the last list stays, and the feed reconnects. Also here: the probe of backends that have only an address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from gateway.core.sse import EventSplitter, event_data
from gateway.core.usage import TokenUsage
from gateway.upstream.backends import Backends, BackendState
from gateway.upstream.connection import UpstreamError, open_exchange, parse_address

__all__ = ["apply_event", "follow_runner", "probe_address"]

log = logging.getLogger(__name__)

RECONNECT_S = 0.5
PROBE_EVERY_S = 2.0
PROBE_TIMEOUT_S = 5.0


def _backend(worker: dict[str, Any]) -> BackendState:
    state = str(worker["state"])
    return BackendState(
        name=worker["name"],
        address=parse_address(worker["address"]),
        model=worker["model"],
        is_ready=state == "ready",
        reason=worker.get("reason") or f"worker {worker['name']} is {state}",
        max_model_len=worker.get("max_model_len"),
        cards=worker.get("cards") or 1,
        has_progress=True,
        api_key=worker.get("api_key"),
    )


def _ended(requests: dict[str, dict[str, Any]]) -> Iterator[tuple[str, TokenUsage]]:
    for request_id, count in requests.items():
        if count["ended"]:
            # What was computed of the prompt, not the whole prompt: a cut prefill is charged for its work only.
            prompt = min(count["computed_tokens"], count["prompt_tokens"])
            yield request_id, TokenUsage(prompt, min(count["cached_tokens"], prompt), count["output_tokens"])


def apply_event(event: bytes, backends: Backends) -> None:
    """Takes over one event of the runner's feed. Unknown kinds are left alone: a newer runner may send them."""
    name = event.split(b"\n", 1)[0].removeprefix(b"event:").strip()
    if name == b"workers":
        for worker in orjson.loads(event_data(event))["workers"]:
            backends.update(_backend(worker))
    elif name == b"progress":
        told = orjson.loads(event_data(event))
        running = (i for i, count in told["requests"].items() if not count["ended"])
        backends.update_progress(told["worker"], told["steps"], running, _ended(told["requests"]))


async def follow_runner(socket_path: Path, backends: Backends) -> None:
    """Runs until cancelled."""
    while True:
        try:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            connector = aiohttp.UnixConnector(path=str(socket_path))
            async with (
                aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
                session.get("http://runner/v1/events") as answer,
            ):
                splitter = EventSplitter()
                backends.forget_progress()
                async for piece in answer.content.iter_any():
                    for event in splitter.feed(piece):
                        apply_event(event, backends)
        except (aiohttp.ClientError, OSError) as problem:
            log.debug("runner's feed: %s", problem)
        backends.feed_connected = False
        await asyncio.sleep(RECONNECT_S)


async def probe_address(name: str, backends: Backends) -> None:
    """Asks a backend's /health every two seconds. Runs until cancelled."""
    while True:
        state = backends.get(name)
        if state is None:
            return
        try:
            async with await open_exchange(
                state.address, "GET", "/health", {}, b"", PROBE_TIMEOUT_S, PROBE_TIMEOUT_S
            ) as answer:
                state.is_ready = answer.status == 200
                state.reason = f"its /health answers {answer.status}"
        except (UpstreamError, TimeoutError) as problem:
            state.is_ready, state.reason = False, str(problem) or "its /health does not answer"
        await asyncio.sleep(PROBE_EVERY_S)
