from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from backend_runner.core.command import Launch
from backend_runner.launchers.base import LaunchFailed
from backend_runner.launchers.process import ProcessLauncher, WorkerProcess

FAKE = str(Path(__file__).parents[2] / "fakes" / "fake_worker.py")


def running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def started(tmp_path: Path, **env: str) -> tuple[WorkerProcess, int]:
    """A fake worker that listens, and its child's pid."""
    launch = Launch(
        (sys.executable, FAKE, "--uds", str(tmp_path / "s")), {**env, "FAKE_CHILD": str(tmp_path / "child")}
    )
    process = await ProcessLauncher().start(launch, tmp_path / "logs" / "w.log")
    async with asyncio.timeout(10):
        while not (tmp_path / "s").exists():
            await asyncio.sleep(0.01)
    return process, int((tmp_path / "child").read_text())


async def test_a_stop_ends_it_in_peace_with_its_guard(tmp_path: Path) -> None:
    process, child = await started(tmp_path)
    guards = [p for p in psutil.Process().children() if p.pid != process.pid and "guard.py" in " ".join(p.cmdline())]
    assert len(guards) == 1
    process.stop(10)
    assert await process.wait() == 0
    assert not running(child)
    assert not guards[0].is_running()
    assert (tmp_path / "logs" / "w.log").read_text() == "Application startup complete.\n"


async def test_a_deaf_one_is_killed_after_the_bound_with_its_children(tmp_path: Path) -> None:
    process, child = await started(tmp_path, FAKE_DEAF="1")
    process.stop(0.2)
    assert await process.wait() == -signal.SIGKILL
    assert not running(child)


async def test_children_of_a_dead_leader_are_ended(tmp_path: Path) -> None:
    process, child = await started(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    assert await process.wait() == -signal.SIGKILL
    async with asyncio.timeout(5):
        while running(child):
            await asyncio.sleep(0.01)


async def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="cannot start /no/such: No such file"):
        await ProcessLauncher().start(Launch(("/no/such",), {}), tmp_path / "log")
