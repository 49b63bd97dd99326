"""The database under a stand: made empty, and asked in plain SQL beside the product."""

import asyncio
import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import asyncpg

from tenuto.testing.postgres import PostgresServer, execute

KINDS = ("sqlite", "postgres")
# On SQLite a dead worker is known by its file lock; on PostgreSQL its leases have to end, so they are short
# here. No shorter: a worker that a busy machine keeps from renewing would lose them alive.
LEASE_SECONDS = 3.0
_AWAY = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
_numbers = itertools.count(1)


class Log(Protocol):
    """`takeover_seconds`: how long nobody may go on with the threads of a worker that was killed."""

    url: str
    takeover_seconds: float

    async def query(self, sql: str) -> list[Any]:
        """The rows; none while the database is away or not there yet."""
        ...

    async def close(self) -> None: ...


class SqliteLog:
    takeover_seconds = 0.0

    def __init__(self, url: str) -> None:
        self.url = url
        self._path = url.removeprefix("sqlite:///")

    async def query(self, sql: str) -> list[Any]:
        with contextlib.suppress(sqlite3.OperationalError):
            place = f"file:{self._path}?mode=ro"
            with contextlib.closing(sqlite3.connect(place, uri=True, isolation_level=None)) as connection:
                return connection.execute(sql).fetchall()
        return []

    async def close(self) -> None:
        pass


class PostgresLog:
    def __init__(self, url: str, lease_seconds: float = LEASE_SECONDS) -> None:
        self.url = url
        self.takeover_seconds = lease_seconds
        self._connection: Any = None
        self._one_at_a_time = asyncio.Lock()  # else two connect at once, and one of the two is never closed

    async def query(self, sql: str) -> list[Any]:
        async with self._one_at_a_time:
            return await self._query(sql)

    async def _query(self, sql: str) -> list[Any]:
        with contextlib.suppress(*_AWAY):
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self.url, timeout=5, statement_cache_size=0)
            return [tuple(row) for row in await self._connection.fetch(sql)]
        return []

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()


def log_of(url: str) -> Log:
    return SqliteLog(url) if url.startswith("sqlite") else PostgresLog(url)


@contextlib.contextmanager
def a_server() -> Iterator[str]:
    """The URL of the PostgreSQL that TENUTO_TEST_POSTGRES names, or of one of our own."""
    if named := os.environ.get("TENUTO_TEST_POSTGRES"):
        yield named
        return
    with PostgresServer() as server:
        yield server.url


@contextlib.contextmanager
def empty(kind: str, place: Path, server: str) -> Iterator[str]:
    """The URL of an empty database: a file in `place`, or a schema at `server`, gone afterwards."""
    if kind == "sqlite":
        yield f"sqlite:///{place / 'tenuto.db'}"
        return
    schema = f"crash_{os.getpid()}_{next(_numbers)}"
    execute(server, f"CREATE SCHEMA {schema}")
    yield f"{server}{'&' if '?' in server else '?'}search_path={schema}"
    execute(server, f"DROP SCHEMA {schema} CASCADE")
