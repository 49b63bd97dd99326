"""`tenuto doctor`: what is wrong here and what to do. Every check only reads, and none costs money.

A check is a generator of findings. What it meets on the way (a file that cannot be opened, an agent that
cannot be loaded) is a finding, too, and the other checks go on.
"""

import contextlib
import os
import shlex
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from tenuto import limits
from tenuto.agent import Agent
from tenuto.cli.agents import load_agents, named_agents
from tenuto.cli.terminal import console, moment, now_ms, print_json, progress, safe, span
from tenuto.doubt import in_doubt
from tenuto.errors import ConfigurationError, ModelError, TenutoError
from tenuto.events import Entry, decode
from tenuto.locks import is_alive
from tenuto.rows import agent_names
from tenuto.store import open_store
from tenuto.store.sqlite_file import MIGRATIONS, check_version, look_at, open_file, store_error
from tenuto.store.sqlite_write import LATEST, SQL
from tenuto.thread import fold

Level = Literal["ok", "warning", "problem"]
STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}
MOST_LINES = 5


class Finding(msgspec.Struct, frozen=True):
    """One line. `advice`: what to do about it."""

    check: str
    level: Level
    text: str
    advice: str = ""


Check = Callable[[Any, set[str]], Iterator[Finding]]


async def doctor(database: str, agent: str | None, as_json: bool) -> int:
    """Examine everything; the exit code, 1 when there is a problem."""
    found: list[Finding] = []
    async for finding in _examine(database, agent):
        found.append(finding)
        if not as_json:
            _show(finding)
    problems, warnings = (
        sum(finding.level == level for finding in found) for level in ("problem", "warning")
    )
    if as_json:
        print_json({"ok": not problems, "findings": found})
    else:
        console().print(f"problems: {problems}, warnings: {warnings}")
    return 1 if problems else 0


async def _examine(database: str, agent: str | None) -> AsyncIterator[Finding]:
    store = open_store(database)
    if (path := getattr(store, "path", None)) is None:
        from tenuto.cli.doctor_postgres import examine  # its driver is imported for a PostgreSQL only

        async for finding in examine(store):
            yield finding
    else:
        for finding in _database(str(path)):
            yield finding
    agents: list[Agent] = []
    if os.environ.get("TENUTO_URL"):
        text = "TENUTO_URL names a server, and this is not about it but about the database here"
        yield Finding(
            "server", "warning", text, "run it where that server runs, with the server's --database"
        )
    for finding in _agents(agent, agents):
        yield finding
    async for finding in _provider(agents):
        yield finding
    for finding in _tokens(os.environ.get("APPROVER_SECRET", ""), os.environ.get("SUBMIT_TOKEN", "")):
        yield finding


def _show(finding: Finding) -> None:
    out = console()
    out.print(f"{finding.level:<8}", style=STYLES[finding.level], end="")
    out.print(f"{finding.check:<12}{safe(finding.text)}")
    if finding.advice:
        out.print(f"{'':20}→ {safe(finding.advice)}")


# -- the database -------------------------------------------------------------------------------------------


def _database(path: str) -> Iterator[Finding]:
    if path == ":memory:":
        yield Finding("database", "warning", "in memory: it ends with its process", "name a file")
        return
    place = Path(path)
    if not place.is_file():
        yield _missing(place)
        return
    yield from _access(place)
    yield from _space(place)
    try:
        with contextlib.closing(look_at(path)) as connection:
            version = check_version(path, connection)
            later = f"; this Tenuto makes it {len(MIGRATIONS)} when it opens it"
            newest = version == len(MIGRATIONS)
            yield Finding("schema", "ok", f"version {version}{'' if newest else later}")
            yield _pages(place, connection)
            if newest:
                yield from _objects(place, connection)
            if version:
                alive = {owner for owner, *_ in _workers(connection) if is_alive(path, owner)}
                for check in (_orphans, _asleep, _leases, _doubts, _clock):
                    yield from _checked(path, check, connection, alive)
    except Exception as error:  # noqa: BLE001 - of the driver; whatever it is, it is what is to be said
        advice = "restore it from a backup, or name another file; nothing was changed"
        yield Finding("database", "problem", str(store_error(path, error)), advice)


