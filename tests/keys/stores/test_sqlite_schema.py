from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from keys.errors import StoreUnavailable
from keys.stores import sqlite_schema
from keys.stores.sqlite_schema import APPLICATION_ID, connect, migrate, migrations, store_error


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(tmp_path / "dcugate.db")) as opened:
        yield opened


def pragma(connection: sqlite3.Connection, name: str) -> object:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_connection_is_wal_with_normal_sync_and_a_busy_timeout(connection: sqlite3.Connection) -> None:
    assert pragma(connection, "journal_mode") == "wal"
    assert pragma(connection, "synchronous") == 1
    assert pragma(connection, "busy_timeout") == 5000


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_fresh_file_gets_the_newest_schema_and_our_mark(connection: sqlite3.Connection, tmp_path: Path) -> None:
    migrate(connection, tmp_path)
    migrate(connection, tmp_path)
    assert pragma(connection, "user_version") == migrations()[-1][0]
    assert pragma(connection, "application_id") == APPLICATION_ID
    indexes = [row[1] for row in connection.execute("PRAGMA index_list(api_key)") if row[2]]
    assert "api_key_by_digest" in indexes


def test_only_the_missing_migrations_run(
    connection: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(connection, tmp_path)
    newer = [*migrations(), (99, "CREATE TABLE later (x TEXT DEFAULT ';'); INSERT INTO later VALUES ('a;b');\n")]
    monkeypatch.setattr(sqlite_schema, "migrations", lambda: newer)
    migrate(connection, tmp_path)
    assert connection.execute("SELECT x FROM later").fetchone() == ("a;b",)
    assert pragma(connection, "user_version") == 99


def test_a_failing_migration_leaves_the_old_schema(
    connection: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(connection, tmp_path)
    version = pragma(connection, "user_version")
    broken = [*migrations(), (99, "CREATE TABLE later (x);\nINSERT INTO nowhere VALUES (1);\n")]
    monkeypatch.setattr(sqlite_schema, "migrations", lambda: broken)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, tmp_path)
    assert pragma(connection, "user_version") == version
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'later'").fetchone() == (0,)


def test_a_newer_schema_is_refused(connection: sqlite3.Connection, tmp_path: Path) -> None:
    migrate(connection, tmp_path)
    connection.execute("PRAGMA user_version=1000")
    with pytest.raises(StoreUnavailable) as refused:
        migrate(connection, tmp_path)
    assert refused.value.reason == "newer_schema"


@pytest.mark.parametrize("mark", ["CREATE TABLE theirs (x)", "PRAGMA user_version=1", "PRAGMA application_id=7"])
def test_another_programs_database_is_refused_and_left_alone(
    connection: sqlite3.Connection, tmp_path: Path, mark: str
) -> None:
    connection.execute(mark)
    before = list(connection.iterdump())
    with pytest.raises(StoreUnavailable) as refused:
        migrate(connection, tmp_path)
    assert refused.value.reason == "foreign"
    assert list(connection.iterdump()) == before


def test_a_folder_in_the_files_place_is_not_writable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        connect(tmp_path)
    assert refused.value.reason == "not_writable"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (sqlite3.SQLITE_BUSY, "busy"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "busy"),
        (sqlite3.SQLITE_FULL, "disk_full"),
        (sqlite3.SQLITE_READONLY, "not_writable"),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, "not_writable"),
        (sqlite3.SQLITE_NOTADB, "damaged"),
        (sqlite3.SQLITE_CORRUPT, "damaged"),
        (sqlite3.SQLITE_IOERR_WRITE, "io_error"),
        (sqlite3.SQLITE_NOMEM, "io_error"),
        (None, "io_error"),
    ],
)
def test_each_sqlite_code_gets_its_reason(code: int | None, reason: str) -> None:
    error = sqlite3.OperationalError("secret detail")
    if code is not None:
        error.sqlite_errorcode = code
    mapped = store_error(error, Path("/state/dcugate.db"))
    assert isinstance(mapped, StoreUnavailable)
    assert mapped.reason == reason
    assert "secret detail" not in str(mapped)


def test_an_io_error_on_a_disk_without_space_means_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = sqlite3.OperationalError()
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    for free, reason in ((1 << 30, "io_error"), (4096, "disk_full")):
        monkeypatch.setattr(sqlite_schema, "_free_bytes", lambda _, free=free: free)
        mapped = store_error(error, tmp_path / "db")
        assert isinstance(mapped, StoreUnavailable)
        assert mapped.reason == reason


def test_a_value_that_the_schema_refuses_is_no_unavailable_store() -> None:
    assert isinstance(store_error(sqlite3.IntegrityError("CHECK constraint failed"), Path("/x")), ValueError)
