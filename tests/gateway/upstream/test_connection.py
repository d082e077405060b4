from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gateway.upstream.connection import (
    MAX_WAITING_BYTES,
    UpstreamError,
    UpstreamUnreachable,
    open_exchange,
    parse_address,
)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def exchange_with(serve: Serve, read: bool = True) -> tuple[int, bytes]:
    with TemporaryDirectory() as folder:
        path = f"{folder}/s"

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            try:
                await serve(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_unix_server(handle, path)
        try:
            async with await open_exchange(parse_address(f"unix:{path}"), "POST", "/", {}, b"{}", 1, 1) as exchange:
                body = b""
                while read and (piece := await exchange.next_piece(1)):
                    body += piece
                return exchange.status, body
        finally:
            server.close()
            await server.wait_closed()


def answers(*pieces: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return serve


async def test_a_chunked_answer_cut_anywhere_comes_out_whole() -> None:
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    for at in range(1, len(raw), 5):
        assert await exchange_with(answers(raw[:at], raw[at:])) == (200, b"hello world")


async def test_an_answer_cut_inside_its_body_is_an_error_that_forbids_a_retry() -> None:
    with pytest.raises(UpstreamError) as caught:
        await exchange_with(answers(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"))
    assert caught.value.body_byte_seen


async def test_a_connection_closed_after_the_headers_allows_a_retry() -> None:
    with pytest.raises(UpstreamError) as caught:
        await exchange_with(answers(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"))
    assert not caught.value.body_byte_seen


@pytest.mark.parametrize("raw", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200"])
async def test_what_is_not_an_answer_is_an_upstream_error(raw: bytes) -> None:
    with pytest.raises(UpstreamError):
        await exchange_with(answers(raw))


async def test_nobody_there_is_unreachable(tmp_path: Path, unused_tcp_port: int) -> None:
    for address in (f"unix:{tmp_path}/none", f"http://127.0.0.1:{unused_tcp_port}"):
        with pytest.raises(UpstreamUnreachable, match="no connection"):
            await open_exchange(parse_address(address), "GET", "/", {}, b"", 1, 1)


async def test_silence_is_a_time_out() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    with pytest.raises(TimeoutError):
        await exchange_with(silent)


async def test_a_slow_reader_stops_the_read_from_the_worker() -> None:
    """The worker cannot push more than the bound plus the sockets' own buffers while nobody reads."""
    sent = 0
    stuck = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            for _ in range(1000):
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                async with asyncio.timeout(0.5):
                    await writer.drain()
                sent += 65536
        except (TimeoutError, ConnectionError):
            stuck.set()
            writer.transport.abort()

    with TemporaryDirectory() as folder:
        server = await asyncio.start_unix_server(pour, f"{folder}/s")
        async with await open_exchange(parse_address(f"unix:{folder}/s"), "GET", "/", {}, b"", 1, 1):
            async with asyncio.timeout(10):
                await stuck.wait()
        server.close()
        await server.wait_closed()
    assert sent < 16 * MAX_WAITING_BYTES


def test_addresses() -> None:
    assert parse_address("unix:/a/b").path == "/a/b"
    assert (parse_address("http://h:81").host, parse_address("http://h").port) == ("h", 80)
    with pytest.raises(ValueError, match="unix:/path"):
        parse_address("ftp://h")