def _missing(place: Path) -> Finding:
    if place.exists():
        return Finding("database", "problem", f"{place} is not a file", "name a file with --database")
    if not place.parent.is_dir():
        text = f"there is no {place}, nor its directory"
        return Finding("database", "problem", text, f"make {place.parent}, or name another file")
    if not os.access(place.parent, os.W_OK | os.X_OK):
        text = f"there is no {place}, and this user may not make it"
        return Finding("database", "problem", text, f"let this user write in {place.parent}")
    advice = "the first `tenuto run` or `tenuto serve` makes it; if it should be there, look at --database"
    return Finding("database", "warning", f"there is no {place} yet", advice)


def _access(place: Path) -> Iterator[Finding]:
    may = {word: os.access(place, flag) for word, flag in (("read", os.R_OK), ("write", os.W_OK))}
    may["write files beside"] = os.access(place.parent, os.W_OK | os.X_OK)
    denied = [word for word, allowed in may.items() if not allowed]
    size = _size(place.stat().st_size)
    if denied:
        text = f"{place} ({size}): this user may not {' or '.join(denied)} it"
        advice = f"give it and its folder to this user: chown, chmod u+rw {place}; or copy it elsewhere"
        yield Finding("file", "problem", text, advice)
    else:
        yield Finding("file", "ok", f"{place}, {size}, can be read and written")
    mode = place.stat().st_mode
    if mode & stat.S_IROTH and _others_get_to(place):
        text = f"everybody on this machine can read it (mode {stat.S_IMODE(mode):o})"
        yield Finding("permissions", "warning", text, f"chmod 600 {place}*")
    else:
        yield Finding("permissions", "ok", f"mode {stat.S_IMODE(mode):o}, out of others' reach")


def _others_get_to(place: Path) -> bool:
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in place.resolve().parents)


