"""Composition root of the runner: workers, API, signals. One runner a state folder."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from aiohttp import web

from backend_runner.api import Hub, make_api
from backend_runner.core.command import Launch, WorkerConfig, command, model_location
from backend_runner.core.plan import Request
from backend_runner.core.states import State
from backend_runner.launchers.base import Launcher, LaunchFailed
from backend_runner.launchers.environment import find_python, plugin_folder
from backend_runner.launchers.process import ProcessLauncher
from backend_runner.loop import Paths, Worker

__all__ = ["RunnerError", "run_workers", "socket_path"]

log = logging.getLogger(__name__)

PARENT_EVERY_S = 0.5
MAX_SOCKET_BYTES = 107  # of a unix socket's path, Linux


class RunnerError(Exception):
    """The runner cannot start; `reason` says why. Nothing was started."""

    @property
    def reason(self) -> str:
        """One line."""
        return str(self)


def socket_path(state: Path) -> Path:
    """Where the runner of that state folder listens."""
    return state / "runner.sock"


async def run_workers(
    configs: Sequence[WorkerConfig],
    state: Path,
    environ: Mapping[str, str],
    *,
    parent_pid: int | None = None,
    launcher: Launcher | None = None,
) -> None:
    """Runs the workers until SIGTERM or SIGINT (or, asked for, the parent's death), then drains them and returns.

    A second signal ends them at once. A worker that fails leaves the others and the API running. Raises RunnerError.
    """
    _check(configs, state)
    hub = Hub()
    with _lock(state):
        workers = {c.name: _worker(c, state, environ, launcher or ProcessLauncher(), hub) for c in configs}
        stop, hurry = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            (hurry if stop.is_set() else stop).set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        runner = web.AppRunner(make_api(workers, hub), access_log=None, shutdown_timeout=1.0)
        parent = asyncio.create_task(_watch_parent(parent_pid, stop)) if parent_pid is not None else None
        tasks = [asyncio.create_task(worker.run()) for worker in workers.values()]
        try:
            await runner.setup()
            await _listen(runner, socket_path(state))
            for worker in workers.values():
                worker.post(Request.START)
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({stopped, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                stopped.cancel()
                broken = next(task for task in tasks if task.done())
                raise RunnerError(f"a worker's task ended: {broken.exception()!r}")
            log.info("stopping: requests in flight may finish; a second signal ends them")
            await _stop(workers.values(), hub, hurry)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if parent is not None:
                tasks.append(parent)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            hub.close()
            await runner.cleanup()
            socket_path(state).unlink(missing_ok=True)


def _check(configs: Sequence[WorkerConfig], state: Path) -> None:
    names = [config.name for config in configs]
    if not names:
        raise RunnerError("no worker file was given")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RunnerError(f"two workers have the same name: {', '.join(twice)}; give each its [worker] name")
    for name in names:
        path = Paths.below(state, name).socket
        if len(os.fsencode(path)) > MAX_SOCKET_BYTES:
            raise RunnerError(f"the state folder's path is too long for a unix socket: {path}; choose a shorter one")


def _worker(config: WorkerConfig, state: Path, environ: Mapping[str, str], launcher: Launcher, hub: Hub) -> Worker:
    paths = Paths.below(state, config.name)

    def make_launch(api_key: str) -> Launch:
        location = model_location(config.model_path, environ)
        if location != config.model_path and not Path(location, "config.json").is_file():
            raise LaunchFailed(f"the demo model is not in {location}: run `dcugate demo-model`")
        if location.startswith("/") and not Path(location, "config.json").is_file():
            raise LaunchFailed(f"{location} is no model: it has no config.json; check model_path in [model]")
        return command(
            config,
            socket_path=str(paths.socket),
            api_key=api_key,
            progress_path=str(paths.progress),
            python=str(find_python(config.python, environ, Path.cwd())),
            plugin_path=str(plugin_folder()),
            environ=environ,
        )

    return Worker(config, paths, launcher, make_launch, lambda _: hub.changed(), lambda _: hub.progressed())


async def _listen(runner: web.AppRunner, path: Path) -> None:
    path.unlink(missing_ok=True)  # of a runner that was killed: the lock says that none runs
    mask = os.umask(0o177)
    try:
        await web.UnixSite(runner, str(path)).start()
    except OSError as error:
        raise RunnerError(f"cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(mask)


async def _stop(workers: Iterable[Worker], hub: Hub, hurry: asyncio.Event) -> None:
    """Ends every worker; returns when all are down, or when somebody is in a hurry."""
    remaining = list(workers)
    for worker in remaining:
        worker.post(Request.STOP)
    stream = hub.open()
    hurried = asyncio.create_task(hurry.wait())
    try:
        while not all(w.record.state in (State.STOPPED, State.FAILED) and w.pid is None for w in remaining):
            stream.wake.clear()
            changed = asyncio.create_task(stream.wake.wait())
            await asyncio.wait({changed, hurried}, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if hurried.done():
                return
    finally:
        hurried.cancel()
        hub.leave(stream)


async def _watch_parent(parent: int, stop: asyncio.Event) -> None:
    while os.getppid() == parent:  # noqa: ASYNC110 nothing tells of a parent's death but asking
        await asyncio.sleep(PARENT_EVERY_S)
    log.warning("the parent process is gone: stopping")
    stop.set()


@contextlib.contextmanager
def _lock(state: Path) -> Iterator[None]:
    """Holds the state folder: a second runner on it would start the workers twice."""
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(state / "runner.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RunnerError(f"cannot use the state folder {state}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunnerError(f"another runner is at work in {state}") from error
        yield
    finally:
        os.close(descriptor)
