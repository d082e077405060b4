"""One thread that owns one SQLite connection, and group commit: all calls waiting at one moment share a transaction."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from keys.errors import StoreUnavailable
from keys.stores.sqlite_schema import store_error

__all__ = ["Worker"]

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], Any]

# Bounds how long one transaction keeps the file locked for other processes: 256 short calls are about 10 ms.
_LARGEST_BATCH = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    work: Work
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    error: BaseException | None = None


class Worker:
    """Runs closures over its connection, on its own thread, in the order in which they were given.

    A closure runs inside a savepoint: one that raises undoes its own writes and nobody else's. A closure's result is
    handed out only after the commit; where the commit fails, every call of that transaction fails. The thread and the
    connection are made at the first call; a connection that could not be made is tried again at the next one.
    """

    def __init__(
        self, path: Path, connect: Callable[[], sqlite3.Connection], transaction: Literal["IMMEDIATE", "DEFERRED"]
    ) -> None:
        self._path = path
        self._connect = connect
        self._begin = f"BEGIN {transaction}"
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None  # touched by the thread only
        self._closed = False
        self._ended = asyncio.Event()
        self.transactions = 0
        """How many transactions were begun: what group commit saves can be seen."""

    def __repr__(self) -> str:
        state = "closed" if self._closed else "running" if self._thread else "idle"
        return f"<Worker {self._path} {state} transactions={self.transactions}>"

    async def call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a closure and return its result after the commit. Does not block the loop.

        Raises what the closure raised; StoreUnavailable where SQLite failed or after `aclose`. Where the caller is
        cancelled meanwhile, the closure still runs.
        """
        if self._closed:
            raise StoreUnavailable("closed", str(self._path))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"sqlite {self._path.name}", daemon=True)
            self._thread.start()
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Job(work, future))
        return await future

    async def aclose(self) -> None:
        """Run what was given before, then close the connection and end the thread. May be repeated."""
        first, self._closed = not self._closed, True
        if self._thread is None:
            return
        if first:
            self._queue.put(None)
        await self._ended.wait()
        self._thread.join()  # its last act was to set the event

    def _run(self) -> None:
        stopping = False
        while not stopping:
            batch: list[_Job] = []
            item = self._queue.get()
            while True:
                if item is None:
                    stopping = True
                    break
                batch.append(item)
                if len(batch) == _LARGEST_BATCH:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if batch:
                self._tell(self._hand_out, batch, self._transact(batch))
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        self._tell(self._ended.set)

    def _tell(self, callback: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _hand_out(self, batch: list[_Job], outcomes: list[_Outcome]) -> None:
        for job, outcome in zip(batch, outcomes, strict=True):
            if job.future.done():  # cancelled
                continue
            if outcome.error is not None:
                job.future.set_exception(outcome.error)
            else:
                job.future.set_result(outcome.value)

    def _transact(self, batch: list[_Job]) -> list[_Outcome]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            connection.execute(self._begin)
            self.transactions += 1
            try:
                outcomes = [self._attempt(connection, job) for job in batch]
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return outcomes
        except sqlite3.Error as error:
            # One instance each: an exception object raised in several tasks mixes up their tracebacks.
            return [_Outcome(error=store_error(error, self._path)) for _ in batch]
        except StoreUnavailable as error:
            return [_Outcome(error=StoreUnavailable(error.reason, error.path)) for _ in batch]
        except Exception as error:  # a bug: the callers see it and the thread lives on
            return [_Outcome(error=error) for _ in batch]

    def _attempt(self, connection: sqlite3.Connection, job: _Job) -> _Outcome:
        connection.execute("SAVEPOINT call")
        try:
            outcome = _Outcome(value=job.work(connection))
        except sqlite3.Error as error:
            if not connection.in_transaction:
                raise  # SQLite gave the whole transaction up (disk full, I/O error): every call of it fails
            outcome = _Outcome(error=store_error(error, self._path))
        except Exception as error:
            outcome = _Outcome(error=error)
        if outcome.error is not None:
            connection.execute("ROLLBACK TO call")
        connection.execute("RELEASE call")
        return outcome
