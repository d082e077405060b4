"""The embedded store: one SQLite file, shared by any number of processes of one machine."""

# ruff: noqa: S608  the texts put into statements are this module's constants; every value is bound

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from keys.errors import DuplicateReservation, InvalidKey, QuotaExceeded, UnknownKey
from keys.model import GROUPINGS, Grouping, Key, LedgerRow, UsageTotals
from keys.quota import Denied, decide
from keys.stores.base import LEASE_MS, Store
from keys.stores.sqlite_schema import connect, migrate
from keys.stores.sqlite_worker import Worker

__all__ = ["SqliteStore", "open_sqlite"]

_CACHE_SECONDS = 1.0
_CACHE_ENTRIES = 4096

_KEY_COLUMNS = "id, name, purpose, status, created_ms, hint, digest, limit_tokens, last_used_ms"
_ROW_COLUMNS = (
    "request_id, key_id, purpose, model, worker, route, input_tokens, cached_tokens, output_tokens, device_ms, "
    "ttft_ms, duration_ms, status, estimated, started_ms, http_status"
)
_LABELS: dict[Grouping, str] = {
    "key": "key_id",
    "purpose": "purpose",
    "model": "model",
    "worker": "worker",
    "day": "date(started_ms / 1000, 'unixepoch')",
}


async def open_sqlite(path: Path, *, clock: Callable[[], float] = time.monotonic) -> SqliteStore:
    """Open the store in the file at `path`, making it or bringing its schema up to date first.

    `clock` gives seconds and only ages the look-up cache. The caller ends with `await store.aclose()`. Raises
    StoreUnavailable, with nothing left open, where the file cannot be used, is damaged, or was written by a newer
    version or by another program.
    """
    store = SqliteStore(path, clock)
    try:
        await store.ping()
    except BaseException:
        await store.aclose()
        raise
    return store


