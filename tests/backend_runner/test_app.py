"""The whole runner as a program, over a fake worker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def start(state: Path, *files: Path) -> Iterator[subprocess.Popen[str]]:
    """The runner as a child. A test that fails leaves none behind: it is killed, and its guards end the workers."""
    workers = [word for file in files for word in ("--worker", str(file))]
    with subprocess.Popen(
        [sys.executable, "-m", "backend_runner", "--state", str(state), *workers],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    ) as runner:
        try:
            yield runner
        finally:
            runner.kill()


async def events(state: Path, runner: subprocess.Popen[str]) -> AsyncGenerator[tuple[str, Any], None]:
    async with asyncio.timeout(20):
        while not (state / "runner.sock").exists():
            assert runner.poll() is None
            await asyncio.sleep(0.01)
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(state / "runner.sock"))) as session,
        session.get("http://r/v1/events") as answer,
    ):
        kind = ""
        async for line in answer.content:
            if line.startswith(b"event: "):
                kind = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:])


async def until(state: Path, runner: subprocess.Popen[str], wanted: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        async with contextlib.aclosing(events(state, runner)) as feed:
            async for kind, data in feed:
                if kind == "workers" and data["workers"][0]["state"] == wanted:
                    worker: dict[str, Any] = data["workers"][0]
                    return worker
    raise AssertionError("the feed ended")


def alive(pids: list[int]) -> list[int]:
    return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_leaves_no_process(tmp_path: Path, worker_file: Path, number: signal.Signals) -> None:
    state = tmp_path / "st"
    with start(state, worker_file) as runner:
        worker = await until(state, runner, "ready")
        assert (worker["name"], worker["model"], worker["cards"]) == ("w1", "m", 1)
        assert worker["address"] == f"unix:{state}/run/w1.sock"
        assert stat.S_IMODE((state / "runner.sock").stat().st_mode) == 0o600
        pids = [p.pid for p in psutil.Process(runner.pid).children(recursive=True)]
        assert len(pids) == 3, "the worker, its child and its guard"
        runner.send_signal(number)
        runner.communicate(timeout=20)
        assert runner.returncode == 0
        assert alive(pids) == []
        assert not (state / "runner.sock").exists()


async def test_a_killed_runner_leaves_no_process(tmp_path: Path, worker_file: Path) -> None:
    state = tmp_path / "st"
    with start(state, worker_file) as runner:
        await until(state, runner, "ready")
        pids = [p.pid for p in psutil.Process(runner.pid).children(recursive=True)]
        runner.kill()
        runner.communicate(timeout=10)
    async with asyncio.timeout(15):
        while alive(pids):
            await asyncio.sleep(0.02)


async def test_a_killed_worker_comes_back(tmp_path: Path, worker_file: Path) -> None:
    state = tmp_path / "st"
    with start(state, worker_file) as runner:
        first = await until(state, runner, "ready")
        os.kill(first["pid"], signal.SIGKILL)
        assert "SIGKILL" in (await until(state, runner, "backoff"))["reason"]
        second = await until(state, runner, "ready")
        assert second["pid"] != first["pid"]
        assert second["api_key"] != first["api_key"]
        runner.terminate()
        runner.communicate(timeout=20)


@pytest.mark.parametrize(
    ("text", "words"),
    [("vllm: error: unrecognized arguments: --bad", "does not know the flag --bad"), ("boom", "")],
)
async def test_a_failed_start_tells_why_and_the_runner_stays(
    tmp_path: Path, worker_file: Path, text: str, words: str
) -> None:
    worker_file.write_text(worker_file.read_text().replace("FAKE_CHILD", f'FAKE_FAIL = "{text}", FAKE_CHILD'))
    state = tmp_path / "st"
    with start(state, worker_file) as runner:
        worker = await until(state, runner, "failed" if words else "backoff")
        assert words in worker["reason"]
        runner.terminate()
        runner.communicate(timeout=20)
        assert runner.returncode == 0


async def test_a_missing_model_fails_before_anything_starts(tmp_path: Path, worker_file: Path) -> None:
    worker_file.write_text(worker_file.read_text().replace("/model", "/nothing"))
    with start(tmp_path / "st", worker_file) as runner:
        worker = await until(tmp_path / "st", runner, "failed")
        assert "it has no config.json" in worker["reason"]
        assert worker["pid"] is None
        runner.terminate()
        runner.communicate(timeout=20)


async def test_a_second_runner_on_the_same_folder_is_refused(tmp_path: Path, worker_file: Path) -> None:
    state = tmp_path / "st"
    with start(state, worker_file) as runner:
        await until(state, runner, "ready")
        with start(state, worker_file) as second:
            _, text = second.communicate(timeout=20)
            assert (second.returncode, text) == (2, f"another runner is at work in {state}\n")
        runner.terminate()
        runner.communicate(timeout=20)


async def test_two_workers_of_one_name_are_refused(tmp_path: Path, worker_file: Path) -> None:
    with start(tmp_path / "st", worker_file, worker_file) as runner:
        _, text = runner.communicate(timeout=20)
        assert runner.returncode == 2
        assert "two workers have the same name: w1" in text


async def test_it_ends_with_its_parent(tmp_path: Path, worker_file: Path) -> None:
    state = tmp_path / "st"
    code = (
        "import os, subprocess, sys; "
        "p = subprocess.Popen([sys.executable, '-m', 'backend_runner', *sys.argv[1:], str(os.getpid())]); "
        "print(p.pid, flush=True); sys.stdin.read()"
    )
    words = ["--state", str(state), "--worker", str(worker_file), "--exit-with-parent"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        await until(state, parent, "ready")
        pids = [pid, *(p.pid for p in psutil.Process(pid).children(recursive=True))]
        parent.kill()
    async with asyncio.timeout(15):
        while alive(pids):
            await asyncio.sleep(0.02)
