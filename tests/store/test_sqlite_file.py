"""The database file: its schema, its faults, its query plans, and the history that people read in it."""

import asyncio
import multiprocessing
import shutil
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenuto.chain import verify_chain
from tenuto.clock import FakeClock
from tenuto.errors import NewerSchema, StoreError, Undecodable
from tenuto.events import (
    Event,
    InterruptId,
    InterruptKind,
    InterruptRaised,
    InterruptResolved,
    LimitName,
    MessageReceived,
    ModelReplied,
    Outcome,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadId,
    ThreadStarted,
)
from tenuto.store import Store, open_store, sqlite_file
from tenuto.store.sqlite import SQLiteStore
from tenuto.store.sqlite_file import MIGRATIONS
from tenuto.store.sqlite_write import SQL
from tenuto.testing.store_contract.cases import MESSAGE, approved, held, refused, started, waiting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenuto.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(str(path), clock=FakeClock())
    await store.open()
    yield store
    await store.close()


def execute(path: Path, script: str) -> list[tuple[object, ...]]:
    """What another program does to the file."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        rows: list[tuple[object, ...]] = []
        for statement in script.split(";"):
            rows += connection.execute(statement).fetchall()
    connection.close()
    return rows


def contents(path: Path) -> bytes:
    return path.read_bytes()


async def open_once(path: Path) -> None:
    store = SQLiteStore(str(path))
    await store.open()
    await store.close()


# -- schema and faults --------------------------------------------------------------------------------


async def test_a_file_is_durable_and_versioned(store: SQLiteStore, path: Path) -> None:
    assert execute(path, "PRAGMA journal_mode") == [("wal",)]
    assert execute(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]
    assert store._writing is not None
    assert store._writing.execute("PRAGMA synchronous").fetchone() == (2,)


async def test_a_newer_file_is_refused_and_left_alone(path: Path) -> None:
    await open_once(path)
    execute(path, f"PRAGMA user_version = {len(MIGRATIONS) + 1}; PRAGMA journal_mode = DELETE")
    before = contents(path)
    error = await refused(NewerSchema, open_once(path))
    assert str(path) in str(error)
    assert "Upgrade Tenuto" in str(error)
    assert contents(path) == before


async def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    execute(path, "CREATE TABLE things (id)")
    before = contents(path)
    error = await refused(StoreError, open_once(path))
    assert "some other program" in str(error)
    assert contents(path) == before


async def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("Refund order 17.\n" * 100)
    for place, reason in (
        (text, "file is not a database"),
        (tmp_path, "is a directory"),
        (tmp_path / "missing" / "tenuto.db", "there is no directory"),
    ):
        error = await refused(StoreError, open_once(place))
        assert str(place) in str(error)
        assert reason in str(error)


async def test_a_read_only_database_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await open_once(path)
    connect = sqlite3.connect

    def connect_read_only(name: str, **options: object) -> sqlite3.Connection:
        return connect(f"file:{name}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", connect_read_only)
    store = SQLiteStore(str(path))
    await store.open()
    error = await refused(StoreError, store.create(ThreadId("t"), [ThreadStarted("a", "f")], append_id="a"))
    assert str(path) in str(error)
    assert "readonly" in str(error)
    await store.close()


async def test_a_closed_store_says_so(store: SQLiteStore) -> None:
    await store.close()
    for attempt in (store.threads(), store.append(ThreadId("t"), [MESSAGE], append_id="a")):
        assert "not open" in str(await refused(StoreError, attempt))
    await store.open()
    assert await store.threads() == []


async def test_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url, file in (("sqlite:///a.db", "a.db"), (f"sqlite:///{tmp_path}/b.db", "b.db")):
        store = open_store(url)
        await store.open()
        await store.close()
        assert (tmp_path / file).exists()


async def test_an_older_file_is_upgraded_in_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(sqlite_file, "MIGRATIONS", MIGRATIONS[:1])
        await open_once(path)
    values = """'ops', 'sleeping', 0, 0, '{"customer":"ana","n":1,"said":"\u00e9"}'"""
    columns = "id, agent, status, created_at, updated_at, metadata"
    execute(path, f"INSERT INTO threads ({columns}) VALUES ('old', {values})")
    store = SQLiteStore(str(path))
    await store.open()
    new = ThreadStarted("ops", "f", metadata={"customer": "ana", "said": "\u00e9"})
    await store.create(ThreadId("new"), [new], append_id="a")
    for wanted in ({"customer": "ana"}, {"said": "\u00e9", "customer": "ana"}):
        assert [row.id for row in await store.threads(metadata=wanted)] == ["new", "old"]
    assert await store.threads(metadata={"n": "1"}) == []
    await store.close()
    assert execute(path, "PRAGMA user_version") == [(len(MIGRATIONS),)]


def _open_at_once(path: str, barrier: object) -> None:
    barrier.wait()
    asyncio.run(open_once(Path(path)))


def test_processes_make_a_new_file_together(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    for number in range(3):
        path = str(tmp_path / f"{number}.db")
        openers = [context.Process(target=_open_at_once, args=(path, barrier)) for _ in range(4)]
        for opener in openers:
            opener.start()
        for opener in openers:
            opener.join(30)
        assert [opener.exitcode for opener in openers] == [0] * 4


# -- damage -------------------------------------------------------------------------------------------


async def test_a_missing_event_is_noticed(store: SQLiteStore, path: Path) -> None:
    thread_id = await started(store)
    for number in range(3):
        await store.append(thread_id, [MESSAGE], append_id=str(number))
    for seq in (3, 5):
        execute(path, f"CREATE TEMP TABLE x AS SELECT 1; DELETE FROM events WHERE seq = {seq}")
        error = await refused(StoreError, store.read(thread_id, after=1))
        assert "event 3 of thread thread-1 is missing" in str(error)
    assert "event 5" in str(await refused(StoreError, store.stored(thread_id, after=4)))


async def test_an_erased_event_keeps_the_chain(store: SQLiteStore, path: Path) -> None:
    thread_id = await started(store)
    await waiting(store, thread_id, "i")
    rows = await store.stored(thread_id)
    execute(
        path,
        "UPDATE events SET salt = NULL, body = NULL, body_hash = CASE seq "
        + " ".join(f"WHEN {row.seq} THEN x'{row.body_hash.hex()}'" for row in rows)
        + " END WHERE seq > 1",
    )
    report = verify_chain(thread_id, await store.stored(thread_id))
    assert (report.ok, report.checked, report.erased, report.head_hash) == (True, 3, 2, rows[-1].hash)
    error = await refused(Undecodable, store.read(thread_id))
    assert "event 2 of thread thread-1 was erased" in str(error)
    row = await store.interrupt(InterruptId("i"))
    assert (row.kind, row.arguments, row.raised_seq) == ("approval", "", 3)


async def test_an_event_of_a_later_version_is_undecodable(store: SQLiteStore, path: Path) -> None:
    thread_id = await started(store)
    execute(path, "UPDATE events SET version = 9 WHERE seq = 2")
    assert "event 2" in str(await refused(Undecodable, store.read(thread_id)))


async def test_the_newest_thread_of_all_is_not_pruned(store: SQLiteStore) -> None:
    for name in ("t1", "t2"):
        claim = await held(store, await started(store, name))
        await store.append(claim.thread_id, [ThreadCompleted()], append_id="a", epoch=claim.epoch)
        await store.release(claim, seen_seq=3, wake_at_ms=None, status="completed")
    assert await store.prune(ended_before_ms=1 << 60) == 1
    assert [row.id for row in await store.threads()] == ["t2"]


# -- the history in plain SQL -------------------------------------------------------------------------


async def history(store: Store, path: Path, *turns: list[Event]) -> list[str]:
    """What the documented query says of a thread, asked with the sqlite3 program where there is one."""
    task_id = "00000000-0000-0000-0000-000000000017"
    await store.create(ThreadId(task_id), [ThreadStarted("ops", "f"), MESSAGE], append_id="create")
    claim = await held(store, ThreadId(task_id))
    for number, events in enumerate(turns):
        await store.append(ThreadId(task_id), events, append_id=str(number), epoch=claim.epoch)
    query = f"SELECT event, steps FROM task_events WHERE task_id = '{task_id}' ORDER BY rowid;"
    if program := shutil.which("sqlite3"):
        output = await asyncio.to_thread(
            subprocess.run, [program, str(path), query], capture_output=True, text=True, check=True
        )
        return output.stdout.split()
    return [f"{event}|{steps}" for event, steps in execute(path, query)]


def asks(name: str, kind: InterruptKind = "approval") -> InterruptRaised:
    return InterruptRaised(InterruptId(name), kind)


def answers(name: str, outcome: Outcome) -> InterruptResolved:
    return InterruptResolved(InterruptId(name), outcome)


async def test_the_history_of_a_refund(store: SQLiteStore, path: Path) -> None:
    assert await history(
        store,
        path,
        [ModelReplied(1, 2)],
        [ModelReplied(2, 3), asks("i")],
        [approved("i")],
        [ModelReplied(3, 6), ThreadCompleted("done")],
    ) == ["started|0", "awaiting_approval|2", "approved|2", "completed|3"]


async def test_the_history_of_everything_else(store: SQLiteStore, path: Path) -> None:
    limits: tuple[LimitName, LimitName] = ("steps", "tokens")
    lines = await history(
        store,
        path,
        [ModelReplied(1, 2), *(asks(name) for name in "abcd")],
        [
            answers("a", "edited"),
            answers("b", "rejected"),
            answers("c", "expired"),
            answers("d", "withdrawn"),
        ],
        [asks("q", "question"), answers("q", "answered")],
        [asks(name, "review") for name in "xyz"],
        [answers("x", "happened"), answers("y", "did_not_happen"), answers("z", "dropped")],
        [ThreadFailed("no"), *(ThreadHalted(limit) for limit in limits), ThreadCancelled()],
    )
    assert lines == [
        "started|0",
        *["awaiting_approval|1"] * 4,
        "approved|1",
        "rejected|1",
        "expired|1",
        *["awaiting_review|1"] * 3,
        "happened|1",
        "did_not_happen|1",
        "dropped|1",
        "failed|1",
        "step_limit|1",
        "halted|1",
        "cancelled|1",
    ]


async def test_the_history_tells_the_time(store: SQLiteStore, path: Path) -> None:
    await started(store)
    # 1_700_000_000 s is 2023-11-14 22:13:20 UTC.
    assert execute(path, "SELECT rowid, at FROM task_events") == [(1, "2023-11-14T22:13:20.000Z")]


# -- query plans --------------------------------------------------------------------------------------


@pytest.fixture
async def crowd(store: SQLiteStore, path: Path) -> Path:
    """100,000 threads: all wait, one in a hundred with a pending interrupt."""
    await started(store)
    await waiting(store, ThreadId("thread-1"), "i")
    execute(
        path,
        """
        WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n < 100000)
        INSERT INTO threads (num, id, agent, status, ready_at, head_seq, created_at, updated_at, metadata)
        SELECT n, 'crowd-' || n, 'ops', 'sleeping', CASE WHEN n % 2 THEN (1 << 50) + n END, 3, n, n, '{}'
        FROM n;
        INSERT INTO events (thread, seq, version, type, at, hash, body)
        SELECT t.num, e.seq, 1, e.type, 0, x'00', e.body FROM threads AS t, events AS e
        WHERE t.num > 1 AND e.thread = 1;
        INSERT INTO interrupts (id, thread, kind, raised_seq, raised_at, expires_at)
        SELECT id, num, 'approval', 3, num, 0 FROM threads WHERE num > 1 AND num % 100 = 0;
        INSERT INTO labels (label, created_at, id, thread) SELECT 'all', created_at, id, num FROM threads;
        INSERT INTO records (kind, key, body) SELECT 'token', id, x'00' FROM threads;
        UPDATE events SET append_id = randomblob(16) WHERE seq = 1
        """,
    )
    return path


HOT = {
    "thread_head": (b"", "crowd-9"),
    "append_end": (9, 1),
    "claimable": ("ops", 0, 1 << 40, 1 << 40, 10),
    "claimable_one": ("crowd-9", 0, 0),
    "next_ready": ("ops", 1 << 40, "worker"),
    "held": ("crowd-9", 1, "worker"),
    "leases_of": ("worker",),
    "end_leases": ("worker",),
    "events": ("crowd-9", 0, 10),
    "stored": ("crowd-9", 0, 10),
    "thread": ("crowd-9",),
    "threads": (1 << 60, "", None, 10),
    "threads_by_status": (1 << 60, "", "ops", 10, "completed"),
    "interrupt": ("i",),
    "interrupts_pending": (None, None, 10),
    "interrupts_pending_of_kind": (None, None, 10, "review"),
    "interrupts_any": (None, None, 10, None, None),
    "interrupts_of_thread": (None, None, 10, None, None, "crowd-9"),
    "threads_by_label": (1 << 60, "", None, 10, None, "all", '["all"]'),
    "record": ("token", "crowd-9", 0),
    "records": ("token", "crowd-9", 0, 10),
    "drop_expired": (1 << 60, 100),
    "feed": (299_990, 1 << 62),
    "newest_event": (),
}


@pytest.mark.parametrize("analyzed", [False, True])
async def test_no_hot_query_reads_what_it_does_not_need(crowd: Path, analyzed: bool) -> None:
    """Bound by work done, not by the clock: SQLite counts its virtual machine's steps."""
    if analyzed:
        execute(crowd, "ANALYZE")
    connection = sqlite3.connect(crowd, isolation_level=None)
    steps: list[int] = []
    for name, parameters in HOT.items():
        steps.clear()
        connection.set_progress_handler(lambda: steps.append(1) and None, 100)
        connection.execute("BEGIN")
        connection.execute(getattr(SQL, name), parameters).fetchall()
        connection.execute("ROLLBACK")
        assert len(steps) < 50, f"{name} took more than {100 * len(steps)} steps"
    steps.clear()
    query = "SELECT event, steps FROM task_events WHERE task_id = 'crowd-77' ORDER BY rowid"
    rows = connection.execute(query).fetchall()
    assert rows == [("started", 0), ("awaiting_approval", 0)]
    assert len(steps) < 50
    plan = [str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
    assert not [line for line in plan if line.startswith(("SCAN e", "SCAN t"))]
    connection.close()


async def test_messages_of_the_crowd_are_still_quick(crowd: Path, store: SQLiteStore) -> None:
    claimed = await store.claim("worker", ["ops"], limit=10, lease_seconds=1)
    assert claimed.claims == ()
    assert claimed.next_ready_ms == (1 << 50) + 3
    await store.append(ThreadId("thread-1"), [MessageReceived("hello")], append_id="a")
    (claim,) = (await store.claim("worker", ["ops"], limit=10, lease_seconds=1)).claims
    assert claim.thread_id == "thread-1"
