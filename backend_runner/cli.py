"""The runner's command line: `python -m backend_runner --state DIR --worker FILE [--worker FILE] [--exit-with-parent PID]`.

argparse, not typer: the gateway's `dcugate up` starts this program and shows what it says; people rarely call it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from backend_runner.app import RunnerError, run_workers
from backend_runner.core.worker_config import ConfigProblems, Problem, WorkerConfig, load_worker_config

__all__ = ["load_files", "main"]


def load_files(paths: Sequence[Path]) -> list[WorkerConfig]:
    """Reads and checks worker files. Raises ConfigProblems with the problems of all of them."""
    configs: list[WorkerConfig] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            configs.append(load_worker_config(path.read_text(encoding="utf-8"), str(path)))
        except ConfigProblems as found:
            problems += found.problems
        except UnicodeDecodeError:
            problems.append(Problem(str(path), None, "it is not UTF-8 text"))
        except OSError as error:
            problems.append(Problem(str(path), None, f"cannot be read: {error.strerror or error}"))
    if problems:
        raise ConfigProblems(problems)
    return configs


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after a stop by signal, 2 where nothing could be started."""
    parser = argparse.ArgumentParser(prog="backend_runner", description="Launches and watches vLLM workers.")
    parser.add_argument("--state", type=Path, required=True, help="folder for sockets and logs")
    parser.add_argument("--worker", type=Path, action="append", required=True, help="a worker's TOML file; repeatable")
    parser.add_argument(
        "--exit-with-parent", type=int, metavar="PID", help="the starting process; stop when it is gone"
    )
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        configs = load_files(options.worker)
        state = options.state.expanduser().absolute()
        asyncio.run(run_workers(configs, state, os.environ, parent_pid=options.exit_with_parent))
    except (ConfigProblems, RunnerError) as problem:
        sys.stderr.write(f"{problem.reason}\n")
        return 2
    return 0
