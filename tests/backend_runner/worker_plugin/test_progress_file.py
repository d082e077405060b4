from __future__ import annotations

from pathlib import Path

import pytest

from backend_runner.core.progress import RequestProgress, decode
from backend_runner.probe import ProgressReader

SOURCE = Path(__file__).parents[3] / "backend_runner" / "worker_plugin" / "src"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(SOURCE))
    return tmp_path / "p"


def test_the_runner_reads_what_the_worker_writes(path: Path) -> None:
    from dcugate_worker.progress_file import ProgressFile

    reader = ProgressReader(path)
    assert reader.read() is None
    file = ProgressFile(str(path))
    file.begin()
    file.put("a", 16, 37, 0, 0)
    file.put("b", 4, 4, 0, 1)
    file.end("b", 50.0)
    file.end("unknown", 50.0)
    assert reader.read() is None, "a change is being written"
    file.commit(51.0, step=True)
    picture = reader.read()
    assert picture is not None
    assert (picture.steps, picture.time) == (1, 51.0)
    assert picture.requests == {"a": RequestProgress(16, 37, 0, 0), "b": RequestProgress(4, 4, 0, 1, 50.0)}
    assert reader.read() is None, "nothing changed"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_preempted_request_keeps_what_was_computed(path: Path) -> None:
    from dcugate_worker.progress_file import ProgressFile

    file = ProgressFile(str(path))
    file.begin()
    file.put("a", 40, 37, 16, 3)
    file.put("a", 0, 37, 0, 3)
    file.commit(1.0, step=False)
    picture = decode(path.read_bytes())
    assert picture is not None
    assert picture.requests["a"] == RequestProgress(40, 37, 16, 3)


def test_the_oldest_final_count_makes_room(path: Path) -> None:
    from dcugate_worker.progress_file import ProgressFile

    file = ProgressFile(str(path), slots=3)
    file.begin()
    for name in ("a", "b", "c"):
        file.put(name, 1, 1, 0, 0)
    file.end("b", 1.0)
    file.end("a", 2.0)
    file.put("d", 1, 1, 0, 0)
    file.put("e", 1, 1, 0, 0)
    file.put("too many", 1, 1, 0, 0)
    file.commit(3.0, step=True)
    picture = decode(path.read_bytes())
    assert picture is not None
    assert set(picture.requests) == {"c", "d", "e"}


def test_a_long_id_is_cut_to_its_place(path: Path) -> None:
    from dcugate_worker.progress_file import ProgressFile

    file = ProgressFile(str(path))
    file.begin()
    file.put("x" * 100, 1, 1, 0, 0)
    file.commit(1.0, step=True)
    picture = decode(path.read_bytes())
    assert picture is not None
    assert set(picture.requests) == {"x" * 64}
