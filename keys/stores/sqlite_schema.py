"""One SQLite connection of ours: opening it, bringing its schema up to date, and what its errors mean.

Everything here blocks and belongs on the store's threads.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from keys.errors import StoreReason, StoreUnavailable
from keys.os_errors import store_unavailable

__all__ = ["APPLICATION_ID", "BUSY_TIMEOUT_S", "connect", "migrate", "migrations", "store_error"]

APPLICATION_ID = 0x44435547  # "DCUG": marks the file as ours, so that another program's database is never migrated
BUSY_TIMEOUT_S = 5.0
_NEARLY_NOTHING_BYTES = 65536  # the WAL index alone takes 32 KiB

_REASONS: dict[int, StoreReason] = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_FULL: "disk_full",
    sqlite3.SQLITE_READONLY: "not_writable",
    sqlite3.SQLITE_CANTOPEN: "not_writable",
    sqlite3.SQLITE_PERM: "not_writable",
    sqlite3.SQLITE_AUTH: "not_writable",
    sqlite3.SQLITE_NOTADB: "damaged",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_ERROR: "damaged",  # a table that is not there: our statements are right for our schema
}


def store_error(error: sqlite3.Error, path: Path) -> Exception:
    """Return what a caller of the store is to see: StoreUnavailable, or ValueError for a value the schema refuses."""
    if isinstance(error, sqlite3.IntegrityError):
        return ValueError(f"the store refuses the value: {error}")
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else sqlite3.SQLITE_IOERR
    reason = _REASONS.get(primary, "io_error")
    # SQLite says "full" of the database only; of the files beside it (WAL index, journal) it says "I/O error".
    if reason == "io_error" and _free_bytes(path) < _NEARLY_NOTHING_BYTES:
        reason = "disk_full"
    return StoreUnavailable(reason, str(path))


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, making the file (0600) where it is missing; the schema is left as it is.

    WAL with synchronous=NORMAL: a commit survives the end of the process; a power cut may take the last few.
    Raises sqlite3.Error or StoreUnavailable.
    """
    try:
        # Only where it is missing: closing any descriptor of a file drops all of this process's POSIX locks on it. With
        # them gone, the next process to close the database takes itself for the last and deletes the WAL that this one
        # goes on writing to (https://sqlite.org/howtocorrupt.html, section 2.2).
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise store_unavailable(IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)), path) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise store_unavailable(PermissionError(errno.EACCES, os.strerror(errno.EACCES)), path) from None
    except OSError as error:
        raise store_unavailable(error, path) from error
    # No implicit transactions: the store's threads say BEGIN themselves.
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        _use_wal(connection)
        connection.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def migrations() -> list[tuple[int, str]]:
    """Return the numbered migrations that ship with the package, in order: 0001_initial.sql is number 1."""
    folder = resources.files("keys.stores") / "migrations"
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted((int(file.name.split("_", 1)[0]), file.read_text(encoding="utf-8")) for file in files)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema to the newest version in one transaction: all of it or nothing.

    Several processes may do so at once; the later ones find nothing to do. Raises StoreUnavailable for a database that
    is newer than this program or is not ours, sqlite3.Error for what the database itself refuses.
    """
    steps = migrations()
    newest = steps[-1][0]
    if _version(connection, path, newest) == newest:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection, path, newest)
        for number, script in steps:
            if number > version:
                for statement in _statements(script):
                    connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={newest}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _free_bytes(path: Path) -> int:
    try:
        return shutil.disk_usage(path.parent).free
    except OSError:
        return _NEARLY_NOTHING_BYTES


def _version(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreUnavailable("foreign", str(path))
    if version > newest:
        raise StoreUnavailable("newer_schema", str(path))
    return version


def _use_wal(connection: sqlite3.Connection) -> None:
    # The change to WAL needs the file alone, and SQLite does not wait for that: two first starts at once would
    # refuse one another. The mode stays in the file, so this loop runs once in a database's life.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            # A file system without shared memory (some network mounts) cannot hold a database of several processes.
            raise sqlite3.OperationalError("the file system does not support WAL")
        return


def _statements(script: str) -> Iterator[str]:
    # A semicolon may stand inside a text or a trigger: SQLite itself says where a statement ends.
    statement = ""
    for piece in script.split(";"):
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
