"""How many prompt tokens a body may have, before the worker has counted them."""

from __future__ import annotations

from typing import Any

__all__ = ["prompt_tokens_upper"]

BYTES_PER_TOKEN = 2  # below what byte-level BPE makes of English (4), Chinese (2.5 to 3.5) and code (3)
TOKENS_PER_MESSAGE = 16  # role, separators and the template's own words


def _text_bytes(value: Any) -> int:
    """UTF-8 bytes of all texts in a JSON value. A loop, not a recursion: the parser admits deeper nesting than Python."""
    size, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            size += len(item.encode("utf-8", "surrogatepass"))
        elif isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            size += sum(map(len, item))
            waiting.extend(item.values())
        else:
            size += 4
    return size


def prompt_tokens_upper(body: dict[str, Any]) -> int:
    """An upper estimate of a chat body's prompt tokens, from the bytes of its messages and tools.

    It decides what is reserved, never what is charged: the charge is the engine's own count.
    """
    messages = body.get("messages")
    count = len(messages) if isinstance(messages, list) else 1
    size = _text_bytes(messages) + _text_bytes(body.get("tools") or [])
    return -(-size // BYTES_PER_TOKEN) + TOKENS_PER_MESSAGE * (count + 1)
