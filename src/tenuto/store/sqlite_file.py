"""A database file: opening it, bringing its schema up to date, and saying what is wrong with it."""

import contextlib
import functools
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tenuto import limits
from tenuto.errors import InvalidInput, NewerSchema, StoreError, TenutoError
from tenuto.rows import labels_of

MIGRATIONS: Final = tuple(sorted((Path(__file__).parent / "migrations" / "sqlite").glob("*.sql")))
APPLICATION_ID: Final = int.from_bytes(b"Tenu", "big")
# One text that is no UTF-8 must not keep the rest of a page from being read.
TEXT: Final = functools.partial(str, encoding="utf-8", errors="replace")


def open_file(path: str) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """The writing and the reading connection of a database, which is created or migrated first.

    Blocks while another process migrates it. Raises `StoreError`, `NewerSchema`; the file is then as it was.
    """
    if path != ":memory:":
        _check_place(Path(path))
    connections: list[sqlite3.Connection] = []
    try:
        writing = _connect(path, connections)
        _migrate(path, writing)
        writing.execute("PRAGMA synchronous = FULL")
        writing.execute("SELECT max(num) FROM events").fetchone()  # what cannot be read is to be said here
        if path == ":memory:":
            return writing, writing
        reading = _connect(path, connections)
        reading.execute("PRAGMA query_only = ON")
    except BaseException as error:
        for connection in connections:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise store_error(path, error) from error
        raise
    return writing, reading


def look_at(path: str) -> sqlite3.Connection:
    """A connection that changes nothing. Without a `-wal` file nobody writes, and none is made either."""
    how = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    connection = sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, isolation_level=None)
    connection.text_factory = TEXT
    return connection


def schema_of(path: str) -> int:
    """0 when there is none yet. Raises `StoreError`, `NewerSchema`."""
    if path == ":memory:" or not Path(path).exists():
        return 0
    try:
        with contextlib.closing(look_at(path)) as connection:
            return check_version(path, connection)
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def store_error(path: str, error: Exception, *, unknown: bool = False) -> TenutoError:
    """What a caller is told of the database's own error. `unknown`: the commit may have happened."""
    if isinstance(error, TenutoError):
        return error
    if isinstance(error, UnicodeEncodeError):
        return InvalidInput(f"text that UTF-8 cannot carry: {error.reason}")
    reason = str(error) or type(error).__name__
    if "locked" in reason:
        reason += f" (another process kept it for more than {limits.BUSY_TIMEOUT_SECONDS:g} s)"
    if "unable to open" in reason or "readonly" in reason:
        reason += " (its folder has to be writable, also to read: SQLite keeps its WAL there; or copy it)"
    if unknown:
        reason += "; whether the last write was kept is unknown: try it again with the same append id"
    wrapped = StoreError(f"{path}: {reason}", unknown=unknown)
    wrapped.__cause__ = error
    return wrapped


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a directory, not a database file")
    if not path.parent.is_dir():
        raise StoreError(f"{path} cannot be opened: there is no directory {path.parent}")


def _connect(path: str, connections: list[sqlite3.Connection]) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        timeout=limits.BUSY_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=False,  # used by one thread at a time, as the writer sees to
        cached_statements=256,
    )
    connection.text_factory = TEXT
    connections.append(connection)
    return connection


def _migrate(path: str, connection: sqlite3.Connection) -> None:
    """Nothing is written to the file before it is known to be ours and not newer."""
    version = check_version(path, connection)
    if path != ":memory:" and connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        _use_wal(connection)
    if version == len(MIGRATIONS):
        return
    connection.create_function("label_of", 2, lambda name, text: labels_of({name: text})[0])
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have migrated it while this one waited for the lock.
        for number in range(check_version(path, connection) + 1, len(MIGRATIONS) + 1):
            for statement in MIGRATIONS[number - 1].read_text(encoding="utf-8").split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _use_wal(connection: sqlite3.Connection) -> None:
    """The change of mode does not wait for a lock by itself, so it is made where a lock was waited for."""
    for _ in range(100):
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
    raise sqlite3.OperationalError("database is locked")


def check_version(path: str, connection: sqlite3.Connection) -> int:
    # In this order: another process may make the schema just now, all at once, and then signs it as ours.
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID and (version or tables):
        raise StoreError(f"{path} is a database of some other program; name another file")
    if version > len(MIGRATIONS):
        raise NewerSchema(
            f"{path} has schema {version}, written by a later version of Tenuto; this one knows schemas "
            f"up to {len(MIGRATIONS)}. Upgrade Tenuto to use it; nothing was changed",
            version=version,
            supported=len(MIGRATIONS),
        )
    return version
