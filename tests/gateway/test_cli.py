"""The command line as a user types it: each bad input is one clear line and exit code 2, and leaves nothing running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def dcugate(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gateway", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        env=os.environ | {"LANG": "C", "LC_ALL": "C", "COLUMNS": "200", "PYTHONPATH": str(ROOT)} | environment,
    )


def the_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr.strip()


def test_the_example_configuration_works_as_it_stands() -> None:
    done = dcugate("config", "check", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"ok": True, "models": ["smollm2-135m-instruct"]}


def test_config_check_reports_every_problem_of_every_file_with_line_numbers(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text('[server]\nserved_model_name = 3\n[model]\ncolour = "red"\n')
    (tmp_path / "routes.yaml").write_text("workers: [w.toml]\nspeed: 3\nmodels:\n  - name: a\n")
    done = dcugate("config", "check", "--config", str(tmp_path / "routes.yaml"))
    text = the_line(done)
    assert "routes.yaml:2: speed: unknown setting" in text
    assert "routes.yaml:4: models.0.workers: is missing" in text
    assert "w.toml:2:" in text
    assert "w.toml:4:" in text
    listed = json.loads(dcugate("config", "check", "--json", "--config", str(tmp_path / "routes.yaml")).stdout)
    assert listed["ok"] is False
    assert {"file", "line", "message"} == set(listed["problems"][0])


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_broken_or_missing_routes_file_starts_nothing(tmp_path: Path, command: str) -> None:
    assert "does not exist" in the_line(dcugate(command, "--config", str(tmp_path / "none.yaml")))
    (tmp_path / "r.yaml").write_text("models: [")
    assert "not valid YAML" in the_line(
        dcugate(command, "--config", str(tmp_path / "r.yaml"), "--state", str(tmp_path))
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.yaml"]


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_port_in_use_is_told_before_anything_is_launched(tmp_path: Path, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "r.yaml").write_text(
            f"listen: [{{address: '127.0.0.1:{port}'}}]\nbackends: [{{name: b, address: 'http://127.0.0.1:9', model: m}}]\n"
            "models: [{name: m, workers: [b]}]\n"
        )
        line = the_line(dcugate(command, "--config", str(tmp_path / "r.yaml"), "--state", str(tmp_path / "s")))
    assert f"cannot listen on 127.0.0.1:{port}" in line


def test_a_state_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "r.yaml").write_text(
        "listen: [{address: '127.0.0.1:1'}]\nbackends: [{name: b, address: 'http://127.0.0.1:9', model: m}]\n"
        "models: [{name: m, workers: [b]}]\n"
    )
    assert "file" in the_line(
        dcugate("serve", "--config", str(tmp_path / "r.yaml"), "--state", str(tmp_path / "file" / "s"))
    )


def test_a_worker_file_that_is_wrong_is_told(tmp_path: Path) -> None:
    assert "none.toml" in the_line(dcugate("worker", str(tmp_path / "none.toml")))


def test_a_wrong_word_is_told() -> None:
    assert "No such command" in the_line(dcugate("serv"))


def test_texts_follow_lang() -> None:
    assert "密钥" in dcugate("--help", LANG="zh_CN.UTF-8", LC_ALL="zh_CN.UTF-8", PYTHONUTF8="1").stdout
    assert "Keys, one per purpose" in dcugate("--help").stdout


def test_problems_of_the_configuration_are_told_in_chinese_too(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("listen: [{address: nowhere}]\nspeed: 3\nmodels: []\n")
    done = dcugate(
        "config",
        "check",
        "--config",
        str(tmp_path / "r.yaml"),
        LANG="zh_CN.UTF-8",
        LC_ALL="zh_CN.UTF-8",
        PYTHONUTF8="1",
    )
    assert "不是监听地址" in the_line(done)
    assert "未知的设置" in done.stderr


def test_keys_are_made_and_listed_from_the_command_line(tmp_path: Path) -> None:
    made = json.loads(
        dcugate("keys", "create", "--purpose", "chat", "--name", "n", "--json", "--state", str(tmp_path)).stdout
    )
    assert made["secret"].startswith("sk-dcu-chat-")
    listed = dcugate("keys", "list", "--json", "--state", str(tmp_path)).stdout
    assert made["id"] in listed
    assert made["secret"] not in listed
