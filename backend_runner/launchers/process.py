"""Starts a worker as a process of this host, in a session of its own, and leaves none of its processes behind.

vLLM starts children (the engine, one worker a card). A clean stop is a SIGTERM to the API server alone: it drains and
ends them itself. Whatever of the group outlives it, or the bound, is killed. If the runner itself is killed, `guard.py`
does the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from backend_runner.core.command import Launch
from backend_runner.launchers import guard
from backend_runner.launchers.base import LaunchFailed

__all__ = ["ProcessLauncher", "WorkerProcess"]

GUARD_BOUND_S = 10.0  # the runner is dead and so is the gateway's feed: no need to wait for requests
LEFTOVER_GRACE_S = 2.0  # vLLM's children end by themselves within this time after their parent
LOG_KEEP_BYTES = 16 << 20  # a larger log is moved to <log>.1 before a start
POLL_S = 0.05


class WorkerProcess:
    """A started worker: the leader of its process group, and its guard."""

    def __init__(self, process: asyncio.subprocess.Process, guardian: asyncio.subprocess.Process) -> None:
        self._process = process
        self._guardian = guardian
        self._deadline: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"WorkerProcess(pid={self.pid}, returncode={self._process.returncode})"

    @property
    def pid(self) -> int:
        """The group's leader, which is the API server."""
        return self._process.pid

    async def wait(self) -> int:
        """Returns once the whole group is gone: the exit status of its leader."""
        status = await self._process.wait()
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LEFTOVER_GRACE_S
        while self._signal_group(0):
            if loop.time() >= deadline:
                # Whatever still answers after this is a zombie that the host's first process does not collect.
                self._signal_group(signal.SIGKILL)
                break
            await asyncio.sleep(POLL_S)
        await self._release_guard()
        return status

    def stop(self, bound_s: float) -> None:
        """SIGTERM to the leader; SIGKILL to the group after the bound. A second call changes nothing."""
        if self._deadline is None and self._process.returncode is None:
            self._process.terminate()
            self._deadline = asyncio.get_running_loop().call_later(bound_s, self.kill)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> bool:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    async def _release_guard(self) -> None:
        pipe = self._guardian.stdin
        if pipe is not None:
            with contextlib.suppress(ConnectionError):
                pipe.write(b".")
                await pipe.drain()
            pipe.close()
        await self._guardian.wait()


class ProcessLauncher:
    """Launches worker processes of this host."""

    async def start(self, launch: Launch, log_path: Path) -> WorkerProcess:
        """Starts the process and its guard. Raises LaunchFailed, and then neither runs."""
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            if log_path.exists() and log_path.stat().st_size > LOG_KEEP_BYTES:
                log_path.replace(log_path.with_name(log_path.name + ".1"))
            with log_path.open("ab") as log:
                process = await asyncio.create_subprocess_exec(
                    *launch.argv,
                    env=dict(launch.env),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchFailed(f"cannot start {launch.argv[0]}: {error.strerror or error}") from error
        try:
            guardian = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", guard.__file__, str(process.pid), str(GUARD_BOUND_S),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if isinstance(error, OSError):
                raise LaunchFailed(f"cannot start the worker's guard: {error.strerror or error}") from error
            raise
        return WorkerProcess(process, guardian)
