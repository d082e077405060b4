"""Finds what a worker needs on this host: its Python, and the folder that holds our plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from backend_runner.launchers.base import LaunchFailed

__all__ = ["find_python", "plugin_folder"]

VARIABLE = "DCUGATE_WORKER_PYTHON"
PACKAGE_PARENT = Path(__file__).resolve().parents[2]


def find_python(configured: str | None, environ: Mapping[str, str], here: Path) -> Path:
    """The interpreter of the worker's environment: the worker's file, $DCUGATE_WORKER_PYTHON, .venv-worker in `here` or
    beside this package. Raises LaunchFailed where there is none.
    """
    asked = [(configured, "[worker] python"), (environ.get(VARIABLE), VARIABLE)]
    for value, source in asked:
        if value:
            path = Path(value).expanduser()
            if path.is_file():
                return path
            raise LaunchFailed(f"{source} names {value}, which is not there")
    for folder in (here, PACKAGE_PARENT):
        path = folder / ".venv-worker" / "bin" / "python"
        if path.is_file():
            return path
    raise LaunchFailed(f"no Python for the worker: run `make env-worker`, or set [worker] python or {VARIABLE}")


def plugin_folder() -> Path:
    """What goes on the worker's PYTHONPATH: the installed form shipped in a wheel, else the checkout's source.

    With the source alone vLLM does not see the entry point, but finds `--scheduler-cls`, which is all it needs so far.
    """
    base = PACKAGE_PARENT / "backend_runner" / "worker_plugin"
    built = base / "site"
    return built if (built / "dcugate_worker").is_dir() else base / "src"
