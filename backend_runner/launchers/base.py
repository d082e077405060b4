"""What the loop asks of a launcher. One implementation so far: `process.py`; a container one will follow."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from backend_runner.core.command import Launch

__all__ = ["Launcher", "LaunchFailed", "RunningWorker"]


class LaunchFailed(Exception):
    """Nothing was started; `reason` says why."""

    @property
    def reason(self) -> str:
        """One line."""
        return str(self)


class RunningWorker(Protocol):
    """One started worker, until it is gone with everything that it started itself."""

    @property
    def pid(self) -> int:
        """The process an operator would look for."""

    async def wait(self) -> int:
        """Returns the exit status (negative for a signal) once nothing of the worker is left. May be awaited once."""

    def stop(self, bound_s: float) -> None:
        """Asks it to finish its requests and end; after the bound it is killed. Does not block."""

    def kill(self) -> None:
        """Ends it and all it started, now. Does not block."""


class Launcher(Protocol):
    """Starts workers."""

    async def start(self, launch: Launch, log_path: Path) -> RunningWorker:
        """Starts one, its output appended to `log_path`. Raises LaunchFailed."""
