from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from keys.errors import QuotaExceeded, StoreUnavailable
from keys.stores.sqlite_schema import connect
from keys.stores.sqlite_worker import Worker


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Worker]:
    path = tmp_path / "t.db"
    opened = Worker(path, partial(connect, path), "IMMEDIATE")
    await opened.call(lambda connection: connection.execute("CREATE TABLE t (x INTEGER CHECK (x >= 0))"))
    yield opened
    await opened.aclose()


def put(value: int, connection: sqlite3.Connection) -> int:
    connection.execute("INSERT INTO t VALUES (?)", (value,))
    return value


def put_and_fail(value: int, connection: sqlite3.Connection) -> int:
    put(value, connection)
    raise QuotaExceeded("limit_tokens", 0, value)


def values(connection: sqlite3.Connection) -> list[int]:
    return [x for (x,) in connection.execute("SELECT x FROM t ORDER BY x")]


async def hold(worker: Worker) -> threading.Event:
    """Keep the worker's thread busy until the event is set, so that what follows waits together."""
    started, release = threading.Event(), threading.Event()

    def work(_: sqlite3.Connection) -> None:
        started.set()
        release.wait(30)

    held = asyncio.ensure_future(worker.call(work))
    held.add_done_callback(lambda done: done.exception())
    await asyncio.to_thread(started.wait, 30)
    return release


async def test_calls_that_wait_at_one_moment_share_one_transaction(worker: Worker) -> None:
    release = await hold(worker)
    before = worker.transactions
    calls = [asyncio.ensure_future(worker.call(partial(put, number))) for number in range(100)]
    await asyncio.sleep(0)
    release.set()
    assert await asyncio.gather(*calls) == list(range(100))
    assert worker.transactions == before + 1


async def test_a_call_that_raises_undoes_its_own_writes_only(worker: Worker) -> None:
    release = await hold(worker)
    calls = [
        asyncio.ensure_future(worker.call(partial(put if number % 2 else put_and_fail, number))) for number in range(6)
    ]
    await asyncio.sleep(0)
    release.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [QuotaExceeded, int] * 3
    assert await worker.call(values) == [1, 3, 5]


async def test_a_refused_value_fails_its_own_call_only(worker: Worker) -> None:
    release = await hold(worker)
    calls = [asyncio.ensure_future(worker.call(partial(put, value))) for value in (1, -1, 2)]
    await asyncio.sleep(0)
    release.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [int, ValueError, int]
    assert await worker.call(values) == [1, 2]


async def test_a_full_disk_fails_every_call_of_its_transaction_and_space_heals_it(worker: Worker) -> None:
    pages = await worker.call(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])

    def limit_pages(most: int, connection: sqlite3.Connection) -> None:
        connection.execute(f"PRAGMA max_page_count={most}")

    def put_much(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE much AS SELECT randomblob(1000000) AS x")

    await worker.call(partial(limit_pages, pages))
    with pytest.raises(StoreUnavailable) as refused:
        await worker.call(put_much)
    assert refused.value.reason == "disk_full"
    assert await worker.call(values) == []
    await worker.call(partial(limit_pages, 1_000_000))
    assert await worker.call(partial(put, 1)) == 1


async def test_a_failing_commit_fails_every_call_and_keeps_nothing(worker: Worker) -> None:
    await worker.call(lambda connection: connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)"))
    await worker.call(
        lambda connection: connection.execute(
            "CREATE TABLE child (id INTEGER REFERENCES parent DEFERRABLE INITIALLY DEFERRED)"
        )
    )

    # A deferred foreign key is checked at COMMIT: it makes the commit itself fail.
    def orphan(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO child VALUES (1)")

    await _outside_a_transaction(worker, "PRAGMA foreign_keys=ON")
    release = await hold(worker)
    calls = [asyncio.ensure_future(worker.call(partial(put, 1))), asyncio.ensure_future(worker.call(orphan))]
    await asyncio.sleep(0)
    release.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ValueError, ValueError]
    assert await worker.call(values) == []


async def _outside_a_transaction(worker: Worker, statement: str) -> None:
    def work(connection: sqlite3.Connection) -> None:
        connection.execute("RELEASE call")
        connection.execute("COMMIT")
        connection.execute(statement)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("SAVEPOINT call")

    await worker.call(work)


async def test_a_cancelled_call_still_runs_and_harms_no_other(worker: Worker) -> None:
    release = await hold(worker)
    cancelled = asyncio.ensure_future(worker.call(partial(put, 1)))
    kept = asyncio.ensure_future(worker.call(partial(put, 2)))
    await asyncio.sleep(0)
    cancelled.cancel()
    release.set()
    assert await kept == 2
    assert await worker.call(values) == [1, 2]


async def test_a_connection_that_cannot_be_made_is_tried_again_at_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "later" / "t.db"
    worker = Worker(path, partial(connect, path), "DEFERRED")
    with pytest.raises(StoreUnavailable) as refused:
        await worker.call(lambda _: None)
    assert refused.value.reason == "not_writable"
    path.parent.mkdir()
    assert await worker.call(lambda _: "answer") == "answer"
    await worker.aclose()


async def test_a_bug_in_connecting_reaches_the_caller_and_the_thread_lives_on(tmp_path: Path) -> None:
    def broken() -> sqlite3.Connection:
        raise LookupError("bug")

    worker = Worker(tmp_path / "t.db", broken, "DEFERRED")
    for _ in range(2):
        with pytest.raises(LookupError, match="bug"):
            await worker.call(lambda _: None)
    await worker.aclose()


async def test_closing_runs_what_waits_ends_the_thread_and_can_be_repeated(worker: Worker) -> None:
    release = await hold(worker)
    waiting = asyncio.ensure_future(worker.call(partial(put, 1)))
    await asyncio.sleep(0)
    closing = asyncio.gather(worker.aclose(), worker.aclose())
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable) as refused:
        await worker.call(values)
    assert refused.value.reason == "closed"
    release.set()
    assert await waiting == 1
    await closing
    assert "closed" in repr(worker)
    assert not any(thread.name == "sqlite t.db" for thread in threading.enumerate())


async def test_a_worker_that_was_never_used_starts_no_thread(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "t.db", partial(connect, tmp_path / "t.db"), "DEFERRED")
    assert "idle" in repr(worker)
    await worker.aclose()
    assert not (tmp_path / "t.db").exists()
