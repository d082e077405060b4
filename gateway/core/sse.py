"""Cuts a byte stream into server-sent events, without changing a byte.

Source of the grammar: WHATWG HTML, "server-sent events", parsing. An event ends at an empty line; a line ends at
LF, CRLF or CR. vLLM writes LF only (recorded exchanges); CRLF is taken as well because proxies rewrite it.
"""

from __future__ import annotations

__all__ = ["EventSplitter", "EventTooLarge", "event_data"]

MAX_EVENT_BYTES = 16 * 1024 * 1024  # one event with logprobs of a long chunk stays far below 1 MiB


class EventTooLarge(ValueError):
    """An event without an end after MAX_EVENT_BYTES; the caller closes the upstream connection."""


class EventSplitter:
    """Feed it pieces as they come; it hands out whole events, each with its terminating empty line.

    The concatenation of everything handed out plus `rest()` is the concatenation of everything fed.
    """

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Whole events that `piece` completes. Raises EventTooLarge."""
        buffer = self._buffer + piece if self._buffer else piece
        events = []
        start = 0
        while True:
            lf = buffer.find(b"\n\n", start)
            crlf = buffer.find(b"\r\n\r\n", start, lf if lf >= 0 else len(buffer))
            if crlf >= 0:
                end = crlf + 4
            elif lf >= 0:
                end = lf + 2
            else:
                break
            events.append(buffer[start:end])
            start = end
        self._buffer = buffer[start:]
        if len(self._buffer) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def rest(self) -> bytes:
        """Bytes after the last whole event: not empty when the stream was cut inside an event."""
        return self._buffer


def event_data(event: bytes) -> bytes:
    """The payload of an event's `data:` line, or b"" for comments. vLLM writes one such line an event."""
    at = 0 if event.startswith(b"data:") else event.find(b"\ndata:") + 1
    if at == 0 and not event.startswith(b"data:"):
        return b""
    end = event.find(b"\n", at)
    return event[at + 5 : end if end >= 0 else len(event)].strip()
