"""A scripted model server on a unix socket, for endings that a real vLLM cannot be made to have at will.

What a request gets is said by the last message's text: `plain`, `stream N`, `hang`, `stream-hang N`, `die N` (the connection
closes after N events), `error-in-band N`, `reset` (closes before any body byte), `status CODE`. The forms of the answers
are those of the recorded exchanges (tests/fixtures/vllm).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson

PROMPT_TOKENS = 23


def chunk(position: int, usage: bool, **extra: Any) -> bytes:
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "served",
        "choices": [{"index": 0, "delta": {"content": f"字{position}😀"}, "finish_reason": None}],
    }
    if usage:
        body["usage"] = {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": position,
            "completion_tokens_details": None,
        }
    return b"data: " + orjson.dumps(body | extra) + b"\n\n"


class FakeVllm:
    """What it was asked is in `bodies` and `heads`; `closed` is set each time a client's connection ends early."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[bytes] = []
        self.closed = asyncio.Event()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            length = next(
                int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")
            )
            raw = await reader.readexactly(length)
            if head.startswith(b"GET /health"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                return
            body = orjson.loads(raw)
            self.bodies.append(body)
            await self._answer(body, reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        finally:
            writer.close()

    async def _answer(self, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word, _, number = str(body["messages"][-1]["content"]).partition(" ")
        count = int(number or 0)

        def send(data: bytes) -> None:
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        if word == "status":
            self._whole(
                writer, count, {"error": {"message": "told by the worker", "type": "BadRequestError", "code": count}}
            )
            return
        if word == "plain":
            usage = {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": 20,
                "prompt_tokens_details": {"cached_tokens": 16},
            }
            self._whole(writer, 200, {"model": "served", "choices": [{"message": {"content": "hi"}}], "usage": usage})
            return
        if word == "reset":
            return
        if word == "hang":
            await reader.readexactly(1)  # returns when the client closes
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        if word == "headers-hang":
            await reader.readexactly(1)
        for position in range(count + 1):
            send(chunk(position, usage=True))
        await writer.drain()
        if word == "stream-hang":
            await reader.readexactly(1)
        if word == "die":
            return
        if word == "error-in-band":
            send(b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\n')
        else:
            usage = {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": count,
                "prompt_tokens_details": {"cached_tokens": 16},
            }
            send(b"data: " + orjson.dumps({"model": "served", "choices": [], "usage": usage}) + b"\n\n")
        send(b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    def _whole(self, writer: asyncio.StreamWriter, status: int, body: dict[str, Any]) -> None:
        raw = orjson.dumps(body)
        writer.write(
            f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n".encode()
            + raw
        )


@asynccontextmanager
async def fake_vllm(path: Path) -> AsyncIterator[FakeVllm]:
    fake = FakeVllm()
    server = await asyncio.start_unix_server(fake.handle, str(path))
    try:
        yield fake
    finally:
        server.close()
        await server.wait_closed()
