"""The schema of a PostgreSQL database, and the words for what goes wrong with one."""

from pathlib import Path
from typing import Any, Final

import asyncpg

from tenuto import limits
from tenuto.errors import ConfigurationError, InvalidInput, NewerSchema, StoreError, TenutoError

MIGRATIONS: Final = tuple(sorted((Path(__file__).parent / "migrations" / "postgres").glob("*.sql")))
LOCK: Final = int.from_bytes(b"Tenuto")  # taken in this database by whoever migrates
CROWDED: Final = "53300"  # all connections that the server has are in use
READ_ONLY: Final = "25006"  # this server no longer takes what is written: another does, or will
BUSY: Final = (CROWDED, "40001", "40P01", "55P03", "57014")  # others are: locks, timeouts set for the user
NOT_SENT: Final = ("cannot switch to state", "connection is closed")  # by one that the server had cut before
WRONG: Final = (ValueError, OverflowError)  # a URL, its port, or what it names
FAULTS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, *WRONG)


async def version_of(connection: Any, place: str) -> int:
    """0 where the first schema of `search_path` has none yet. Raises `NewerSchema`, `ConfigurationError`."""
    if await connection.fetchval("SELECT current_schema()") is None:
        raise ConfigurationError(f"{place}: search_path names no schema that there is; CREATE SCHEMA it")
    # Not by to_regclass, which may remember that there was none a moment ago.
    version: int = await connection.fetchval(
        "SELECT count(*) FROM pg_catalog.pg_class WHERE relname = 'tenuto_schema' "
        "AND relnamespace = quote_ident(current_schema())::regnamespace"
    ) and await connection.fetchval("SELECT max(version) FROM tenuto_schema")
    if version > len(MIGRATIONS):
        told = f"{place} has schema {version}, written by a later version of Tenuto; this one knows schemas "
        told += f"up to {len(MIGRATIONS)}. Upgrade Tenuto to use it; nothing was changed"
        raise NewerSchema(told, version=version, supported=len(MIGRATIONS))
    return version


async def migrate(connection: Any, place: str) -> None:
    """Bring the schema up to date, all of it or nothing. Of several processes one does, the others wait."""
    if await version_of(connection, place) == len(MIGRATIONS):
        return
    async with connection.transaction():
        await connection.execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        version = await version_of(connection, place)
        if version == 0:
            await connection.execute("CREATE TABLE tenuto_schema (version integer NOT NULL PRIMARY KEY)")
        for number in range(version + 1, len(MIGRATIONS) + 1):
            await connection.execute(MIGRATIONS[number - 1].read_text(encoding="utf-8"))
            await connection.execute("INSERT INTO tenuto_schema VALUES ($1)", number)


def store_error(place: str, error: Exception, *, connected: bool = True, wrote: bool = False) -> TenutoError:
    """What a caller is told. `connected`: there was a connection to use; `wrote`: a write was sent by it.

    A statement's own error undoes it, and `alone` asks for the others of its batch to be tried without it.
    When the connection ends (class 08, and 57P: the server ended it), nobody knows, unless nothing was sent.
    `away`: it says nothing of what was asked. `passing`: worth another try; `silent`: for who has more time.
    """
    state = getattr(error, "sqlstate", None) or ""
    if isinstance(error, asyncpg.DataError):
        return InvalidInput(f"text that PostgreSQL cannot carry: {error}", alone=True)
    if isinstance(error, WRONG) and not isinstance(error, OSError):  # as an untrusted certificate is
        return ConfigurationError(f"{place}: {error}")
    reason, late = str(error) or type(error).__name__, isinstance(error, TimeoutError)
    if late and connected:
        reason = f"no answer within {limits.STATEMENT_SECONDS:g} s"
    elif late:
        reason = f"no connection within {limits.POOL_WAIT_SECONDS:g} s: all in use, or the server is silent"
    elif isinstance(error, FileNotFoundError):
        reason = "the URL names a file or a socket that is not here"
    lost = not state or state.startswith(("08", "57P"))
    unknown = wrote and lost and not reason.startswith(NOT_SENT)
    if unknown:
        reason += "; whether the last write was kept is unknown: try it again with the same append id"
    away = lost or state in (READ_ONLY, *BUSY)
    facts = {"unknown": unknown, "alone": wrote and not lost, "silent": late and not connected, "away": away}
    facts |= {"passing": away and not late, "crowded": state == CROWDED, "busy": state in BUSY}
    return StoreError(f"{place}: {reason}", **facts)
