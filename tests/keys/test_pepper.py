from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from keys.errors import StoreUnavailable
from keys.pepper import load_or_make_pepper


def test_the_first_call_makes_it_for_its_owner_only_and_later_calls_read_it(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    pepper = load_or_make_pepper(path)
    assert len(pepper) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_make_pepper(path) == pepper
    assert os.listdir(tmp_path) == ["pepper"]


def test_racing_first_calls_get_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    with ThreadPoolExecutor(8) as threads:
        peppers = set(threads.map(lambda _: load_or_make_pepper(path), range(32)))
    assert peppers == {path.read_bytes()}
    assert os.listdir(tmp_path) == ["pepper"]


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pepper"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(StoreUnavailable) as refused:
        load_or_make_pepper(path)
    assert refused.value.reason == "pepper_damaged"
    assert path.read_bytes() == content


def test_a_file_that_every_user_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pepper"
    load_or_make_pepper(path)
    path.chmod(0o644)
    with pytest.raises(StoreUnavailable) as refused:
        load_or_make_pepper(path)
    assert refused.value.reason == "pepper_exposed"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable) as refused:
        load_or_make_pepper(tmp_path / "file" / "pepper")
    assert refused.value.reason == "not_writable"


def test_a_full_disk_is_said_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("keys.pepper.os.fsync", full)
    with pytest.raises(StoreUnavailable) as refused:
        load_or_make_pepper(tmp_path / "pepper")
    assert refused.value.reason == "disk_full"
    assert os.listdir(tmp_path) == []
