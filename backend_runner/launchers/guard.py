"""Ends a worker whose runner has died: `python -I -S guard.py PROCESS_GROUP BOUND_SECONDS`, standard input a pipe.

The runner holds the other end. A byte means that all is well and the guard may go; end of file without one means that
the runner is gone, and then the group gets SIGTERM and, after the bound, SIGKILL. In its own session, so that a
terminal's Ctrl-C does not reach it. Standard library only: it stays small (10 MB).
"""

from __future__ import annotations

import os
import signal
import sys
import time

__all__ = ["end_group", "main"]

POLL_S = 0.1


def _signal(group: int, number: int) -> bool:
    """Whether the group still has a process."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_group(group: int, bound_s: float) -> None:
    """SIGTERM, up to `bound_s` seconds of patience, SIGKILL. Blocks."""
    alive = _signal(group, signal.SIGTERM)
    deadline = time.monotonic() + bound_s
    while alive and time.monotonic() < deadline:
        time.sleep(POLL_S)
        alive = _signal(group, 0)
    if alive:
        _signal(group, signal.SIGKILL)


def main() -> None:
    """See the module's text."""
    group, bound_s = int(sys.argv[1]), float(sys.argv[2])
    if not os.read(0, 1):
        end_group(group, bound_s)


if __name__ == "__main__":
    main()
