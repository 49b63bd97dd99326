"""What `tenuto doctor` looks at where the database is PostgreSQL. It only reads, and makes no schema.

A check asks by the one connection that all share; what it cannot ask is a finding, and the others go on.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from tenuto import limits
from tenuto.cli.doctor import Finding, Level
from tenuto.cli.terminal import span
from tenuto.errors import NewerSchema, TenutoError
from tenuto.store.postgres import PostgresStore

Check = Callable[[PostgresStore, Any], AsyncIterator[Finding]]
OLDEST_VERSION: Final = 13
TABLES: Final = ("threads", "events", "interrupts", "labels", "blobs", "records", "workers", "tenuto_schema")
FEWER: Final = "fewer processes, a smaller pool= in the URL, a larger max_connections, or a pooler"
UNPREPARED: Final = (
    "a pooler in transaction mode that keeps no prepared statements: put prepared=off into the URL"
)
# What to do where there is no way in, by the class or code of the server's answer.
WAYS_IN: Final = {
    "28": "look at user and password in the URL, and at pg_hba.conf of the server",
    "3D": "make it: createdb NAME; or name another one in the URL",
    "53300": f"all connections of the server are in use: {FEWER}",
    "57P03": "the server starts or stops: wait, and look at its log",
    "42501": "let this user: GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO USER",
    "42P05": UNPREPARED,
    "26": UNPREPARED,
}


async def examine(store: Any) -> AsyncIterator[Finding]:
    """Everything; where nobody can connect, why."""
    begun = time.monotonic()
    try:
        async with store.connected() as connection:
            number = connection.get_server_version()
            answered = f"{store.place} answers within {(time.monotonic() - begun) * 1000:.0f} ms"
            yield _version(answered, number)
            for check in (_server, _schema, _connections, _clock, _pooler, _listen, _threads):
                async for finding in _checked(check, store, connection):
                    yield finding
    except (TenutoError, OSError) as error:
        advice = "may this machine connect to it? Look at host and port in the URL, at sslmode, at firewalls"
        yield Finding("database", "problem", str(error), _advice(error, advice))


def _advice(error: BaseException, otherwise: str) -> str:
    by_driver = error if hasattr(error, "sqlstate") else error.__cause__
    state = str(getattr(by_driver, "sqlstate", None) or "")
    return WAYS_IN.get(state) or WAYS_IN.get(state[:2]) or otherwise


def _version(answered: str, found: Any) -> Finding:
    if found.major < OLDEST_VERSION:
        advice = f"use {OLDEST_VERSION} or later: this one is not tried"
        return Finding("database", "problem", f"{answered}, PostgreSQL {found.major}", advice)
    return Finding("database", "ok", f"{answered}, PostgreSQL {found.major}.{found.minor}")


async def _checked(check: Check, store: PostgresStore, connection: Any) -> AsyncIterator[Finding]:
    name = check.__name__.strip("_")
    try:
        async with asyncio.timeout(limits.DOCTOR_SECONDS * 2):
            async for finding in check(store, connection):
                yield finding
    except NewerSchema as error:
        yield Finding("schema", "problem", str(error), "run the version of Tenuto that wrote it, or later")
    except Exception as error:  # noqa: BLE001 - of the driver; whatever it is, it is what is to be said
        text = f"{name} cannot be looked at: {str(error) or type(error).__name__}"
        yield Finding("database", "problem", text, _advice(error, "look at the server's log"))


async def _server(_store: PostgresStore, connection: Any) -> AsyncIterator[Finding]:
    """Whether it takes writes, and keeps what it acknowledges."""
    standby, read_only = await connection.fetchrow(
        "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')"
    )
    if standby or read_only == "on":
        text = "it is a standby, which only reads" if standby else "default_transaction_read_only is on"
        advice = "name the primary in the URL" if standby else "ALTER ROLE or ALTER DATABASE ... RESET it"
        yield Finding("writes", "problem", text, advice)
    off = [
        name
        for name in ("fsync", "full_page_writes", "synchronous_commit")
        if await connection.fetchval("SELECT current_setting($1)", name) == "off"
    ]
    if off:
        text = f"{', '.join(off)} is off: a crash of the server loses what was acknowledged"
        yield Finding("durability", "warning", text, "switch it on where that matters, as in production")
    else:
        yield Finding("durability", "ok", "what is acknowledged is on the server's disk")


async def _schema(store: PostgresStore, connection: Any) -> AsyncIterator[Finding]:
    schema = await connection.fetchval("SELECT current_schema()")
    if schema is None:
        text = f"search_path ({await connection.fetchval('SHOW search_path')}) names no schema that there is"
        yield Finding("schema", "problem", text, "CREATE SCHEMA it, or correct search_path in the URL")
        return
    version, newest = await store.schema()
    user = await connection.fetchval("SELECT current_user")
    may_create = await connection.fetchval("SELECT has_schema_privilege($1, 'CREATE')", schema)
    if version == newest:
        yield Finding("schema", "ok", f"version {version} in {schema}")
    else:
        text = f"version {version} in {schema}; this Tenuto makes it {newest} when it opens it"
        if may_create:
            yield Finding("schema", "ok", text)
        else:
            advice = f"GRANT CREATE ON SCHEMA {schema} TO {user}; or let its owner run tenuto db upgrade"
            yield Finding("schema", "problem", f"{text}, which {user} may not", advice)
    if version:
        denied = await connection.fetch(
            "SELECT t, p FROM unnest($1::text[]) AS t, unnest($2::text[]) AS p "
            "WHERE NOT has_table_privilege(format('%I.%I', $3::text, t), p) AND (t <> $4 OR p = 'SELECT')",
            *(TABLES, ("SELECT", "INSERT", "UPDATE", "DELETE"), schema, TABLES[-1]),
        )
        if denied:
            tables = ", ".join(dict.fromkeys(row[0] for row in denied))
            verbs = ", ".join(dict.fromkeys(row[1] for row in denied))
            advice = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {user}"
            yield Finding("permissions", "problem", f"{user} may not {verbs} in {tables}", advice)
        else:
            yield Finding("permissions", "ok", f"{user} may read and write all tables")


async def _connections(store: PostgresStore, connection: Any) -> AsyncIterator[Finding]:
    most, kept, used, of_role = await connection.fetchrow(
        "SELECT current_setting('max_connections')::int, "
        "current_setting('superuser_reserved_connections')::int, "
        "(SELECT sum(numbackends)::int FROM pg_stat_database), "
        "(SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user)"
    )
    free, needed = most - kept - used, store.most_connections + 1
    text = f"{free} of {most} are free; a process takes up to {needed}"
    level: Level = "ok" if free >= needed else "warning"
    yield Finding("connections", level, text, "" if level == "ok" else FEWER)
    if 0 <= of_role < needed:
        text = f"this user may have {of_role}, and a process takes up to {needed}"
        yield Finding("connections", "warning", text, "ALTER ROLE ... CONNECTION LIMIT, or a smaller pool=")


async def _clock(_store: PostgresStore, connection: Any) -> AsyncIterator[Finding]:
    before = time.time()
    there = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
    apart_ms = round((there - (before + time.time()) / 2) * 1000)
    if abs(apart_ms) < limits.CLOCK_SLACK_MS:
        yield Finding("clock", "ok", f"{abs(apart_ms)} ms from the server's")
        return
    text = f"this machine's is {span(abs(apart_ms))} {'behind' if apart_ms > 0 else 'ahead of'} the server's"
    advice = "set the wrong one right (NTP): all times are the server's, but for those in this machine's logs"
    yield Finding("clock", "warning", text, advice)


async def _pooler(store: PostgresStore, _connection: Any) -> AsyncIterator[Finding]:
    """Whether a pooler lends our session to others, and what was prepared in it is not found any more."""
    async with store.connected() as one, store.connected() as other:
        ask = "SELECT pg_backend_pid() + $1::int"
        first = await one.fetchval(ask, 0)
        async with other.transaction():
            lent = await other.fetchval("SELECT pg_backend_pid()") == first
            await one.fetchval(ask, 0)
    text = "a pooler lends them, and all that needs none works" if lent else "each connection has its own"
    yield Finding("sessions", "ok", text)


async def _listen(store: PostgresStore, connection: Any) -> AsyncIterator[Finding]:
    """Whether what one says reaches who listens."""
    late = f"workers look every {limits.POLL_SECONDS:g} s instead, and there are no live deltas"
    if not store.listen_url:
        yield Finding("listen", "warning", f"listen=off: {late}", "listen=URL, a direct way to the server")
        return
    heard, channel = asyncio.Event(), f"tenuto_doctor_{secrets.token_hex(4)}"
    async with store.connected(store.listen_url) as listener:
        await listener.add_listener(channel, lambda *_: heard.set())
        await connection.execute("SELECT pg_notify($1, '')", channel)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await heard.wait()
    if heard.is_set():
        yield Finding("listen", "ok", "what other processes say is heard")
    else:
        advice = (
            f"a pooler in transaction mode? Put listen=URL with a direct way to {urlsplit(store.place).path}"
        )
        yield Finding("listen", "warning", f"LISTEN hears nothing: {late}", f"{advice} into the URL")


async def _threads(store: PostgresStore, connection: Any) -> AsyncIterator[Finding]:
    """Who works, what nobody takes, and what keeps old rows from being cleared away."""
    version, newest = await store.schema()
    if version != newest or not await connection.fetchval("SELECT has_table_privilege('workers', 'SELECT')"):
        return
    rows = await connection.fetch("SELECT agents, host FROM workers WHERE alive_until > tenuto_now()")
    served = {name for row in rows for name in msgspec.json.decode(row[0])}
    hosts = len({row[1] for row in rows})
    alive = f"{len(rows)} processes are alive on {hosts} hosts" if rows else "no process is alive"
    yield Finding(
        "workers", "ok", f"{alive}; they take threads of: {', '.join(sorted(served)) or 'no agent'}"
    )
    for agent, count, since in await connection.fetch(UNSERVED, limits.UNSERVED_MS):
        if agent not in served:
            text = f"no worker takes the {count} threads of agent {agent}, the first ready for {span(since)}"
            yield Finding("leases", "warning", text, "start one: tenuto worker MODULE:AGENT")
    for pid, user, seconds in await connection.fetch(LONG):
        text = f"process {pid} of {user} has a transaction open for {span(seconds * 1000)}"
        advice = f"it keeps dead rows from being cleared: end it, or SELECT pg_terminate_backend({pid})"
        yield Finding("transactions", "warning", text, advice)


UNSERVED: Final = """
SELECT agent, count(*), tenuto_now() - min(ready_at) FROM threads
WHERE ready_at < tenuto_now() - $1 AND lease_owner IS NULL GROUP BY agent ORDER BY agent
"""
LONG: Final = """
SELECT pid, usename, extract(epoch FROM clock_timestamp() - xact_start)::int FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
      AND xact_start < clock_timestamp() - interval '1 hour'
ORDER BY xact_start LIMIT 5
"""
