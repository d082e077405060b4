"""What is SQLite's own; the contract of every store is tested in tests/contract."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from keys.errors import StoreUnavailable
from keys.model import Key
from keys.stores import sqlite
from keys.stores.sqlite import open_sqlite

KEY = Key("k_a", "app", "chat", "active", 1, "sk-dcu-chat-…a1b2", b"a" * 32, limit_tokens=1000)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_key_revoked_elsewhere_is_seen_within_one_second(tmp_path: Path) -> None:
    clock = Clock()
    here, there = await open_sqlite(tmp_path / "db", clock=clock), await open_sqlite(tmp_path / "db")
    await here.put_key(KEY)
    assert await here.find_key(KEY.digest) == KEY
    await there.put_key(replace(KEY, status="revoked"))
    clock.now += 0.999
    assert await here.find_key(KEY.digest) == KEY  # the cache answers
    clock.now += 0.001
    found = await here.find_key(KEY.digest)
    assert found is not None
    assert found.status == "revoked"
    await here.aclose()
    await there.aclose()


async def test_the_cache_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_CACHE_ENTRIES", 3)
    store = await open_sqlite(tmp_path / "db", clock=Clock())
    keys = [replace(KEY, id=f"k_{number}", digest=bytes([number]) * 32) for number in range(5)]
    for key in keys:
        await store.put_key(key)
    for key in keys:
        assert await store.find_key(key.digest) == key
    assert "cached_keys=3" in repr(store)
    await store.aclose()


async def test_what_was_kept_is_there_after_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        store = await open_sqlite(tmp_path / "db")
        await store.put_key(KEY)
        assert await store.list_keys() == [KEY]
        await store.aclose()
    assert [file.name for file in tmp_path.iterdir()] == ["db"]  # the WAL is folded in
    assert (tmp_path / "db").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [b"this is no database, and long enough to be looked at as one" * 20, b"SQLite format 3\0" + b"\xff" * 4096],
)
async def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "db").write_bytes(content)
    with pytest.raises(StoreUnavailable) as refused:
        await open_sqlite(tmp_path / "db")
    assert refused.value.reason == "damaged"
    assert (tmp_path / "db").read_bytes() == content


async def open_and_list(path: Path) -> None:
    store = await open_sqlite(path)
    try:
        await store.list_keys()
    finally:
        await store.aclose()


async def test_a_file_with_damaged_pages_is_said_to_be_damaged(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "db")
    for number in range(200):
        await store.put_key(replace(KEY, id=f"k_{number}", digest=number.to_bytes(32, "big")))
    await store.aclose()
    content = bytearray((tmp_path / "db").read_bytes())
    content[8192:] = b"\x99" * (len(content) - 8192)
    (tmp_path / "db").write_bytes(content)
    with pytest.raises(StoreUnavailable) as refused:
        await open_and_list(tmp_path / "db")
    assert refused.value.reason == "damaged"


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    await (await open_sqlite(tmp_path / "db")).aclose()
    with closing(sqlite3.connect(tmp_path / "db")) as connection:
        connection.execute("PRAGMA user_version=1000")
    with pytest.raises(StoreUnavailable) as refused:
        await open_sqlite(tmp_path / "db")
    assert refused.value.reason == "newer_schema"


async def test_a_file_locked_by_another_process_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keys.stores.sqlite_schema.BUSY_TIMEOUT_S", 0.05)
    store = await open_sqlite(tmp_path / "db")
    await store.put_key(KEY)
    with closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable) as refused:
            await store.ping()
        assert refused.value.reason == "busy"
        assert await store.find_key(KEY.digest) == KEY  # who may call is still known
        other.execute("ROLLBACK")
    await store.ping()
    await store.aclose()


async def test_a_running_report_holds_up_no_admission(tmp_path: Path) -> None:
    store = await open_sqlite(tmp_path / "db")
    await store.put_key(KEY)
    with closing(sqlite3.connect(tmp_path / "db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM ledger").fetchall()
        await store.reserve("dcu-1", KEY.id, 1, 0)
        assert await store.find_key(KEY.digest) == KEY
    await store.aclose()


FIRST_START = """
import asyncio, sys
from pathlib import Path
from keys.errors import QuotaExceeded
from keys.model import Key
from keys.stores.sqlite import open_sqlite

async def main():
    store = await open_sqlite(Path(sys.argv[1]))
    await store.put_key(Key("k_a", "app", "chat", "active", 1, "h", b"a" * 32, 1000))
    async def reserve(number):
        try:
            await store.reserve(f"{sys.argv[2]}-{number}", "k_a", 100, 0)
        except QuotaExceeded:
            return 0
        return 1
    print(sum(await asyncio.gather(*(reserve(number) for number in range(20)))))
    await store.aclose()

asyncio.run(main())
"""


async def test_processes_that_start_at_once_over_no_file_agree(tmp_path: Path) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", FIRST_START, str(tmp_path / "db"), str(number), stdout=subprocess.PIPE
        )
        for number in range(4)
    ]
    outputs = [await process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(int(output) for output, _ in outputs) == 10
