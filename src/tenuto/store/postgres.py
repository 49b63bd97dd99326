"""The store on PostgreSQL (13 or later): any number of processes on any machines.

postgres.py          opening, asking, workers, and what other processes say
postgres_commit.py   the group commit around the verbs that write to logs
postgres_schema.py   the schema, and errors in words
migrations/postgres  the tables, and the verbs as functions; postgres.sql has the queries that only read

`postgresql://user:password@host:port/database?...` takes what docs/fleet.md lists. `pool=10`: connections, at
most; `prepared=off`: for a pooler that keeps no prepared statements; `listen=URL`, a direct way to the server
or `listen=off`: without LISTEN all works, later. Nothing else needs a session.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import random
import re
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, get_type_hints
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import asyncpg
import msgspec

from tenuto import errors, limits
from tenuto.clock import Clock
from tenuto.errors import ConfigurationError, StoreError, TenutoError
from tenuto.events import VERSION, InterruptId, InterruptRaised, ThreadId
from tenuto.locks import check_owner
from tenuto.rows import SALT_BYTES, Change, Encoded, WorkerRow, already_decided
from tenuto.store.base import Store
from tenuto.store.postgres_commit import GroupCommit, Op
from tenuto.store.postgres_schema import FAULTS, MIGRATIONS, migrate, store_error, version_of
from tenuto.store.queries import load_queries

logger = logging.getLogger("tenuto.store")
SQL: Final = load_queries(Path(__file__).with_name("postgres.sql"))
TOGETHER: Final = frozenset({"create", "append", "resolve", "take", "release"})
SAID: Final = "!"  # begins what is published, beside the news of logs
ALIVE_MS: Final = round(limits.LEASE_SECONDS * 1000)


class Outcome(msgspec.Struct):
    """What a function of the database gives for one op. `refused` is the name of an error class."""

    value: Any = None
    refused: str = ""
    says: str = ""
    change: tuple[ThreadId, int, bool] | None = None
    changes: list[tuple[ThreadId, int, bool]] = []


class PostgresStore(Store):
    """A `Store` (see there) on the database and schema that `url` names. Raises `ConfigurationError`."""

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        super().__init__(f"{parts.netloc.rpartition('@')[2] or given.get('host', '')}{parts.path}", clock)
        self.host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:60]
        pool, prepared, listen = (given.pop(name, "") for name in ("pool", "prepared", "listen"))
        self._url = parts._replace(query=urlencode(given, quote_via=quote)).geturl()
        self.listen_url = "" if listen == "off" else listen or self._url
        self.publishes = bool(self.listen_url)
        known = prepared in ("", "on", "off") and (listen in ("", "off") or "://" in listen)
        if not known or not (pool or "1").isdecimal() or int(pool or 1) < 1:
            told = f"{self.place}: pool is a number > 0, prepared on or off, listen off or a URL"
            raise ConfigurationError(told)
        self.most_connections = int(pool or limits.POOL_CONNECTIONS)
        self._how = {"timeout": limits.POOL_WAIT_SECONDS, "command_timeout": limits.STATEMENT_SECONDS}
        self._how["statement_cache_size"] = 0 if prepared == "off" else 100
        self._pool: Any = None
        self._commits: GroupCommit | None = None
        self._offset_ms = 0.0
        self._owners: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._listener: Any = None
        self._name, self._channel = secrets.token_hex(4), ""
        self._news: dict[ThreadId, int] = {}
        self._said: deque[str] = deque(maxlen=limits.MAX_WAITING_PUBLICATIONS)
        self._telling: asyncio.Task[None] | None = None
        self._looked: dict[ThreadId, int] = {}

    # -- opening and closing -----------------------------------------------------------------------------

    async def open(self) -> None:
        if self._pool is not None:
            return
        async with self.connected() as connection:
            await migrate(connection, self.place)
            schema = await connection.fetchval("SELECT quote_ident(current_schema())::regnamespace::oid")
        self._channel = f"tenuto_{schema}"
        # Nothing of ours stays in a session, so none has to be reset.
        sizes = {"min_size": 0, "max_size": self.most_connections}
        self._pool = await asyncpg.create_pool(self._url, reset=_nothing, **sizes, **self._how)
        self._commits = GroupCommit(self.place, self._send)
        await self._look()
        self._looking = asyncio.create_task(self._keep_looking())
        self._listen()

    @contextlib.asynccontextmanager
    async def connected(self, url: str = "") -> AsyncIterator[Any]:
        """A connection of its own."""
        connection = None
        try:
            connection = await asyncpg.connect(url or self._url, **self._how | {"command_timeout": None})
            yield connection
        except FAULTS as error:
            raise store_error(self.place, error, connected=connection is not None) from error
        finally:
            if connection is not None:
                connection.terminate()

    async def close(self) -> None:
        if self._pool is None or self._commits is None:
            return
        await self._commits.close()
        # A server that is away takes the leases back by itself.
        with contextlib.suppress(TenutoError):
            for owner in self._owners:
                await self._perform("remove_worker", owner=owner)
            await self._tell()
        tasks = [task for task in (self._looking, self._listening, self._telling) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError, *FAULTS):
            async with asyncio.timeout(limits.STOP_SECONDS):
                await self._pool.close()
        self._pool.terminate()
        self._pool = self._commits = self._looking = self._listening = self._telling = self._listener = None
        self._owners.clear()

    async def schema(self) -> tuple[int, int]:
        async with self.connected() as connection:
            return await version_of(connection, self.place), len(MIGRATIONS)

    def now_ms(self) -> int:
        return round(self._clock.monotonic() * 1000 + self._offset_ms)

    # -- asking ------------------------------------------------------------------------------------------

    async def _run(self, query: str, *parameters: object, wrote: bool = False) -> Sequence[Sequence[Any]]:
        """The rows. A server cuts off all its connections at a time, and the pool does not notice. So the
        first that is lost takes the others with it, and what was not sent, or only reads, is asked once more.
        """
        if self._pool is None:
            raise StoreError(f"{self.place}: the store is not open")
        connected, asked_before, waited = False, False, 0.0
        while True:
            try:
                async with self._pool.acquire(timeout=limits.POOL_WAIT_SECONDS) as connection:
                    connected = True
                    rows: Sequence[Sequence[Any]] = await connection.fetch(query, *parameters)
                    return rows
            except FAULTS as error:
                told = store_error(self.place, error, connected=connected, wrote=wrote and connected)
                facts = told.facts
                if facts.get("crowded") and waited < limits.POOL_WAIT_SECONDS:  # our own come free
                    await asyncio.sleep(limits.CROWDED_SECONDS)
                    waited += limits.CROWDED_SECONDS
                    continue
                if facts.get("passing") and not facts["busy"]:
                    await self._pool.expire_connections()
                if asked_before or not facts.get("passing") or facts["unknown"]:
                    raise told from error
            connected, asked_before = False, True

    async def _fetch(self, query: str, *parameters: object) -> Sequence[Sequence[Any]]:
        try:
            return await self._run(getattr(SQL, query), *parameters)
        except errors.InvalidInput as error:
            if getattr(error.__cause__, "sqlstate", "") == "22021":
                return []  # NUL, which nothing here has
            raise

    async def _perform(self, verb: str, **given: Any) -> Any:
        if verb in TOGETHER and self._commits is not None:
            outcome = await self._commits.write(*_wire(verb, given))
        else:
            # Renewing twice is as once.
            rows = await self._run(f"SELECT tenuto_{verb}($1)", _json(given), wrote=verb != "renew")
            outcome = msgspec.json.decode(rows[0][0], type=Outcome)
            self._grown([outcome])
        if outcome.refused == "AlreadyDecided":
            raise already_decided(await self.interrupt(InterruptId(outcome.says)))
        if outcome.refused:
            raise getattr(errors, outcome.refused)(outcome.says)
        return msgspec.convert(outcome.value, _returns(verb))

    async def _send(self, batch: list[Op]) -> list[Outcome]:
        ops, bodies = list[dict[str, Any]](), list[bytes]()
        for op in batch:
            ops.append({**op.given, "first": len(bodies) + 1})
            bodies += op.bodies
        sizes, salts = [*map(len, bodies)], self._random_bytes(SALT_BYTES * len(bodies))
        places = _json(list(zip(itertools.accumulate(sizes, initial=1), sizes, strict=False)))
        rows = await self._run(SQL.batch, _json(ops), b"".join(bodies), places, salts, wrote=True)
        outcomes = msgspec.json.decode(rows[0][0], type=list[Outcome])
        self._grown(outcomes)
        return outcomes

    # -- workers -----------------------------------------------------------------------------------------

    async def register(self, owner: str, agents: Sequence[str]) -> None:
        check_owner(owner)
        names = msgspec.json.encode(agents).decode()
        given = {"owner": owner, "agents": names, "pid": os.getpid(), "host": self.host}
        await self._perform("add_worker", **given, alive_ms=ALIVE_MS, again=owner in self._owners)
        self._owners.add(owner)

    async def workers(self) -> list[WorkerRow]:
        rows = await self._fetch("workers", ALIVE_MS)
        return [WorkerRow(row[0], tuple(msgspec.json.decode(row[1])), *row[2:]) for row in rows]

    # -- what this process and others say ----------------------------------------------------------------

    def _grown(self, outcomes: list[Outcome]) -> None:
        """Announce what this process committed, here and, gathered over some milliseconds, to others."""
        found = [change for one in outcomes for change in (one.change, *one.changes) if change]
        if found:
            self._announce([Change(*change) for change in found])
            self._news.update((thread_id, head_seq) for thread_id, head_seq, _ in found)
            self._begin_to_tell()

    def publish(self, text: str) -> None:
        if self._pool is not None and self.publishes:
            self._said.append(SAID + text)
            self._begin_to_tell()

    def _begin_to_tell(self) -> None:
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell_soon())

    async def _tell_soon(self) -> None:
        # After the commit and not in it: transactions that notify wait for each other's fsync.
        while self._news or self._said:
            with contextlib.suppress(TenutoError):
                await self._tell()
            await asyncio.sleep(limits.NOTIFY_SECONDS)
        self._telling = None

    async def _tell(self) -> None:
        # What was said comes before the events that supersede it, and one NOTIFY after the other.
        said, news = list(self._said), list(self._news.items())
        self._said.clear()
        self._news = {}
        if payloads := said + self._payloads(news):
            told = "SELECT pg_notify($1, told) FROM unnest($2::text[]) AS told", self._channel, payloads
            if self._listener is not None:  # it has nothing to do, and who comes next needs the others
                with contextlib.suppress(*FAULTS):
                    await self._listener.fetch(*told, timeout=limits.STATEMENT_SECONDS)
                    return
            await self._run(*told)

    def _payloads(self, news: list[tuple[ThreadId, int]]) -> list[str]:
        payload, half = _json((self._name, news)), len(news) // 2
        if len(payload.encode()) <= limits.MAX_NOTIFY_BYTES:
            return [payload] if news else []
        return self._payloads(news[:half]) + self._payloads(news[half:])

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: str) -> None:
        if payload.startswith(SAID):
            self._hear(payload.removeprefix(SAID))
            return
        name, news = msgspec.json.decode(payload, type=tuple[str, list[tuple[ThreadId, int]]])
        if name != self._name:
            self._announce([Change(thread_id, head_seq, True) for thread_id, head_seq in news])

    def _listen(self) -> None:
        if self._looking and self._callbacks and self.listen_url and not self._listening:
            self._listening = asyncio.create_task(self._keep_listening())

    async def _keep_listening(self) -> None:
        """To what others say. Where that fails nothing is lost: a store looks as well."""
        while True:
            try:
                async with self.connected(self.listen_url) as connection:
                    await connection.add_listener(self._channel, self._heard)
                    self._listener = connection
                    await self._look()
                    while not connection.is_closed():
                        await _pause()
            except TenutoError as error:
                logger.warning("what other processes say is not heard: %s", error)
            await _pause()

    async def _keep_looking(self) -> None:
        while True:
            await _pause()
            with contextlib.suppress(TenutoError):
                await self._look()

    async def _look(self) -> None:
        """Ask the time, say that our workers live, and make up for news that got lost."""
        watched = {thread_id for threads in self._callbacks.values() for thread_id in threads()}
        asked_at = self._clock.monotonic()
        given = _json({"owners": list(self._owners), "alive_ms": ALIVE_MS, "watched": list(watched)})
        rows = await self._run("SELECT tenuto_look($1)", given)
        outcome = msgspec.json.decode(rows[0][0], type=Outcome)
        self._offset_ms = outcome.value - (asked_at + self._clock.monotonic()) * 500
        before, self._looked = self._looked, {thread_id: head for thread_id, head, _ in outcome.changes}
        grown = (change for change in outcome.changes if before.get(change[0]) != change[1])
        self._announce([Change(*change) for change in grown])


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise errors.InvalidInput(f"text that UTF-8 cannot carry: {error.reason}", alone=True) from error


async def _nothing(_connection: Any) -> None: ...


async def _pause() -> None:
    await asyncio.sleep(limits.POLL_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311 - not all at once


@functools.cache
def _returns(verb: str) -> Any:
    return get_type_hints(getattr(Store, verb, None) or PostgresStore.register).get("return")


def _wire(verb: str, given: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    """An op as `tenuto_op` has it, and the bodies of its events."""
    events: list[Encoded] = given.pop("events", [])
    facts = []
    for row in events:
        fact: dict[str, Any] = {"type": row.type}
        if isinstance(one := row.inbox, InterruptRaised):
            fact |= {"id": one.id, "word": one.kind, "digest": one.digest, "expires_at": one.expires_at_ms}
        elif one is not None:
            fact |= {"id": one.id, "word": one.outcome}
        facts.append(fact)
    return {"verb": verb, "version": VERSION, "events": facts, **given}, [row.body for row in events]
