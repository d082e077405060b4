"""The service as an operator starts it, on the real vLLM. Each fixture is one `dcugate up` for its whole module."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

ROOT = Path(__file__).parents[2]
WORKER_PYTHON = ROOT / ".venv-worker" / "bin" / "python"
START_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Up:
    """A running `dcugate up`."""

    base: str
    state: Path
    process: subprocess.Popen[str]
    environment: dict[str, str]
    keys: dict[str, str] = field(default_factory=dict)
    output: list[str] = field(default_factory=list)
    reader: threading.Thread | None = None

    @property
    def text(self) -> str:
        return "".join(self.output)

    def run(self, *command: str) -> str:
        """Runs a command of ours in this service's environment; its standard output."""
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=self.environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tree(self) -> list[psutil.Process]:
        this = psutil.Process(self.process.pid)
        return [this, *this.children(recursive=True)]


def start(command: list[str], base: str, state: Path, environment: dict[str, str]) -> Up:
    """Starts it and waits until it greets; a start that fails shows what it said."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
        start_new_session=True,
    )  # fmt: skip
    up = Up(base, state, process, environment)
    greeted = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            up.output.append(line)
            if "Ctrl-C" in line:
                greeted.set()
        process.stdout.close()
        greeted.set()

    up.reader = threading.Thread(target=read, daemon=True)
    up.reader.start()
    assert greeted.wait(START_S), up.text
    assert process.poll() is None, up.text
    up.keys = {
        purpose: secret for secret, purpose in re.findall(r"(sk-dcu-(chat|agent)-\S+)", up.text.split("curl")[0])
    }
    return up


def stop(up: Up) -> None:
    """Ctrl-C, which a terminal sends to the whole foreground group; then no process of it may be left."""
    tree = up.tree()
    os.killpg(up.process.pid, signal.SIGINT)
    # `make` itself ends with status 2 or by the signal when it is interrupted.
    assert up.process.wait(90) in (0, 2, -signal.SIGINT), up.text
    assert up.reader is not None
    up.reader.join(10)
    _, left = psutil.wait_procs(tree, timeout=10)
    for process in left:
        process.kill()
    assert not left, left


@pytest.fixture(scope="module")
def demo() -> Iterator[Up]:
    """`make up` as it stands: the demo model on port 8080, with a state folder of its own."""
    with TemporaryDirectory() as folder:
        environment = os.environ | {"DCUGATE_STATE": f"{folder}/state", "LANG": "C", "LC_ALL": "C"}
        up = start(["make", "up"], "http://127.0.0.1:8080", Path(folder) / "state", environment)
        up.environment = environment | {"DCUGATE_KEY": up.keys["chat"]}
        try:
            yield up
        finally:
            stop(up)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Up]:
    """`dcugate up` with the scripted tiny model: exact token counts, a long context."""
    with TemporaryDirectory() as folder:
        path, port = Path(folder), free_port()
        subprocess.run(
            [WORKER_PYTHON, ROOT / "tests/real/make_tiny_model.py", "--out", folder, "--name", "chain", "--mode", "chain"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        (path / "tiny.toml").write_text(
            '[worker]\nname = "tiny"\n[server]\nserved_model_name = "tiny"\n'
            f'[model]\nmodel_path = "{folder}/chain"\ndtype = "float32"\nmax_model_len = 32768\n'
            "[graph]\nenforce_eager = true\nmax_num_batched_tokens = 2048\n"
            "[vllm.args]\nkv-cache-memory-bytes = 536870912\nmax-num-seqs = 32\n"
        )
        (path / "routes.yaml").write_text(
            f"listen: [{{address: '127.0.0.1:{port}'}}]\nworkers: [tiny.toml]\n"
            "models: [{name: public-tiny, workers: [tiny], default_output_tokens: 256}]\n"
        )
        environment = os.environ | {"DCUGATE_STATE": f"{folder}/state", "LANG": "C", "LC_ALL": "C"}
        command = [sys.executable, "-m", "gateway", "up", "--config", f"{folder}/routes.yaml"]
        up = start(command, f"http://127.0.0.1:{port}", path / "state", environment)
        try:
            yield up
        finally:
            stop(up)


def post(
    base: str, key: str, body: dict[str, object], path: str = "/v1/chat/completions"
) -> tuple[int, dict[str, object]]:
    """A plain request without any SDK: status and JSON body."""
    request = urllib.request.Request(
        base + path,
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def until(condition: object, timeout_s: float = 30.0) -> None:
    """Waits for another process to get there."""
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
