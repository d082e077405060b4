from __future__ import annotations

import os
from pathlib import Path

import pytest

from keys.admin import create_key
from keys.errors import StoreUnavailable
from keys.state import database_path, default_state_dir, has_database, open_state, pepper_path


def test_the_default_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DCUGATE_STATE", "/var/lib/dcugate")
    assert default_state_dir() == Path("/var/lib/dcugate")
    monkeypatch.setenv("DCUGATE_STATE", "~/state")
    assert default_state_dir() == tmp_path / "state"
    for unset in ("", None):
        monkeypatch.delenv("DCUGATE_STATE") if unset is None else monkeypatch.setenv("DCUGATE_STATE", unset)
        assert default_state_dir() == tmp_path / ".local" / "state" / "dcugate"


async def test_a_fresh_folder_is_made_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    state = await open_state(folder)
    await state.store.aclose()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(os.listdir(folder)) == ["dcugate.db", "pepper"]
    assert all((folder / name).stat().st_mode & 0o777 == 0o600 for name in os.listdir(folder))
    assert state.pepper.hex() not in repr(state)
    assert repr(state.pepper) not in repr(state)


async def test_a_lost_pepper_is_refused_where_keys_exist(tmp_path: Path) -> None:
    state = await open_state(tmp_path)
    await create_key(state.store, state.pepper, "app", "chat", None, 0)
    await state.store.aclose()
    pepper_path(tmp_path).unlink()
    with pytest.raises(StoreUnavailable) as refused:
        await open_state(tmp_path)
    assert refused.value.reason == "pepper_missing"
    assert not pepper_path(tmp_path).exists()


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreUnavailable) as refused:
            await open_state(folder)
        assert refused.value.reason == "not_writable"


async def test_a_database_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    database_path(tmp_path).mkdir()
    with pytest.raises(StoreUnavailable) as refused:
        await open_state(tmp_path)
    assert refused.value.reason == "not_writable"


async def test_a_folder_has_a_database_once_it_was_opened(tmp_path: Path) -> None:
    assert not has_database(tmp_path)
    await (await open_state(tmp_path)).store.aclose()
    assert has_database(tmp_path)
