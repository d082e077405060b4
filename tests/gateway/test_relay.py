"""The relay alone: recorded streams through it, cut anywhere, come out under exactly the named edits."""

from __future__ import annotations

import random
from pathlib import Path

import orjson
import pytest

from gateway.core.errors import WorkerFailed
from gateway.core.sse import EventSplitter, event_data
from gateway.relay import Relay, StreamRelay, relay_plain
from gateway.upstream.connection import UpstreamError

FOLDER = Path(__file__).parents[1] / "fixtures" / "vllm"
STREAMS = sorted(FOLDER.glob("*stream*.http"))


class Recorded:
    """An exchange that plays pieces; b"" at the end, or a cut."""

    def __init__(self, pieces: list[bytes], status: int = 200, cut: bool = False) -> None:
        self.pieces, self.status, self.cut = pieces, status, cut
        self.headers: dict[str, str] = {}

    async def next_piece(self, timeout_s: float) -> bytes:
        if self.pieces:
            return self.pieces.pop(0)
        if self.cut:
            raise UpstreamError("it closed the connection", body_byte_seen=True)
        return b""


class Collected:
    def __init__(self) -> None:
        self.data = b""
        self.started = False

    async def start(self, status: int, headers: dict[str, str]) -> None:
        self.started = True

    async def write(self, data: bytes) -> None:
        self.data += data


def body(path: Path) -> bytes:
    return path.read_bytes().partition(b"\r\n\r\n")[2]


async def through(pieces: list[bytes], wants: tuple[bool, bool], cut: bool = False) -> tuple[bytes, Relay]:
    relay, sink = Relay(), Collected()
    stream = StreamRelay(relay, Recorded(pieces, cut=cut), *wants, ("tiny", "public"))  # type: ignore[arg-type]
    last = await stream.run(sink, "dcu-1", 1, 1, 5)
    return sink.data + last, relay


@pytest.mark.parametrize("path", STREAMS, ids=lambda p: p.stem)
@pytest.mark.parametrize("wants", [(False, False), (True, False), (True, True)])
async def test_only_the_named_edits_are_made_wherever_the_stream_is_cut(path: Path, wants: tuple[bool, bool]) -> None:
    stream = body(path)
    expected, usage = [], None
    for event in EventSplitter().feed(stream):
        if event_data(event) == b"[DONE]":
            expected.append("[DONE]")
            continue
        value = orjson.loads(event_data(event))
        usage = value.get("usage") or usage
        if "usage" in value and not value["choices"] and not wants[0]:
            continue
        if "usage" in value and value["choices"] and not wants[1]:
            del value["usage"]
        expected.append(value | {"model": "public"})
    offsets = random.Random(path.stem).sample(range(1, len(stream)), 50)
    for at in offsets:
        got, relay = await through([stream[:at], stream[at:]], wants)
        payloads = [event_data(e) for e in EventSplitter().feed(got)]
        assert [orjson.loads(p) if p != b"[DONE]" else "[DONE]" for p in payloads] == expected
        assert (relay.usage.output_tokens if relay.usage else None) == (usage["completion_tokens"] if usage else None)


async def test_bytes_are_untouched_where_nothing_is_to_edit() -> None:
    stream = body(FOLDER / "chat-stream-include-usage.response.http").replace(b'"tiny"', b'"public"')
    got, _ = await through([stream], (True, True))
    assert got == stream


async def test_a_recorded_engine_death_is_a_failure_though_done_follows() -> None:
    stream = body(FOLDER / "death-worker-chat.response.http")
    _, relay = await through([stream], (False, False))
    assert isinstance(relay.failure, WorkerFailed)


async def test_a_stream_without_done_is_a_failure_with_an_error_event() -> None:
    got, relay = await through([b'data: {"choices":[1]}\n\n'], (False, False))
    assert relay.failure is not None
    assert got.endswith(b"data: [DONE]\n\n")
    assert b"worker_failed" in got
    got, relay = await through([b'data: {"choices":[1]}\n\n', b"data: {"], (False, False), cut=True)
    assert relay.failure is not None
    assert b"data: {data" not in got


async def test_before_the_first_event_a_cut_is_raised_so_that_it_can_be_retried() -> None:
    with pytest.raises(UpstreamError):
        await through([b": keep-alive\n"], (False, False), cut=True)


async def test_a_recorded_plain_answer_keeps_its_bytes_but_for_the_name() -> None:
    raw, relay = body(FOLDER / "chat.response.http"), Relay()
    status, got = await relay_plain(relay, Recorded([raw[:100], raw[100:]]), 1, ("tiny", "public"))  # type: ignore[arg-type]
    assert (status, got) == (200, raw.replace(b'"model":"tiny"', b'"model":"public"'))
    assert relay.usage is not None
    assert (relay.usage.prompt_tokens, relay.usage.output_tokens) == (23, 20)


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_a_workers_fault_is_not_shown_as_the_clients(status: int) -> None:
    answer = Recorded([b'{"error":{"message":"told"}}'], status)
    with pytest.raises(WorkerFailed):
        await relay_plain(Relay(), answer, 1, ("a", "b"))  # type: ignore[arg-type]
