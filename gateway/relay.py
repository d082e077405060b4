"""Passes a worker's answer on: bytes in order, unchanged but for the named edits; usage is read from a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import orjson

from gateway.core.errors import DeadlinePassed, GatewayError, WorkerFailed, error_body
from gateway.core.headers import STREAM_HEADERS
from gateway.core.splice import cut, find_usage, rename_model
from gateway.core.sse import EventSplitter, EventTooLarge, event_data
from gateway.core.usage import TokenUsage, openai_usage
from gateway.upstream.connection import Exchange, UpstreamError

__all__ = ["Relay", "StreamRelay", "relay_plain"]

DONE = b"data: [DONE]\n\n"


class Writer(Protocol):
    """The part of the client's side that a stream needs."""

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Sends the head."""

    async def write(self, data: bytes) -> None:
        """Sends body bytes."""


class Relay:
    """What the relay learns of one answer; dispatch reads it when it settles."""

    def __init__(self) -> None:
        self.usage: TokenUsage | None = None
        self.ttft_ms: int | None = None
        self.events = 0
        self.failure: GatewayError | None = None
        self.timed_out = False
        self.reached_worker = False
        self.on_first_byte: Callable[[], None] = lambda: None


class StreamRelay:
    """One stream of chat completion events. `names`: the worker's model name and the one the client asked for."""

    def __init__(
        self, relay: Relay, exchange: Exchange, wants_usage: bool, wants_running_usage: bool, names: tuple[str, str]
    ) -> None:
        self._relay = relay
        self._exchange = exchange
        self._wants_usage = wants_usage
        self._wants_running_usage = wants_running_usage
        self._names = names

    async def run(self, sink: Writer, request_id: str, first_token_s: float, between_tokens_s: float) -> bytes:
        """Relays until the end and returns the last bytes, which the caller writes after it has settled.

        Nothing is written before the first event has come, so that a worker's death before it can still be retried:
        UpstreamError and TimeoutError are raised up to there. After it a failure becomes an error event and a proper
        end, and is told in `relay.failure`.
        """
        relay, splitter, started, done = self._relay, EventSplitter(), False, False
        while not done:
            try:
                piece = await self._exchange.next_piece(between_tokens_s if started else first_token_s)
                events = splitter.feed(piece)
            except (UpstreamError, TimeoutError, EventTooLarge) as problem:
                if not started:
                    raise
                return self._failed(problem, request_id)
            if not piece:
                if not started:
                    raise UpstreamError("it ended a stream without an event", body_byte_seen=False)
                return self._failed(UpstreamError("it ended a stream without [DONE]", body_byte_seen=True), request_id)
            out = []
            for event in events:
                if event_data(event) == b"[DONE]":
                    done = True
                    break
                out.append(self._edited(event))
            if not events:
                continue
            if not started:
                started = True
                relay.on_first_byte()
                await sink.start(
                    self._exchange.status, {"Content-Type": "text/event-stream; charset=utf-8", **STREAM_HEADERS}
                )
            if data := b"".join(out):
                await sink.write(data)
        return DONE

    def _edited(self, event: bytes) -> bytes:
        """The event as the client gets it; b"" where it gets none."""
        relay = self._relay
        relay.events += 1
        member = find_usage(event)
        if member is not None:
            usage = openai_usage(orjson.loads(member.value))
            relay.usage = usage or relay.usage
            only_usage = b'"choices":[]' in event
            if only_usage and not self._wants_usage:
                return b""
            if not only_usage and not self._wants_running_usage:
                event = cut(event, member)
        elif event.startswith(b'data: {"error"'):
            relay.failure = WorkerFailed("The worker broke off its answer with an error.")
        return rename_model(event, *self._names)

    def _failed(self, problem: Exception, request_id: str) -> bytes:
        relay = self._relay
        error: GatewayError
        if isinstance(problem, TimeoutError):
            relay.timed_out = True
            error = DeadlinePassed("The worker sent nothing for longer than the route allows between tokens.")
        else:
            error = WorkerFailed(f"The worker broke off its answer: {problem}.")
        relay.failure = error
        return b"data: " + error_body(error, request_id) + b"\n\n" + DONE


async def relay_plain(relay: Relay, exchange: Exchange, timeout_s: float, names: tuple[str, str]) -> tuple[int, bytes]:
    """Reads a plain answer to its end and returns its status and body, the public model name put back.

    Raises UpstreamError, TimeoutError, and WorkerFailed where the fault is the worker's or ours: 5xx, and 401 or 403,
    which would be about our key, not the client's.
    """
    async with asyncio.timeout(timeout_s):
        pieces: list[bytes] = []
        while piece := await exchange.next_piece(timeout_s):
            if not pieces:
                relay.on_first_byte()
            pieces.append(piece)
    body = b"".join(pieces)
    status = exchange.status
    if status in (401, 403):
        raise WorkerFailed(f"The worker refused the gateway's own key (HTTP {status}).")
    if status >= 500:
        raise WorkerFailed(f"The worker answered HTTP {status}: {_message(body)}")
    member = find_usage(body)
    if member is not None:
        relay.usage = openai_usage(orjson.loads(member.value))
    return status, rename_model(body, *names)


def _message(body: bytes) -> str:
    """The worker's own words, shortened."""
    try:
        return str(orjson.loads(body)["error"]["message"])[:300]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "no further words"