class SqliteStore(Store):
    """`Store` over one SQLite file; made by `open_sqlite`.

    Three threads, each with a connection: the writer (group commit), the reader for keys, and one for reports, so that
    a long report holds up neither an admission nor an authentication. The latter two start when first needed.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._writer = Worker(path, partial(_open_migrated, path), "IMMEDIATE")
        self._keys = Worker(path, partial(connect, path), "DEFERRED")
        self._reports = Worker(path, partial(connect, path), "DEFERRED")
        self._cache: OrderedDict[bytes, tuple[float, Key]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<SqliteStore writer={self._writer!r} cached_keys={len(self._cache)}>"

    async def find_key(self, digest: bytes) -> Key | None:
        now = self._clock()  # before the look-up, so that an answer is never older than its age says
        cached = self._cache.get(digest)
        if cached is not None:
            if now - cached[0] < _CACHE_SECONDS:
                return cached[1]
            del self._cache[digest]
        key = await self._keys.call(partial(_find_key, digest))
        # Unknown digests are not kept: a new key works at once, and guesses cannot push real keys out.
        if key is not None:
            self._cache[digest] = (now, key)
            self._cache.move_to_end(digest)
            if len(self._cache) > _CACHE_ENTRIES:
                self._cache.popitem(last=False)
        return key

    async def put_key(self, key: Key) -> None:
        try:
            await self._writer.call(partial(_put_key, key))
        finally:
            self._cache.clear()

    async def list_keys(self) -> list[Key]:
        return await self._keys.call(_list_keys)

    async def reserve(self, request_id: str, key_id: str, tokens: int, now_ms: int) -> None:
        await self._writer.call(partial(_reserve, request_id, key_id, tokens, now_ms))

    async def renew(self, request_ids: Iterable[str], now_ms: int) -> None:
        ids = list(request_ids)
        if ids:
            await self._writer.call(partial(_renew, ids, now_ms))

    async def settle(self, row: LedgerRow, now_ms: int) -> bool:
        return await self._writer.call(partial(_settle, row, now_ms))

    async def sweep(self, now_ms: int) -> list[str]:
        return await self._writer.call(partial(_sweep, now_ms))

    async def usage(
        self, group_by: Grouping, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[tuple[str, UsageTotals]]:
        if group_by not in GROUPINGS:
            raise ValueError(f"usage is not grouped by {group_by!r}")
        return await self._reports.call(partial(_usage, group_by, since_ms, until_ms))

    async def rows(self, limit: int = 100, key_id: str | None = None) -> list[LedgerRow]:
        if limit < 0:
            raise ValueError("the number of rows is negative")
        return await self._reports.call(partial(_rows, limit, key_id))

    async def ping(self) -> None:
        await self._writer.call(_ping)

    async def aclose(self) -> None:
        # The writer last: whoever closes the file last folds the WAL into it.
        await asyncio.gather(self._keys.aclose(), self._reports.aclose())
        await self._writer.aclose()
        self._cache.clear()


def _open_migrated(path: Path) -> sqlite3.Connection:
    connection = connect(path)
    try:
        migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


# The closures below run on a worker's thread, inside its transaction.


def _find_key(digest: bytes, connection: sqlite3.Connection) -> Key | None:
    found = connection.execute(f"SELECT {_KEY_COLUMNS} FROM api_key WHERE digest = ?", (digest,)).fetchone()
    return Key(*found) if found else None


def _list_keys(connection: sqlite3.Connection) -> list[Key]:
    return [Key(*found) for found in connection.execute(f"SELECT {_KEY_COLUMNS} FROM api_key ORDER BY created_ms, id")]


def _put_key(key: Key, connection: sqlite3.Connection) -> None:
    if connection.execute("SELECT 1 FROM api_key WHERE digest = ? AND id <> ?", (key.digest, key.id)).fetchone():
        raise InvalidKey("taken")
    connection.execute(
        f"INSERT INTO api_key ({_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "name = excluded.name, limit_tokens = excluded.limit_tokens, "
        "status = CASE api_key.status WHEN 'revoked' THEN 'revoked' ELSE excluded.status END",
        (
            key.id,
            key.name,
            key.purpose,
            key.status,
            key.created_ms,
            key.hint,
            key.digest,
            key.limit_tokens,
            key.last_used_ms,
        ),
    )


def _reserve(request_id: str, key_id: str, tokens: int, now_ms: int, connection: sqlite3.Connection) -> None:
    # 1. Once only.
    known = connection.execute(
        "SELECT 1 FROM reservation WHERE request_id = ?1 UNION ALL SELECT 1 FROM ledger WHERE request_id = ?1",
        (request_id,),
    ).fetchone()
    if known:
        raise DuplicateReservation(request_id)
    # 2. For a key that is alive now, whatever a cache said.
    key = connection.execute("SELECT status, limit_tokens, used_tokens FROM api_key WHERE id = ?", (key_id,)).fetchone()
    if key is None or key[0] != "active":
        raise UnknownKey
    # 3. Within its limit. Leases that ran out hold nothing, swept or not.
    _, limit_tokens, used_tokens = key
    reserved_tokens = 0
    if limit_tokens is not None:
        (reserved_tokens,) = connection.execute(
            "SELECT coalesce(sum(tokens), 0) FROM reservation WHERE key_id = ? AND expires_ms > ?", (key_id, now_ms)
        ).fetchone()
    decision = decide(limit_tokens, used_tokens, reserved_tokens, tokens)
    if isinstance(decision, Denied):
        raise QuotaExceeded("limit_tokens", decision.remaining_tokens, tokens)
    # 4. Held.
    connection.execute(
        "INSERT INTO reservation (request_id, key_id, tokens, expires_ms) VALUES (?, ?, ?, ?)",
        (request_id, key_id, tokens, now_ms + LEASE_MS),
    )


def _renew(request_ids: list[str], now_ms: int, connection: sqlite3.Connection) -> None:
    connection.executemany(
        "UPDATE reservation SET expires_ms = max(expires_ms, ?) WHERE request_id = ?",
        [(now_ms + LEASE_MS, request_id) for request_id in request_ids],
    )


def _settle(row: LedgerRow, now_ms: int, connection: sqlite3.Connection) -> bool:
    written = connection.execute(
        f"INSERT INTO ledger ({_ROW_COLUMNS}, settled_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (request_id) DO NOTHING",
        (
            row.request_id,
            row.key_id,
            row.purpose,
            row.model,
            row.worker,
            row.route,
            row.input_tokens,
            row.cached_tokens,
            row.output_tokens,
            row.device_ms,
            row.ttft_ms,
            row.duration_ms,
            row.status,
            row.estimated,
            row.started_ms,
            row.http_status,
            now_ms,
        ),
    )
    if written.rowcount == 0:
        return False
    connection.execute("DELETE FROM reservation WHERE request_id = ?", (row.request_id,))
    connection.execute(
        "UPDATE api_key SET used_tokens = used_tokens + ?, last_used_ms = max(coalesce(last_used_ms, 0), ?) "
        "WHERE id = ?",
        (row.total_tokens, now_ms, row.key_id),
    )
    return True


def _sweep(now_ms: int, connection: sqlite3.Connection) -> list[str]:
    expired = connection.execute(
        "SELECT request_id FROM reservation WHERE expires_ms <= ? ORDER BY expires_ms, request_id", (now_ms,)
    )
    request_ids = [request_id for (request_id,) in expired]
    connection.execute("DELETE FROM reservation WHERE expires_ms <= ?", (now_ms,))
    return request_ids


def _usage(
    group_by: Grouping, since_ms: int | None, until_ms: int | None, connection: sqlite3.Connection
) -> list[tuple[str, UsageTotals]]:
    conditions, values = ["1"], []
    for condition, bound in (("started_ms >= ?", since_ms), ("started_ms < ?", until_ms)):
        if bound is not None:
            conditions.append(condition)
            values.append(bound)
    found = connection.execute(
        f"SELECT {_LABELS[group_by]} AS label, count(*), sum(input_tokens), sum(cached_tokens), sum(output_tokens), "
        f"sum(device_ms) FROM ledger WHERE {' AND '.join(conditions)} GROUP BY label ORDER BY label",
        values,
    )
    return [(label, UsageTotals(*sums)) for label, *sums in found]


def _rows(limit: int, key_id: str | None, connection: sqlite3.Connection) -> list[LedgerRow]:
    condition, values = ("WHERE key_id = ? ", [key_id]) if key_id is not None else ("", [])
    found = connection.execute(
        f"SELECT {_ROW_COLUMNS} FROM ledger {condition}ORDER BY seq DESC LIMIT ?", (*values, limit)
    )
    return [_ledger_row(columns) for columns in found]


def _ledger_row(columns: tuple[Any, ...]) -> LedgerRow:
    row = LedgerRow(*columns)
    return replace(row, estimated=bool(row.estimated))  # SQLite gives 0 or 1


def _ping(connection: sqlite3.Connection) -> None:
    # BEGIN IMMEDIATE before it took the write lock: the file is there and can be written.
    connection.execute("SELECT 1 FROM api_key LIMIT 1").fetchone()
