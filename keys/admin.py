"""Use cases over a store: issue a key, revoke it, and find the key behind a presented secret."""

from __future__ import annotations

from dataclasses import replace

from keys import secret as secrets_
from keys.errors import AmbiguousName, InvalidKey, NoSuchKey, UnknownKey
from keys.model import PURPOSES, Key
from keys.secret import Secret
from keys.stores.base import Store

__all__ = ["authenticate", "create_key", "revoke_key"]

_LONGEST_NAME = 64
_HIGHEST_LIMIT = 9_000_000_000_000_000_000  # below SQLite's largest integer


async def create_key(
    store: Store, pepper: bytes, name: str, purpose: str, limit_tokens: int | None, now_ms: int
) -> tuple[Key, Secret]:
    """Issue a key and return it with its secret, which exists nowhere else: show it once.

    Names need not be unique (a key is rotated by issuing a second one). Raises InvalidKey for a bad name, purpose or
    limit, StoreUnavailable where the key could not be kept; then no key was issued.
    """
    name = name.strip()
    if not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        raise InvalidKey("name")
    if purpose not in PURPOSES:
        raise InvalidKey("purpose")
    if limit_tokens is not None and not 1 <= limit_tokens <= _HIGHEST_LIMIT:
        raise InvalidKey("limit_tokens")
    secret = secrets_.new_secret(purpose)
    key = Key(
        id=secrets_.new_key_id(),
        name=name,
        purpose=purpose,
        status="active",
        created_ms=now_ms,
        hint=secrets_.hint(secret.reveal()),
        digest=secrets_.digest(secret.reveal(), pepper),
        limit_tokens=limit_tokens,
    )
    await store.put_key(key)
    return key, secret


async def revoke_key(store: Store, id_or_name: str) -> Key:
    """Revoke one key for good and return it as it is now; revoking a revoked key changes nothing.

    An id comes before a name; among keys of one name the active one is meant. Every process refuses the key within a
    second. Raises NoSuchKey, or AmbiguousName where several active keys have the name.
    """
    keys = await store.list_keys()
    found = [key for key in keys if key.id == id_or_name] or [key for key in keys if key.name == id_or_name]
    if not found:
        raise NoSuchKey(id_or_name)
    active = [key for key in found if key.status == "active"]
    if len(active) > 1:
        raise AmbiguousName(id_or_name, [key.id for key in active])
    if not active:
        return found[-1]
    revoked = replace(active[0], status="revoked")
    await store.put_key(revoked)
    return revoked


async def authenticate(store: Store, pepper: bytes, presented_text: str) -> Key:
    """Return the active key whose secret was presented.

    Raises UnknownKey, the same for a malformed, an unknown and a revoked secret; a malformed one (a typo) costs no
    look-up. Raises StoreUnavailable where the store cannot tell.
    """
    if not secrets_.looks_valid(presented_text):
        raise UnknownKey
    key = await store.find_key(secrets_.digest(presented_text, pepper))
    if key is None or key.status != "active":
        raise UnknownKey
    return key
