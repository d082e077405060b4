"""Starts that fail, and ends that nobody asked for, on the real vLLM: a clear reason, exit code 2, no process left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.real.conftest import ROOT, free_port, start, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(200)]

WORKER = (
    '[worker]\nname = "w"\n[server]\nserved_model_name = "m"\n[model]\nmodel_path = "{model}"\nmax_model_len = 1024\n'
)
EAGER = "[graph]\nenforce_eager = true\n[vllm.args]\nkv-cache-memory-bytes = 268435456\n"


def routes(folder: Path, worker: str) -> Path:
    (folder / "w.toml").write_text(worker)
    (folder / "routes.yaml").write_text(
        f"listen: [{{address: '127.0.0.1:{free_port()}'}}]\nworkers: [w.toml]\nmodels: [{{name: m, workers: [w]}}]\n"
    )
    return folder / "routes.yaml"


def command(config: Path) -> list[str]:
    return [sys.executable, "-m", "gateway", "up", "--config", str(config), "--state", str(config.parent / "state")]


def of_this_test(folder: Path) -> list[psutil.Process]:
    """Processes that work in this test's state folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        (WORKER.format(model="/nowhere/model"), "/nowhere/model is no model"),
        (WORKER.format(model="demo:smollm2-135m-instruct") + "[vllm.args]\nno-such-flag = true\n", "--no-such-flag"),
    ],
    ids=["missing-model", "wrong-flag"],
)
def test_a_worker_that_cannot_start_tells_why_and_leaves_nothing(tmp_path: Path, worker: str, words: str) -> None:
    config = routes(tmp_path, worker)
    environment = os.environ | {"LANG": "C", "LC_ALL": "C", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command(config), capture_output=True, text=True, cwd=ROOT, timeout=120, env=environment)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "the whole log: " in done.stderr
    assert "sk-dcu" not in done.stdout  # no key is made that nobody could use
    until(lambda: not of_this_test(tmp_path))


def test_a_service_that_is_killed_while_it_loads_leaves_no_worker(tmp_path: Path) -> None:
    config = routes(tmp_path, WORKER.format(model="demo:smollm2-135m-instruct") + EAGER)
    process = subprocess.Popen(
        command(config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT, start_new_session=True
    )
    try:
        until(lambda: any("vllm" in " ".join(p.cmdline()) for p in of_this_test(tmp_path)))
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        until(lambda: not of_this_test(tmp_path), 60)
    finally:
        for left in of_this_test(tmp_path):
            left.kill()


def test_a_runner_that_dies_ends_the_service_with_the_reason(tmp_path: Path) -> None:
    config = routes(tmp_path, WORKER.format(model="demo:smollm2-135m-instruct") + EAGER)
    environment = os.environ | {"LANG": "C", "LC_ALL": "C", "PYTHONPATH": str(ROOT)}
    up = start(command(config), "", tmp_path / "state", environment)
    try:
        runner = next(p for p in up.tree() if "backend_runner" in p.cmdline())
        runner.kill()
        assert up.process.wait(60) == 2, up.text
        assert up.reader is not None
        up.reader.join(10)
        assert "the runner ended with status -9" in up.text
        until(lambda: not of_this_test(tmp_path), 60)
    finally:
        for left in of_this_test(tmp_path):
            left.kill()
