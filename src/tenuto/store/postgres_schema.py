"""The schema of a PostgreSQL database, and the words for what goes wrong with one."""

from pathlib import Path
from typing import Any, Final

import asyncpg

from tenuto import limits
from tenuto.errors import ConfigurationError, InvalidInput, NewerSchema, StoreError, TenutoError

MIGRATIONS: Final = tuple(sorted((Path(__file__).parent / "migrations" / "postgres").glob("*.sql")))
LOCK: Final = int.from_bytes(b"Tenuto")  # taken in this database by whoever migrates
# What the driver says of a connection that the server has cut off, before it sends anything by it.
CROWDED: Final = "53300"  # all connections that the server has are in use
NOT_SENT: Final = ("cannot switch to state", "connection is closed")
FAULTS: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)


async def version_of(connection: Any, place: str) -> int:
    """0 where the first schema of `search_path` has none yet. Raises `NewerSchema`, `ConfigurationError`."""
    version: int = 0
    if await connection.fetchval("SELECT current_schema()") is None:
        raise ConfigurationError(f"{place}: search_path names no schema that there is; CREATE SCHEMA it")
    # Not by to_regclass, which may remember that there was none a moment ago.
    if await connection.fetchval(
        "SELECT count(*) FROM pg_catalog.pg_class "
        "WHERE relname = 'tenuto_schema' AND relnamespace = current_schema()::regnamespace"
    ):
        version = await connection.fetchval("SELECT max(version) FROM tenuto_schema")
    if version > len(MIGRATIONS):
        raise NewerSchema(
            f"{place} has schema {version}, written by a later version of Tenuto; this one knows schemas "
            f"up to {len(MIGRATIONS)}. Upgrade Tenuto to use it; nothing was changed",
            version=version,
            supported=len(MIGRATIONS),
        )
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
    `passing`: it is worth trying again; `silent`: so it is for those who have more time.
    """
    state = getattr(error, "sqlstate", None) or ""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return ConfigurationError(f"{place}: {error}")
    if isinstance(error, asyncpg.DataError):
        return InvalidInput(f"text that PostgreSQL cannot carry: {error}", alone=True)
    reason = str(error) or type(error).__name__
    if isinstance(error, TimeoutError) and connected:
        reason = f"no answer within {limits.STATEMENT_SECONDS:g} s"
    elif isinstance(error, TimeoutError):
        reason = (
            f"no connection within {limits.POOL_WAIT_SECONDS:g} s: all are in use, or the server is silent"
        )
    lost = not state or state.startswith(("08", "57P"))
    unknown = wrote and lost and not reason.startswith(NOT_SENT)
    if unknown:
        reason += "; whether the last write was kept is unknown: try it again with the same append id"
    late = isinstance(error, TimeoutError)
    facts = {"unknown": unknown, "alone": wrote and not lost, "silent": late and not connected}
    wrapped = StoreError(f"{place}: {reason}", passing=(lost or state == CROWDED) and not late, **facts)
    wrapped.__cause__ = error
    return wrapped
