from __future__ import annotations

from pathlib import Path

import pytest

from backend_runner.launchers import environment
from backend_runner.launchers.base import LaunchFailed
from backend_runner.launchers.environment import find_python, plugin_folder


def test_the_workers_file_comes_first_then_the_variable_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "PACKAGE_PARENT", tmp_path / "nowhere")
    a, b = tmp_path / "a", tmp_path / "b"
    a.touch()
    b.touch()
    assert find_python(str(a), {"DCUGATE_WORKER_PYTHON": str(b)}, tmp_path) == a
    assert find_python(None, {"DCUGATE_WORKER_PYTHON": str(b)}, tmp_path) == b
    with pytest.raises(LaunchFailed, match="make env-worker"):
        find_python(None, {}, tmp_path)
    beside = tmp_path / ".venv-worker" / "bin" / "python"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert find_python(None, {}, tmp_path) == beside


def test_a_named_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match=r"\[worker\] python names /no/python"):
        find_python("/no/python", {}, tmp_path)


def test_the_plugin_lies_beside_the_runner() -> None:
    assert (plugin_folder() / "dcugate_worker" / "progress.py").is_file()
