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
        self._started = False

    async def run(
        self, sink: Writer, request_id: str, first_token_s: float, between_tokens_s: float, total_s: float
    ) -> bytes:
        """Relays until the end and returns the last bytes, which the caller writes after it has settled.

        Nothing is written before the first event has come, so that a worker's death before it can still be retried:
        UpstreamError and TimeoutError are raised up to there. After it a failure, a deadline among them, becomes an error
        event and a proper end, and is told in `relay.failure`.
        """
        try:
            async with asyncio.timeout(total_s):
                return await self._pump(sink, first_token_s, between_tokens_s)
        except (UpstreamError, TimeoutError) as problem:
            if not self._started:
                raise
            return self._failed(problem, request_id)

    async def _pump(self, sink: Writer, first_token_s: float, between_tokens_s: float) -> bytes:
        splitter, done = EventSplitter(), False
        while not done:
            piece = await self._exchange.next_piece(between_tokens_s if self._started else first_token_s)
            if not piece:
                raise UpstreamError("it ended a stream without [DONE]", body_byte_seen=self._started)
            try:
                events = splitter.feed(piece)
            except EventTooLarge as problem:
                raise UpstreamError(str(problem), body_byte_seen=True) from None
            out = []
            for event in events:
                if event_data(event) == b"[DONE]":
                    done = True
                    break
                out.append(self._edited(event))
            if not events:
                continue
            if not self._started:
                self._started = True
                self._relay.on_first_byte()
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
            relay.usage = _usage(member.value) or relay.usage
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
            error = DeadlinePassed("The answer took longer than the route allows, between tokens or in all.")
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
        relay.usage = _usage(member.value)
    return status, rename_model(body, *names)


def _message(body: bytes) -> str:
    """The worker's own words, shortened."""
    try:
        return str(orjson.loads(body)["error"]["message"])[:300]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return "no further words"


def _usage(text: bytes) -> TokenUsage | None:
    try:
        return openai_usage(orjson.loads(text))
    except orjson.JSONDecodeError:
        return None  # not what vLLM writes; the answer is passed on all the same
