from __future__ import annotations

import traceback
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keys.admin import authenticate, create_key, revoke_key
from keys.errors import AmbiguousName, InvalidKey, NoSuchKey, UnknownKey
from keys.model import Key
from keys.secret import new_secret
from keys.stores.base import Store
from keys.stores.sqlite import open_sqlite

PEPPER = b"p" * 32
NOW_MS = 1_700_000_000_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_sqlite(tmp_path / "dcugate.db")
    yield opened
    await opened.aclose()


async def test_whoever_presents_the_secret_gets_the_key(store: Store) -> None:
    key, secret = await create_key(store, PEPPER, "  小明's app ", "chat", 1000, NOW_MS)
    assert (key.name, key.purpose, key.status, key.limit_tokens, key.created_ms) == (
        "小明's app",
        "chat",
        "active",
        1000,
        NOW_MS,
    )
    assert await authenticate(store, PEPPER, secret.reveal()) == key
    assert await store.list_keys() == [key]


async def test_the_secret_itself_is_kept_nowhere(store: Store, tmp_path: Path) -> None:
    key, secret = await create_key(store, PEPPER, "app", "agent", None, NOW_MS)
    await store.aclose()
    kept = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert secret.reveal().encode() not in kept
    assert secret.reveal()[13:-4].encode() not in kept
    assert secret.reveal() not in repr(key)


@pytest.mark.parametrize(
    ("name", "purpose", "limit_tokens", "reason"),
    [
        ("", "chat", None, "name"),
        ("  ", "chat", None, "name"),
        ("a\nb", "chat", None, "name"),
        ("a\x1b[31m", "chat", None, "name"),
        ("a" * 65, "chat", None, "name"),
        ("a", "", None, "purpose"),
        ("a", "system", None, "purpose"),
        ("a", "chat", 0, "limit_tokens"),
        ("a", "chat", -5, "limit_tokens"),
        ("a", "chat", 10**19, "limit_tokens"),
    ],
)
async def test_a_key_that_cannot_be_is_refused_and_not_kept(
    store: Store, name: str, purpose: str, limit_tokens: int | None, reason: str
) -> None:
    with pytest.raises(InvalidKey) as refused:
        await create_key(store, PEPPER, name, purpose, limit_tokens, NOW_MS)
    assert refused.value.reason == reason
    assert await store.list_keys() == []


async def test_typo_unknown_and_revoked_are_refused_alike_and_never_quoted(store: Store) -> None:
    key, secret = await create_key(store, PEPPER, "app", "chat", None, NOW_MS)
    await revoke_key(store, key.id)
    other = new_secret("chat").reveal()
    messages = set()
    for presented in (secret.reveal(), other, other[:-1] + "!", "", "x" * 100_000, "密钥", "\udcff"):
        with pytest.raises(UnknownKey) as refused:
            await authenticate(store, PEPPER, presented)
        messages.add(str(refused.value))
        if presented:
            assert presented not in "".join(traceback.format_exception(refused.value)) + repr(refused.value)
    assert len(messages) == 1


async def test_another_pepper_recognises_nothing(store: Store) -> None:
    _, secret = await create_key(store, PEPPER, "app", "chat", None, NOW_MS)
    with pytest.raises(UnknownKey):
        await authenticate(store, b"q" * 32, secret.reveal())


async def test_a_malformed_secret_costs_no_look_up(store: Store) -> None:
    await store.aclose()  # any look-up would raise StoreUnavailable
    with pytest.raises(UnknownKey):
        await authenticate(store, PEPPER, "sk-dcu-chat-typo")


async def test_a_key_is_revoked_by_its_id_or_its_name_and_again_without_harm(store: Store) -> None:
    first, _ = await create_key(store, PEPPER, "app", "chat", None, NOW_MS)
    second, _ = await create_key(store, PEPPER, "other", "chat", None, NOW_MS)
    assert (await revoke_key(store, first.id)).status == "revoked"
    assert (await revoke_key(store, "other")).id == second.id
    assert (await revoke_key(store, "other")).status == "revoked"
    assert {key.status for key in await store.list_keys()} == {"revoked"}


async def test_a_name_means_its_only_active_key(store: Store) -> None:
    old, _ = await create_key(store, PEPPER, "app", "chat", None, NOW_MS)
    new, _ = await create_key(store, PEPPER, "app", "chat", None, NOW_MS)
    with pytest.raises(AmbiguousName) as refused:
        await revoke_key(store, "app")
    assert set(refused.value.ids) == {old.id, new.id}
    await revoke_key(store, old.id)
    assert (await revoke_key(store, "app")).id == new.id


async def test_an_id_comes_before_a_name(store: Store) -> None:
    key, _ = await create_key(store, PEPPER, "app", "chat", None, NOW_MS)
    impostor, _ = await create_key(store, PEPPER, key.id, "chat", None, NOW_MS)
    assert (await revoke_key(store, key.id)).id == key.id
    statuses: dict[str, Key] = {found.id: found for found in await store.list_keys()}
    assert statuses[impostor.id].status == "active"


async def test_what_does_not_exist_is_not_revoked(store: Store) -> None:
    with pytest.raises(NoSuchKey):
        await revoke_key(store, "nobody")
