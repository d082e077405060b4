from __future__ import annotations

import subprocess
import sys

import pytest

from backend_runner.launchers import guard

SLEEPER = [sys.executable, "-I", "-S", "-c", "import signal; {}; print(1, flush=True); signal.pause()"]


def group(setup: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*SLEEPER[:-1], SLEEPER[-1].format(setup)], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize(("setup", "status"), [("pass", -15), ("signal.signal(15, signal.SIG_IGN)", -9)])
def test_a_closed_pipe_ends_the_group(setup: str, status: int) -> None:
    with group(setup) as worker:
        watcher = [sys.executable, "-I", "-S", guard.__file__, str(worker.pid), "0.3"]
        subprocess.run(watcher, input=b"", check=True, timeout=20)
        assert worker.wait(10) == status


def test_a_byte_lets_it_go() -> None:
    with group("pass") as worker:
        watcher = [sys.executable, "-I", "-S", guard.__file__, str(worker.pid), "0.3"]
        subprocess.run(watcher, input=b".", check=True, timeout=20)
        assert worker.poll() is None
        worker.kill()
