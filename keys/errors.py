"""Everything this package raises on purpose.

KeysError                 .status: the HTTP status that fits
├── UnknownKey            401  the secret is malformed, unknown or revoked (never says which)
├── QuotaExceeded         429  the reservation does not fit
├── DuplicateReservation  409  the request id is already reserved or settled
├── InvalidKey            400  a key as described cannot be made
├── NoSuchKey             404  no key has this id or name
├── AmbiguousName         409  several active keys have this name
└── StoreUnavailable      503  the store cannot answer; .reason says why

No message holds a key secret. Messages are English; `keys.explain` gives them in the user's language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

__all__ = [
    "AmbiguousName",
    "DuplicateReservation",
    "InvalidKey",
    "InvalidReason",
    "KeysError",
    "NoSuchKey",
    "QuotaExceeded",
    "StoreReason",
    "StoreUnavailable",
    "UnknownKey",
]

StoreReason = Literal[
    "busy",
    "closed",
    "damaged",
    "disk_full",
    "foreign",
    "io_error",
    "newer_schema",
    "not_writable",
    "pepper_damaged",
    "pepper_exposed",
    "pepper_missing",
]
InvalidReason = Literal["name", "purpose", "limit_tokens", "taken"]

_STORE_MESSAGES: dict[StoreReason, str] = {
    "busy": "{path} is locked by another process; try again, or end the process that holds it",
    "closed": "{path} has been closed",
    "damaged": "{path} is damaged or no database; restore a copy, or move it away to start afresh",
    "disk_full": "no space is left on the disk that holds {path}; free some and try again",
    "foreign": "{path} is another program's database; choose another state folder",
    "io_error": "the disk failed or took no more while using {path}; check its space, your quota and its health",
    "newer_schema": "{path} was written by a newer dcugate; upgrade this one, or restore an older copy",
    "not_writable": "cannot open or write {path}; check that it exists and who owns it",
    "pepper_damaged": "{path} does not hold 32 bytes; restore a copy (without it no issued key is recognised)",
    "pepper_exposed": "{path} can be read by every user of this machine; run: chmod 600 {path}",
    "pepper_missing": "{path} is missing though keys were issued with it; restore it, or move the database away too",
}
_INVALID_MESSAGES: dict[InvalidReason, str] = {
    "name": "a key's name has 1 to 64 printable characters",
    "purpose": "a key's purpose is chat or agent",
    "limit_tokens": "a key's token limit is a whole number from 1 to 9000000000000000000",
    "taken": "another key has the same digest",
}


class KeysError(Exception):
    """The base of every error here; `status` is the HTTP status that fits."""

    status: ClassVar[int] = 500


class UnknownKey(KeysError):
    """The presented secret opens nothing. One message for malformed, unknown and revoked: nothing can be probed."""

    status = 401

    def __init__(self) -> None:
        super().__init__("the API key is not valid")


class QuotaExceeded(KeysError):
    """The reservation does not fit into the named limit.

    `remaining_tokens` is what was left (never below 0), `requested_tokens` what was asked for.
    """

    status = 429

    def __init__(self, limit_name: str, remaining_tokens: int, requested_tokens: int) -> None:
        super().__init__(f"{limit_name}: {requested_tokens} tokens were requested, {remaining_tokens} are left")
        self.limit_name = limit_name
        self.remaining_tokens = remaining_tokens
        self.requested_tokens = requested_tokens


class DuplicateReservation(KeysError):
    """The request id was reserved or settled before; the caller has a bug or replays a request."""

    status = 409

    def __init__(self, request_id: str) -> None:
        super().__init__(f"request {request_id} is already reserved or settled")
        self.request_id = request_id


class InvalidKey(KeysError):
    """A key as described cannot be made; `reason` names the field."""

    status = 400

    def __init__(self, reason: InvalidReason) -> None:
        super().__init__(_INVALID_MESSAGES[reason])
        self.reason: InvalidReason = reason


class NoSuchKey(KeysError):
    """No key has this id or name."""

    status = 404

    def __init__(self, id_or_name: str) -> None:
        super().__init__(f"no key has the id or name {id_or_name!r}")
        self.id_or_name = id_or_name


class AmbiguousName(KeysError):
    """Several active keys have this name; `ids` are theirs."""

    status = 409

    def __init__(self, name: str, ids: Sequence[str]) -> None:
        super().__init__(f"{len(ids)} active keys are named {name!r}; give one id: {', '.join(ids)}")
        self.name = name
        self.ids = tuple(ids)


class StoreUnavailable(KeysError):
    """The store, or the state folder around it, cannot answer now; `reason` says why, `path` where."""

    status = 503

    def __init__(self, reason: StoreReason, path: str) -> None:
        super().__init__(_STORE_MESSAGES[reason].format(path=path))
        self.reason: StoreReason = reason
        self.path = path
