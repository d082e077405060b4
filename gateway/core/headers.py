"""Request ids and the headers that cross the gateway."""

from __future__ import annotations

__all__ = ["STREAM_HEADERS", "new_request_id", "presented_key"]

from collections.abc import Mapping

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_LENGTH = 26  # 36**26 > 2**128

# Proxies in front must neither buffer nor transform a stream.
STREAM_HEADERS = {"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"}


def new_request_id(random_bytes: bytes) -> str:
    """`dcu-` and 26 characters from 17 random bytes. The runner finds ids of this form in the engine's own ids."""
    number = int.from_bytes(random_bytes, "big")
    characters = []
    for _ in range(ID_LENGTH):
        number, digit = divmod(number, 36)
        characters.append(_ALPHABET[digit])
    return "dcu-" + "".join(characters)


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key a client shows: `Authorization: Bearer …`, else `x-api-key`; None when neither is there."""
    scheme, _, value = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key", "").strip() or None