def _space(place: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(place.parent).free
    level: Level = "ok" if free >= limits.FREE_LOW_BYTES else "warning"
    if free < limits.FREE_LEAST_BYTES:
        level = "problem"
    advice = "" if level == "ok" else "make room: threads stop, and lose nothing, when the disk is full"
    yield Finding("space", level, f"{_size(free)} free on its disk", advice)
    wal = Path(f"{place}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > limits.WAL_LARGE_BYTES:
        advice = "a program keeps reading and so keeps it from being folded in: end it, then start a worker"
        yield Finding("wal", "warning", f"{wal} has {_size(size)}", advice)
    else:
        yield Finding("wal", "ok", f"{_size(size)} not yet folded into the file")


def _pages(place: Path, connection: Any) -> Finding:
    with progress() as tell:
        tell(f"reading {_size(place.stat().st_size)}")
        rows = connection.execute("PRAGMA quick_check(3)").fetchall()
    if rows == [("ok",)]:
        return Finding("pages", "ok", "all can be read; `tenuto verify --all` checks what they say")
    text = "; ".join(" ".join(str(row[0]).split()) for row in rows)
    advice = (
        "stop all workers, copy the file, restore a backup; `tenuto verify --all` names the damaged events,"
        " and where it names none, the damage is in an index: sqlite3 FILE REINDEX makes those anew"
    )
    return Finding("pages", "problem", f"damaged: {text}", advice)


def _objects(place: Path, connection: Any) -> Iterator[Finding]:
    """Whether the tables, indexes and views are those of a new file."""
    query = "SELECT name, type, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name"
    with contextlib.closing(open_file(":memory:")[0]) as fresh:
        wanted = {name: (kind, " ".join(sql.split())) for name, kind, sql in fresh.execute(query)}
    there = {name: (kind, " ".join(sql.split())) for name, kind, sql in connection.execute(query)}
    for name, (kind, sql) in wanted.items():
        if there.get(name) == (kind, sql):
            continue
        text = f"the {kind} {name} {'is not as it was made' if name in there else 'is missing'}"
        advice = "restore the file from a backup"
        if kind != "table" and name not in there:
            advice = f"stop all workers, then make it anew: {shlex.join(['sqlite3', str(place), sql])}"
        yield Finding("schema", "problem", text, advice)


def _checked(path: str, check: Check, connection: Any, alive: set[str]) -> Iterator[Finding]:
    """What one check finds; that it cannot be made is a finding, and the others go on."""
    try:
        yield from check(connection, alive)
    except Exception as error:  # noqa: BLE001 - of the driver, or of what a damaged row holds
        text = f"{check.__name__.strip('_')} cannot be looked at: {store_error(path, error)}"
        yield Finding("database", "problem", text, "`tenuto verify --all` says what is damaged")


def _workers(connection: Any) -> Any:
    return connection.execute("SELECT owner, agents, pid FROM workers ORDER BY owner").fetchall()


def _orphans(connection: Any, _alive: set[str]) -> Iterator[Finding]:
    """What no command would show, such as events whose thread's row is gone."""
    strays = connection.execute(SQL.strays, (None,)).fetchall()
    for (text,) in strays[:MOST_LINES]:
        yield Finding("threads", "problem", text, "restore the rows, or the file, from a backup")
    if len(strays) > MOST_LINES:
        text = f"and {len(strays) - MOST_LINES} more like these"
        yield Finding("threads", "problem", text, "`tenuto verify --all` names all")


def _asleep(connection: Any, alive: set[str]) -> Iterator[Finding]:
    """Threads that have something to do, and that no worker would ever find."""
    query = (
        "SELECT id, status, lease_owner FROM threads"
        " WHERE status IN ('running', 'sleeping') AND typeof(ready_at) <> 'integer' LIMIT 1000"
    )
    for thread, status, owner in connection.execute(query):
        if owner not in alive:
            text = f"thread {thread} is {status} and no worker will look at it: it has no time to go on"
            yield Finding("threads", "problem", text, f"wake it: tenuto extend {thread} --steps 1")


def _doubts(connection: Any, alive: set[str]) -> Iterator[Finding]:
    """Calls that may have happened, and that no worker has looked at since."""
    for (thread,) in connection.execute(SQL.doubtful, (LATEST, None, limits.MAX_DOUBTFUL_THREADS)):
        (owner,) = connection.execute("SELECT lease_owner FROM threads WHERE id = ?", (thread,)).fetchone()
        if owner in alive:
            continue
        rows = connection.execute(SQL.events, (thread, 0, LATEST)).fetchall()
        with contextlib.suppress(TenutoError):  # one that cannot be read is for `verify`
            state = fold((Entry(seq, at, decode(body, v)) for _, seq, v, at, body in rows), thread)
            for call in in_doubt(state):
                advice = f"start a worker of agent {call.agent}, which asks or raises a review"
                text = f"thread {thread}, call {call.call_id}: {call.text}"
                yield Finding("calls", "warning", text, advice)


def _leases(connection: Any, alive_owners: set[str]) -> Iterator[Finding]:
    rows = _workers(connection)
    alive = {owner: agent_names(agents) for owner, agents, _ in rows if owner in alive_owners}
    served = {name for names in alive.values() for name in names}
    pids = ", ".join(str(pid) for owner, _, pid in rows if owner in alive)
    text = f"{len(alive)} alive (process {pids})" if alive else "none is alive"
    yield Finding("workers", "ok", f"{text}; they take threads of: {', '.join(sorted(served)) or 'no agent'}")
    held = "SELECT id, lease_owner, lease_until FROM threads WHERE lease_owner IS NOT NULL"
    for thread, owner, until_ms in connection.execute(held):
        if owner not in alive:
            advice = "nothing to do: the next `tenuto serve` or `tenuto run` takes it over"
            yield Finding("leases", "warning", f"thread {thread} is held by {owner}, which died", advice)
        elif until_ms < now_ms() - limits.CLOCK_SLACK_MS:
            since = span(now_ms() - until_ms)
            text = f"thread {thread} is held by {owner}, which has not renewed it for {since}"
            yield Finding(
                "leases", "warning", text, "that process hangs or was stopped: look at it, or end it"
            )
    ready = (
        "SELECT agent, count(*), min(ready_at) FROM threads"
        " WHERE ready_at < ? AND lease_owner IS NULL GROUP BY agent"
    )
    for agent, count, since_ms in connection.execute(ready, (now_ms() - limits.UNSERVED_MS,)):
        if agent not in served:
            text = f"no worker takes the {count} threads of agent {agent}, ready since {moment(since_ms)}"
            yield Finding("leases", "warning", text, "start one: tenuto serve MODULE:AGENT")


def _clock(connection: Any, _alive: set[str]) -> Iterator[Finding]:
    last = connection.execute("SELECT at FROM events ORDER BY num DESC LIMIT 1").fetchone()
    behind_ms = last[0] - now_ms() if last else 0
    if behind_ms > limits.CLOCK_SLACK_MS:
        text = f"this machine's clock is {span(behind_ms)} behind the last event ({moment(last[0])})"
        advice = "set it right (NTP): till then, timers, expiries and leases come late"
        yield Finding("clock", "problem", text, advice)
    else:
        yield Finding("clock", "ok", f"{moment(now_ms())}, not behind the log")


# -- what is around it --------------------------------------------------------------------------------------


def _agents(option: str | None, loaded: list[Agent]) -> Iterator[Finding]:
    """Loads them into `loaded`."""
    try:
        names = named_agents(option)
    except (ConfigurationError, ValueError) as error:
        yield Finding("agents", "problem", str(error), "correct pyproject.toml")
        return
    if not names:
        yield Finding("agents", "warning", "none is named", "name one with --agent, to have it checked")
    for name in names:
        try:
            for agent in load_agents([name]):
                for tool in agent.tools:
                    tool.check()
                loaded.append(agent)
                text = (
                    f"{agent.name} ({name}): {len(agent.schemas)} tools, fingerprint {agent.fingerprint[:8]}"
                )
                yield Finding("agents", "ok", text)
        except TenutoError as error:
            yield Finding("agents", "problem", str(error), "no worker can run it until it is loaded")


async def _provider(agents: Iterable[Agent]) -> AsyncIterator[Finding]:
    from tenuto.models.openai import OpenAIModel

    named = {agent.model or "" for agent in agents if agent.model is None or isinstance(agent.model, str)}
    if agents and not named:
        yield Finding("provider", "ok", "not needed: the agents bring their own models")
        return
    try:
        model = OpenAIModel.from_environment()
    except ConfigurationError as error:
        yield Finding("provider", "problem" if named else "warning", str(error), "set what is missing")
        return
    key = "with a key" if os.environ.get("PROVIDER_API_KEY", "").strip() else "without a key"
    yield Finding("provider", "ok", f"{model.name} at {model.place}, {key}")
    try:
        status, listed = await model.listed(limits.DOCTOR_SECONDS)
    except ModelError as error:
        yield Finding("provider", "problem", str(error), "look at PROVIDER_URL, the network and the provider")
        return
    yield _answered(status, listed, {name or model.name for name in named} or {model.name})


def _answered(status: int, listed: tuple[str, ...], needed: set[str]) -> Finding:
    missing = sorted(needed.difference(listed))
    if status in (401, 403):
        return Finding("provider", "problem", f"it refuses the key ({status})", "set PROVIDER_API_KEY")
    if 300 <= status < 400:
        return Finding("provider", "problem", f"it redirects ({status})", "set PROVIDER_URL to the new place")
    if status == 429 or status >= 500:
        return Finding("provider", "warning", f"it answers, but with {status}", "threads wait and try again")
    if status != 200 or not listed:
        return Finding("provider", "ok", f"it answers ({status}), and does not list its models")
    if missing:
        text = f"it answers, and does not list {', '.join(missing)} among its {len(listed)} models"
        return Finding("provider", "warning", text, "look at PROVIDER_MODEL and the agents' models")
    return Finding("provider", "ok", f"it answers and has {', '.join(sorted(needed))}")


def _tokens(approver: str, submit: str) -> Iterator[Finding]:
    without = {
        "APPROVER_SECRET": "nobody decides",
        "SUBMIT_TOKEN": "everybody who can connect starts threads",
    }
    for name, token in (("APPROVER_SECRET", approver.strip()), ("SUBMIT_TOKEN", submit.strip())):
        if not token:
            yield Finding("tokens", "ok", f"{name} is not set: over HTTP {without[name]}")
        elif len(token) < limits.TOKEN_CHARACTERS or len(set(token)) < limits.TOKEN_CHARACTERS // 2:
            text = f"{name} can be guessed: it is short, or of few different characters"
            advice = 'make a new one: python -c "import secrets; print(secrets.token_urlsafe(32))"'
            yield Finding("tokens", "warning", text, advice)
        else:
            yield Finding("tokens", "ok", f"{name} is set")
    if approver.strip() and approver.strip() == submit.strip():
        text = "APPROVER_SECRET and SUBMIT_TOKEN are the same: whoever starts threads decides them"
        yield Finding("tokens", "warning", text, "give them different values")


def _size(size_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
