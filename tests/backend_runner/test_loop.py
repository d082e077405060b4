from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend_runner.core.command import Launch
from backend_runner.core.plan import Request
from backend_runner.core.progress import Progress, RequestProgress
from backend_runner.core.states import State
from backend_runner.core.worker_config import WorkerConfig
from backend_runner.launchers.base import LaunchFailed
from backend_runner.loop import Paths, Worker

CONFIG = WorkerConfig("w", "vllm", ("m",), "/m")


class RecordingProcess:
    """A process that ends when the test says so."""

    pid = 4242

    def __init__(self) -> None:
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked: list[str] = []

    async def wait(self) -> int:
        return await self.ended

    def stop(self, bound_s: float) -> None:
        self.asked.append("stop")
        self.ended.set_result(0)

    def kill(self) -> None:
        self.asked.append("kill")
        if not self.ended.done():
            self.ended.set_result(-9)


class RecordingLauncher:
    """Gives out RecordingProcesses, or fails."""

    def __init__(self, problem: str | None = None) -> None:
        self.problem = problem
        self.processes: list[RecordingProcess] = []

    async def start(self, launch: Launch, log_path: Path) -> RecordingProcess:
        if self.problem:
            raise LaunchFailed(self.problem)
        self.processes.append(RecordingProcess())
        return self.processes[-1]


class Stage:
    """A worker under test, and a way to wait for its states."""

    def __init__(self, folder: Path, launcher: RecordingLauncher) -> None:
        self.seen: asyncio.Queue[State] = asyncio.Queue()
        self.keys: list[str] = []
        self.worker = Worker(
            CONFIG,
            Paths.below(folder, "w"),
            launcher,
            self.make,
            lambda w: self.seen.put_nowait(w.record.state),
            lambda _: None,
        )

    def make(self, key: str) -> Launch:
        self.keys.append(key)
        return Launch(("x",), {})

    async def until(self, state: State) -> None:
        async with asyncio.timeout(5):
            while await self.seen.get() is not state:
                pass


async def test_a_launch_that_fails_ends_in_failed_with_its_reason(tmp_path: Path) -> None:
    stage = Stage(tmp_path, RecordingLauncher("no Python for the worker"))
    task = asyncio.create_task(stage.worker.run())
    stage.worker.post(Request.START)
    await stage.until(State.FAILED)
    assert stage.worker.record.reason == "no Python for the worker"
    task.cancel()


async def test_a_dead_workers_running_requests_get_final_counts(tmp_path: Path) -> None:
    launcher = RecordingLauncher()
    stage = Stage(tmp_path, launcher)
    task = asyncio.create_task(stage.worker.run())
    stage.worker.post(Request.START)
    await stage.until(State.STARTING)
    await stage.until(State.STARTING)  # told again, with the pid
    stage.worker.progress = Progress(3, 1.0, {"a": RequestProgress(5, 4, 0, 1)})
    launcher.processes[0].ended.set_result(0)
    await stage.until(State.BACKOFF)
    assert stage.worker.progress.requests["a"].ended
    assert stage.worker.pid is None
    task.cancel()


async def test_each_start_has_a_key_of_its_own(tmp_path: Path) -> None:
    launcher = RecordingLauncher()
    stage = Stage(tmp_path, launcher)
    task = asyncio.create_task(stage.worker.run())
    stage.worker.post(Request.START)
    await stage.until(State.STARTING)
    stage.worker.post(Request.RESTART)
    await stage.until(State.STOPPING)
    await stage.until(State.STARTING)
    await stage.until(State.STARTING)
    assert launcher.processes[0].asked == ["kill"], "it was still loading"
    assert len(set(stage.keys)) == 2
    task.cancel()


async def test_a_cancelled_loop_kills_its_process(tmp_path: Path) -> None:
    launcher = RecordingLauncher()
    stage = Stage(tmp_path, launcher)
    task = asyncio.create_task(stage.worker.run())
    stage.worker.post(Request.START)
    await stage.until(State.STARTING)
    await stage.until(State.STARTING)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert launcher.processes[0].asked == ["kill"]
