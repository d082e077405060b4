from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import sse
from gateway.core.sse import EventSplitter, EventTooLarge, event_data

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "vllm").glob("*stream*.http"))
TEXT = 'data: {"a":"今天😀"}\n\n: keep-alive\n\nevent: x\r\ndata: 1\r\n\r\ndata: [DONE]\n\n'.encode()


def body(path: Path) -> bytes:
    return path.read_bytes().partition(b"\r\n\r\n")[2]


def test_cut_at_every_byte_the_events_are_the_same() -> None:
    whole = EventSplitter().feed(TEXT)
    assert len(whole) == 4
    for at in range(len(TEXT) + 1):
        splitter = EventSplitter()
        assert splitter.feed(TEXT[:at]) + splitter.feed(TEXT[at:]) == whole


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_recorded_streams_come_out_byte_for_byte(path: Path) -> None:
    splitter = EventSplitter()
    stream = body(path)
    events = [e for i in range(0, len(stream), 7) for e in splitter.feed(stream[i : i + 7])]
    assert b"".join(events) + splitter.rest() == stream
    assert event_data(events[-1]) == b"[DONE]"


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"data:", b" "]), max_size=40), st.integers(0, 60))
def test_nothing_is_lost_or_reordered(pieces: list[bytes], at: int) -> None:
    text = b"".join(pieces)
    splitter = EventSplitter()
    events = splitter.feed(text[:at]) + splitter.feed(text[at:])
    assert b"".join(events) + splitter.rest() == text
    assert events == EventSplitter().feed(text)


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 10)
    with pytest.raises(EventTooLarge):
        EventSplitter().feed(b"data: 0123456789")


def test_comments_have_no_data() -> None:
    assert event_data(b": keep-alive\n\n") == b""
    assert event_data(b"event: ping\ndata: {}\n\n") == b"{}"
