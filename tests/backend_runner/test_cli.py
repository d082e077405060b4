from __future__ import annotations

from pathlib import Path

import pytest

from backend_runner.cli import load_files, main
from backend_runner.core.worker_config import ConfigProblems


def test_the_problems_of_all_files_come_together(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "c.toml"
    a.write_text("[server]\n")
    b.write_bytes(b"\xff")
    with pytest.raises(ConfigProblems) as caught:
        load_files([a, b, c])
    assert caught.value.reason.splitlines() == [
        f"{a}: [model] needs model_path",
        f"{a}:1: [server] needs served_model_name",
        f"{b}: it is not UTF-8 text",
        f"{c}: cannot be read: No such file or directory",
    ]


def test_a_bad_file_is_exit_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--state", str(tmp_path), "--worker", str(tmp_path / "none.toml")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_state_folder_that_cannot_be_one_is_exit_status_2(
    tmp_path: Path, worker_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["--state", str(tmp_path / "file"), "--worker", str(worker_file)]) == 2
    assert "cannot use the state folder" in capsys.readouterr().err
    assert main(["--state", str(tmp_path / ("x" * 100)), "--worker", str(worker_file)]) == 2
    assert "too long for a unix socket" in capsys.readouterr().err
