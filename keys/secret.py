"""Key secrets: how they look, how a typo is told from a key, and the digest under which a key is stored.

A secret is `sk-dcu-<purpose>-<43 base62 characters><6 characters of checksum>`: 256 random bits, then the CRC-32 of all
before it in base62. The checksum is no protection, it only lets a mistyped key be refused without a look-up; CRC-32
finds every change within one character. What is stored is a keyed BLAKE2b digest: a stolen database without its pepper
tests no guesses.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from typing import NoReturn

__all__ = ["PEPPER_BYTES", "Secret", "digest", "hint", "looks_valid", "new_key_id", "new_secret"]

PEPPER_BYTES = 32

_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_RANDOM_CHARACTERS = 43  # 62**43 > 2**256
_CHECKSUM_CHARACTERS = 6  # 62**6 > 2**32
_PURPOSE = re.compile(r"[a-z][a-z0-9]{0,15}", re.ASCII)
_FORM = re.compile(r"sk-dcu-[a-z][a-z0-9]{0,15}-[0-9A-Za-z]{49}", re.ASCII)
_MASK = "***"


class Secret:
    """A key secret that does not show itself: printing, formatting and logging give `***`; `reveal` gives the text.

    It refuses to be pickled, so it cannot leave the process by accident.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself. Show it once to its owner; store only its `digest`."""
        return self._text

    def __repr__(self) -> str:
        return _MASK

    def __str__(self) -> str:
        return _MASK

    def __format__(self, spec: str) -> str:
        return format(_MASK, spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._text), _bytes(other._text))

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key secret is not pickled")


def new_secret(purpose: str) -> Secret:
    """Return a fresh secret for a purpose (a short lower-case word). Raises ValueError for any other purpose."""
    if not _PURPOSE.fullmatch(purpose):
        raise ValueError("a purpose in a secret is 1 to 16 lower-case letters and digits, a letter first")
    body = f"sk-dcu-{purpose}-{_random(_RANDOM_CHARACTERS)}"
    return Secret(body + _checksum(body))


def new_key_id() -> str:
    """Return a fresh public key id: `k_` and 16 base62 characters."""
    return "k_" + _random(16)


def looks_valid(text: str) -> bool:
    """Tell whether a presented text has the form and the checksum of a secret. Any text may be given."""
    if not _FORM.fullmatch(text):
        return False
    return _checksum(text[:-_CHECKSUM_CHARACTERS]) == text[-_CHECKSUM_CHARACTERS:]


def digest(text: str, pepper: bytes) -> bytes:
    """Return the 32 bytes under which a secret is stored; `pepper` is 1 to 64 bytes, the same for a whole store."""
    if not pepper:
        raise ValueError("the pepper is empty")
    return hashlib.blake2b(_bytes(text), digest_size=32, key=pepper, person=b"dcugate-key").digest()


def hint(text: str) -> str:
    """Return what may be shown of a secret, like `sk-dcu-chat-…a1b2`. Raises ValueError for what is no secret."""
    if not looks_valid(text):
        raise ValueError("not a key secret")
    return f"{text[: text.rindex('-') + 1]}…{text[-4:]}"


def _random(characters: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(characters))


def _checksum(body: str) -> str:
    rest = zlib.crc32(body.encode("ascii"))
    characters = []
    for _ in range(_CHECKSUM_CHARACTERS):
        rest, place = divmod(rest, 62)
        characters.append(_BASE62[place])
    return "".join(reversed(characters))


def _bytes(text: str) -> bytes:
    # Header values may hold surrogates (undecodable bytes); no text may make the digest raise.
    return text.encode("utf-8", "backslashreplace")
