"""Asks a worker how it is: its health over its unix socket, its progress from the memory-mapped file, its log's tail."""

from __future__ import annotations

import os
from pathlib import Path

import aiohttp

from backend_runner.core.progress import BadProgress, Progress, decode

__all__ = ["ProgressReader", "is_healthy", "last_lines"]

HEALTH_TIMEOUT_S = 2.0
TRIES = 5  # a writer's change takes some microseconds; five torn copies in a row mean that it died within one


async def is_healthy(socket_path: str) -> bool:
    """Whether GET /health answers 200 within two seconds."""
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(path=socket_path),
                timeout=aiohttp.ClientTimeout(total=HEALTH_TIMEOUT_S),
            ) as session,
            session.get("http://worker/health") as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


class ProgressReader:
    """Reads one worker's progress file, which may not be there yet and is a new one after each start of the worker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | None = None

    def __repr__(self) -> str:
        return f"ProgressReader({str(self._path)!r})"

    def read(self) -> Progress | None:
        """The newest picture; None where there is none, or nothing changed since the last call."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            for _ in range(TRIES):
                mark = os.pread(descriptor, 64, 0)
                if mark == self._seen:
                    return None
                data = os.pread(descriptor, size, 0)
                # The header holds the sequence: the same before and after means that nothing was written in between.
                if data[:64] != mark or os.pread(descriptor, 64, 0) != mark:
                    continue
                progress = decode(data)
                if progress is not None:
                    self._seen = mark
                    return progress
        except (OSError, BadProgress):
            return None
        finally:
            os.close(descriptor)
        return None

    def forget(self) -> None:
        """Removes the file: before a new start, so that the old one's counts are not taken for the new one's."""
        self._path.unlink(missing_ok=True)
        self._seen = None


def last_lines(path: Path, count: int, start: int = 0) -> list[str]:
    """The last lines of a log, of what was written after byte `start`; none where there is no log."""
    try:
        with path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(start if start <= end else 0, end - 400 * count))
            text = log.read()
    except OSError:
        return []
    return text.decode(errors="replace").splitlines()[-count:]
