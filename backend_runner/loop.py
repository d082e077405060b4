"""The loop around each worker: events in, `plan.decide`, actions out. The one owner of a worker's record.

Others read `worker.record` and `worker.progress`, and send requests with `post`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend_runner.core import plan
from backend_runner.core.command import Launch, WorkerConfig
from backend_runner.core.diagnosis import diagnose
from backend_runner.core.plan import Answered, Event, Exited, Record, Request
from backend_runner.core.progress import Progress, fresh, with_all_ended
from backend_runner.core.states import State
from backend_runner.launchers.base import Launcher, LaunchFailed, RunningWorker
from backend_runner.probe import ProgressReader, is_healthy, last_lines

__all__ = ["DRAIN_BOUND_S", "Paths", "Worker"]

log = logging.getLogger(__name__)

HEALTH_EVERY_S = 0.25
PROGRESS_EVERY_S = 0.25
# vLLM itself ends what is left after its --shutdown-timeout of 30 s; then it needs some seconds.
DRAIN_BOUND_S = 40.0
# The news that a worker stops must reach the gateway before the signal reaches the worker, which then answers 503.
STOP_NEWS_LEAD_S = 0.1
DIAGNOSIS_LINES = 200


@dataclass(frozen=True, slots=True)
class Paths:
    """A worker's files below the state folder."""

    socket: Path
    log: Path
    progress: Path

    @classmethod
    def below(cls, state: Path, name: str) -> Paths:
        """The fixed places for a worker of that name."""
        return cls(state / "run" / f"{name}.sock", state / "logs" / f"{name}.log", state / "run" / f"{name}.progress")


class Worker:
    """One worker: its configuration, its record, its process while it has one.

    `make_launch(key)` gives the command line and may raise LaunchFailed; `on_change(worker)` is called after each change
    of the record, `on_progress(worker)` after each change of the progress. Both must not block.
    """

    def __init__(
        self,
        config: WorkerConfig,
        paths: Paths,
        launcher: Launcher,
        make_launch: Callable[[str], Launch],
        on_change: Callable[[Worker], None],
        on_progress: Callable[[Worker], None],
    ) -> None:
        self.config = config
        self.paths = paths
        self.record = Record(since_ms=_now_ms())
        self.progress = Progress(0, 0.0, {})
        self.started_s: float | None = None
        self.api_key = ""
        self._launcher = launcher
        self._make_launch = make_launch
        self._on_change = on_change
        self._on_progress = on_progress
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._process: RunningWorker | None = None
        self._reader = ProgressReader(paths.progress)
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"Worker({self.config.name!r}, {self.record.state}, pid={self.pid})"

    @property
    def pid(self) -> int | None:
        """Its process, None while it has none."""
        return self._process.pid if self._process is not None else None

    def post(self, event: Event) -> None:
        """Tells it something. Returns at once."""
        self._events.put_nowait(event)

    async def run(self) -> None:
        """Works until cancelled; then what still runs is killed. Ask it to STOP and await `stopped` first."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_progress())
                while True:
                    await self._handle(await self._events.get())
        finally:
            for task in self._tasks:
                task.cancel()
            if self._process is not None:
                self._process.kill()

    async def _handle(self, event: Event) -> None:
        before = self.record
        self.record, actions = plan.decide(self.record, event, _now_ms())
        if self.record != before:
            log.info("worker %s is %s: %s", self.config.name, self.record.state, self.record.reason or "-")
            self._on_change(self)
        for action in actions:
            match action:
                case plan.Launch(attempt):
                    await self._start(attempt)
                case plan.StopProcess():
                    asyncio.get_running_loop().call_later(STOP_NEWS_LEAD_S, self._stop_process)
                case plan.Kill():
                    if self._process is not None:
                        self._process.kill()
                case plan.WakeAfter(delay_ms):
                    asyncio.get_running_loop().call_later(delay_ms / 1000, self.post, Request.RETRY)

    def _stop_process(self) -> None:
        if self._process is not None:
            self._process.stop(DRAIN_BOUND_S)

    async def _start(self, attempt: int) -> None:
        self.api_key = secrets.token_urlsafe(32)
        self.progress = Progress(0, 0.0, {})
        try:
            self._reader.forget()
            log_start = self.paths.log.stat().st_size if self.paths.log.exists() else 0
            self.paths.socket.parent.mkdir(
                parents=True, exist_ok=True, mode=0o700
            )  # vLLM's socket itself is open to all
            self.paths.socket.unlink(missing_ok=True)
            self._process = await self._launcher.start(self._make_launch(self.api_key), self.paths.log)
        except LaunchFailed as failed:
            self.post(Exited(attempt, failed.reason, permanent=True))
            return
        except OSError as error:
            self.post(Exited(attempt, f"{error.filename or self.paths.socket}: {error.strerror}"))
            return
        self.started_s = time.time()
        self._on_change(self)
        self._spawn(self._watch(self._process, attempt, log_start))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self, process: RunningWorker, attempt: int, log_start: int) -> None:
        """Waits for the first healthy answer and for the end, and tells both."""
        health = asyncio.create_task(self._await_health(attempt))
        try:
            status = await process.wait()
        finally:
            health.cancel()
        self._process, self.started_s = None, None
        self._read_progress()
        self.progress = with_all_ended(self.progress, time.time())
        self._on_progress(self)
        if log_start > (self.paths.log.stat().st_size if self.paths.log.exists() else 0):
            log_start = 0  # the log was moved away
        lines = last_lines(self.paths.log, DIAGNOSIS_LINES, log_start)
        was_ready = self.record.state in (State.READY, State.DRAINING)
        diagnosis = diagnose(status, lines, was_ready=was_ready)
        with contextlib.suppress(OSError):
            self.paths.socket.unlink(missing_ok=True)
        self.post(Exited(attempt, diagnosis.reason, diagnosis.permanent))

    async def _await_health(self, attempt: int) -> None:
        while not await is_healthy(str(self.paths.socket)):  # noqa: ASYNC110 the worker is another process
            await asyncio.sleep(HEALTH_EVERY_S)
        self.post(Answered(attempt))

    async def _follow_progress(self) -> None:
        while True:
            if self._process is not None and self._read_progress():
                self._on_progress(self)
            await asyncio.sleep(PROGRESS_EVERY_S)

    def _read_progress(self) -> bool:
        found = self._reader.read()
        if found is None:
            return False
        self.progress = fresh(found, time.time())
        return True


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
