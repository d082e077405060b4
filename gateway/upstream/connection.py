"""One HTTP/1.1 exchange with a worker: asyncio outside, llhttp (httptools) inside, back-pressure both ways."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import cast

import httptools

__all__ = ["Address", "Exchange", "UpstreamError", "UpstreamUnreachable", "open_exchange", "parse_address"]

# Reading from the worker stops while more than this waits for a slow client: bounds the memory of a stream.
MAX_WAITING_BYTES = 256 * 1024


class UpstreamError(Exception):
    """The worker's connection broke, or its answer is not HTTP. `body_byte_seen` tells whether a retry is thinkable."""

    def __init__(self, message: str, *, body_byte_seen: bool) -> None:
        super().__init__(message)
        self.body_byte_seen = body_byte_seen


class UpstreamUnreachable(UpstreamError):
    """No connection could be made: refused, no such socket."""

    def __init__(self, message: str) -> None:
        super().__init__(message, body_byte_seen=False)


class Address:
    """`unix:/path` or `http://host:port`."""

    __slots__ = ("host", "path", "port")

    def __init__(self, path: str | None, host: str, port: int) -> None:
        self.path, self.host, self.port = path, host, port

    def __repr__(self) -> str:
        return f"unix:{self.path}" if self.path else f"http://{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Reads an address of the configuration. Raises ValueError for other schemes."""
    if text.startswith("unix:"):
        return Address(text[5:], "worker", 80)
    if text.startswith("http://"):
        host, _, port = text[7:].rstrip("/").partition(":")
        return Address(None, host, int(port or 80))
    raise ValueError(f"an address is unix:/path or http://host:port, not {text!r}")


class _Response(asyncio.Protocol):
    """Collects one response. Owns its transport; `Exchange` is its public face."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pieces: deque[bytes] = deque()
        self.headers_complete = asyncio.get_running_loop().create_future()
        self.finished = False
        self.failure: str | None = None
        self.body_byte_seen = False
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiting_bytes = 0
        self._wake: asyncio.Future[None] | None = None

    # asyncio's side
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._fail(f"its answer is not HTTP/1.1 ({problem})")
        if self._waiting_bytes > MAX_WAITING_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.finished:
            self._fail(f"it closed the connection ({exc})" if exc else "it closed the connection")

    # httptools' side
    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if not self.headers_complete.done():
            self.headers_complete.set_result(None)

    def on_body(self, body: bytes) -> None:
        self.body_byte_seen = True
        self.pieces.append(body)
        self._waiting_bytes += len(body)
        self._notify()

    def on_message_complete(self) -> None:
        self.finished = True
        self._notify()
        self.close()

    # the reader's side
    def _fail(self, reason: str) -> None:
        self.failure = self.failure or reason
        if not self.headers_complete.done():
            self.headers_complete.set_result(None)
        self._notify()
        self.close()

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def next_piece(self) -> bytes:
        """All bytes that have come, b"" at the end. Raises UpstreamError where the answer was cut."""
        while not self.pieces:
            if self.finished:
                return b""
            if self.failure is not None:
                raise UpstreamError(self.failure, body_byte_seen=self.body_byte_seen)
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        piece = self.pieces.popleft() if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces.clear()
        if self._waiting_bytes > MAX_WAITING_BYTES and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        self._waiting_bytes = 0
        return piece

    def send(self, head: bytes, body: bytes) -> None:
        if self._transport is not None:
            self._transport.write(head + body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Exchange:
    """A request that was sent, and its answer as it comes. Leaving the `async with` closes the connection, which makes
    vLLM abort a request that is not finished (measured: within 0.1 s, at the end of the running step)."""

    def __init__(self, response: _Response) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Names in lower case."""
        return self._response.headers

    async def next_piece(self, timeout_s: float) -> bytes:
        """Body bytes as they come, b"" at the end. Raises UpstreamError, TimeoutError."""
        if self._response.pieces or self._response.finished:
            return await self._response.next_piece()
        async with asyncio.timeout(timeout_s):
            return await self._response.next_piece()

    async def aclose(self) -> None:
        """Closes the connection; may be repeated."""
        self._response.close()

    async def __aenter__(self) -> Exchange:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._response.close()


async def open_exchange(
    address: Address,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    connect_s: float,
    headers_s: float,
) -> Exchange:
    """Sends a request and returns when the answer's headers are there.

    vLLM sends the headers of a stream at once, those of a plain answer when it is finished, so `headers_s` is the
    first-token deadline. Raises UpstreamUnreachable, UpstreamError, TimeoutError; the connection is then closed.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(connect_s):
            if address.path is not None:
                _, response = await loop.create_unix_connection(_Response, address.path)
            else:
                _, response = await loop.create_connection(_Response, address.host, address.port)
    except TimeoutError:
        raise UpstreamUnreachable(f"no connection to {address!r} within {connect_s:g} s") from None
    except OSError as problem:
        raise UpstreamUnreachable(f"no connection to {address!r}: {problem.strerror or problem}") from None
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.host}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    response.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), body)
    try:
        async with asyncio.timeout(headers_s):
            await response.headers_complete
    except BaseException:
        response.close()
        raise
    if response.failure is not None and not response.status:
        raise UpstreamError(response.failure, body_byte_seen=False)
    return Exchange(response)
