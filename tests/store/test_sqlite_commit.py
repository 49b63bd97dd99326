"""The group commit: what shares a transaction, what a failure does to whom, and what others see of it."""

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenuto import limits
from tenuto.clock import FakeClock
from tenuto.errors import LeaseLost, StoreError, ThreadNotFound
from tenuto.events import Event, InterruptId, InterruptRaised, MessageReceived, ModelReplied, ThreadId
from tenuto.limits import MAX_BATCH_APPENDS
from tenuto.rows import Appended, Change
from tenuto.store.sqlite import SQLiteStore
from tenuto.testing.store_contract.cases import MESSAGE, held, refused, started, waiting


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "tenuto.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, clock=FakeClock())
    await store.open()
    yield store
    await store.close()


class Commits:
    """Counts the commits of a store, and fails some of them: "before" or "after" the real one."""

    def __init__(self, store: SQLiteStore) -> None:
        assert store._commits is not None
        self._commit = store._commits._end_transaction
        store._commits._end_transaction = self
        self.count = 0
        self.fail = ""

    def __call__(self) -> None:
        self.count += 1
        fail, self.fail = self.fail, ""
        if fail == "before":
            raise sqlite3.OperationalError("disk I/O error")
        self._commit()
        if fail == "after":
            raise sqlite3.OperationalError("disk I/O error")


async def test_what_waits_together_shares_a_commit(store: SQLiteStore) -> None:
    thread_id = await started(store)
    commits = Commits(store)
    await asyncio.gather(*(store.append(thread_id, [MESSAGE], append_id=str(n)) for n in range(100)))
    assert commits.count == 1
    assert len(await store.read(thread_id)) == 102


async def test_a_batch_is_bounded(store: SQLiteStore) -> None:
    thread_id = await started(store)
    commits = Commits(store)
    number = 2 * MAX_BATCH_APPENDS + 1
    await asyncio.gather(*(store.append(thread_id, [MESSAGE], append_id=str(n)) for n in range(number)))
    assert commits.count == 3


async def test_too_many_waiting_writes_are_refused(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_id = await started(store)
    monkeypatch.setattr(limits, "MAX_WAITING_APPENDS", 5)
    attempts = (store.append(thread_id, [MESSAGE], append_id=str(n)) for n in range(7))
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Appended] * 5 + [StoreError] * 2
    assert "too many waiting" in str(outcomes[-1])
    await store.append(thread_id, [MESSAGE], append_id="6")


async def test_an_unforeseen_failure_undoes_its_own_operation_only(store: SQLiteStore) -> None:
    """The same interrupt raised twice is no refusal but a fault, found only by the database."""
    thread_id, other = await started(store), await started(store, "thread-2")
    await waiting(store, thread_id, "i")
    claim = await held(store, other)
    seen: list[Change] = []
    store.on_change(seen.extend)
    again: list[Event] = [ModelReplied(1, 2), InterruptRaised(InterruptId("i"), "approval")]
    attempts = [store.append(thread_id, [MESSAGE], append_id=str(n)) for n in range(20)]
    attempts.insert(7, store.append(other, again, append_id="again", epoch=claim.epoch))
    attempts.insert(9, store.append(other, [ModelReplied(1, 2)], append_id="zombie", epoch=9))
    outcomes = await asyncio.gather(*attempts, return_exceptions=True)
    assert isinstance(outcomes[7], StoreError)
    assert isinstance(outcomes[9], LeaseLost)
    assert [o.head_seq for o in outcomes if isinstance(o, Appended)] == list(range(4, 24))
    assert [change.head_seq for change in seen] == list(range(4, 24))
    assert len(await store.read(other)) == 2
    await store.append(other, [ModelReplied(1, 2)], append_id="again", epoch=claim.epoch)
    assert len(seen) == 21


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("fail", ["before", "after"])
@pytest.mark.parametrize("number", [1, 10])
async def test_a_failed_commit_is_unknown_and_retried_by_id(
    path: str, fail: str, inline: bool, number: int
) -> None:
    store = SQLiteStore(path, inline=inline)
    await store.open()
    thread_id = await started(store)
    commits = Commits(store)

    async def append(place: int) -> Appended:
        events = [MessageReceived(str(place)), MessageReceived(f"{place} more")]
        return await store.append(thread_id, events, append_id=str(place))

    commits.fail = fail
    outcomes = await asyncio.gather(*(append(place) for place in range(number)), return_exceptions=True)
    errors = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    assert len(errors) == (1 if inline else number)  # inline, each has a commit of its own
    for error in errors:
        assert error.facts == {"unknown": True}
        assert "disk I/O error" in str(error)
        assert "try it again with the same append id" in str(error)
    assert len({id(error) for error in errors}) == len(errors)
    retried = await asyncio.gather(*(append(place) for place in range(number)))
    assert sorted(appended.first_seq for appended in retried) == list(range(3, 3 + 2 * number, 2))
    texts = [entry.event.text for entry in await store.read(thread_id, 2)]
    assert len(texts) == len(set(texts)) == 2 * number
    await store.close()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file of this process may grow beyond that, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_loses_nothing_that_was_acknowledged(store: SQLiteStore, path: str) -> None:
    thread_id = await started(store)
    acknowledged = 0
    with full_disk(Path(f"{path}-wal").stat().st_size + 100_000):  # noqa: ASYNC240 - a test's own file
        while acknowledged < 200:
            try:
                await store.append(thread_id, [MessageReceived("x" * 1000)], append_id=str(acknowledged))
            except StoreError:
                break
            acknowledged += 1
    assert 0 < acknowledged < 200
    again = await store.append(thread_id, [MessageReceived("x" * 1000)], append_id=str(acknowledged))
    assert again.head_seq == acknowledged + 3
    assert len(await store.read(thread_id)) == acknowledged + 3


async def test_a_cancelled_caller_takes_nobody_along(store: SQLiteStore) -> None:
    thread_id = await started(store)
    tasks = [asyncio.ensure_future(store.append(thread_id, [MESSAGE], append_id=str(n))) for n in range(10)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(outcome, Appended) for outcome in outcomes) == 9
    assert isinstance(outcomes[3], asyncio.CancelledError)


async def test_closing_writes_what_waits(store: SQLiteStore) -> None:
    thread_id = await started(store)
    appends = [
        asyncio.ensure_future(store.append(thread_id, [MESSAGE], append_id=str(n))) for n in range(300)
    ]
    await asyncio.sleep(0)
    await store.close()
    assert [appended.head_seq for appended in await asyncio.gather(*appends)] == list(range(3, 303))


async def test_a_locked_database_is_waited_for_without_stopping_the_loop(
    store: SQLiteStore, path: str
) -> None:
    thread_id = await started(store)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    append = asyncio.ensure_future(store.append(thread_id, [MESSAGE], append_id="a"))
    for _ in range(5):
        await asyncio.sleep(0.01)
        assert not append.done()
        assert len(await store.read(thread_id)) == 2
    blocker.execute("ROLLBACK")
    assert (await append).head_seq == 3
    blocker.close()


async def test_a_database_locked_for_too_long_is_an_error(
    store: SQLiteStore, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_id = await started(store)
    monkeypatch.setattr(limits, "BUSY_TIMEOUT_SECONDS", 0.05)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    error = await refused(StoreError, store.append(thread_id, [MESSAGE], append_id="a"))
    assert "locked" in str(error)
    assert error.facts == {"unknown": False}
    blocker.execute("ROLLBACK")
    assert (await store.append(thread_id, [MESSAGE], append_id="a")).head_seq == 3
    blocker.close()


@pytest.mark.parametrize("threaded", [False, True])
async def test_callers_hear_before_watchers_do(
    store: SQLiteStore, threaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threaded:
        monkeypatch.setattr(limits, "QUICK_COMMIT_SECONDS", -1.0)
    thread_id = await started(store)
    order: list[str] = []
    append = asyncio.ensure_future(store.append(thread_id, [MESSAGE], append_id="a"))
    assert store._commits is not None
    finish = store._commits._finish

    def finished(*arguments: object) -> None:
        outcome = arguments[0][0].outcome
        outcome.add_done_callback(lambda _: order.append("woken"))
        store.on_change(lambda _: order.append("told" if outcome.done() else "told too early"))
        finish(*arguments)

    monkeypatch.setattr(store._commits, "_finish", finished)
    await append
    await asyncio.sleep(0)
    assert order == ["told", "woken"]


async def test_a_foreign_commit_is_announced_soon_and_once(store: SQLiteStore, path: str) -> None:
    other = SQLiteStore(path)
    await other.open()
    seen: list[Change] = []
    arrived = asyncio.Event()

    def note(changes: list[Change]) -> None:
        seen.extend(changes)
        arrived.set()

    store.on_change(note)
    loop = asyncio.get_running_loop()
    delays: list[float] = []
    thread_id = await started(other)
    for number in range(10):
        arrived.clear()
        committed = loop.time()
        await other.append(thread_id, [MESSAGE], append_id=str(number))
        async with asyncio.timeout(5):
            await arrived.wait()
        delays.append(loop.time() - committed)
        # Our own commits in between neither hide a foreign one nor are announced as one.
        await store.append(thread_id, [MESSAGE], append_id=f"own {number}", epoch=0)
    await asyncio.sleep(0.12)
    own = [change.head_seq for change in seen if not change.external]
    foreign = [change.head_seq for change in seen if change.external]
    assert own == list(range(4, 24, 2))
    assert sorted(set(foreign)) == foreign
    assert set(foreign) >= set(range(3, 23, 2))
    assert not set(foreign) & set(own)
    assert sorted(delays)[len(delays) // 2] < 0.1
    await other.close()


async def test_a_foreign_commit_before_a_failed_one_is_not_lost(store: SQLiteStore, path: str) -> None:
    other = SQLiteStore(path)
    await other.open()
    thread_id = await started(store)
    seen: list[Change] = []
    store.on_change(seen.extend)
    await other.append(thread_id, [MESSAGE], append_id="foreign")
    commits = Commits(store)
    commits.fail = "before"
    await refused(StoreError, store.append(thread_id, [MESSAGE], append_id="own"))
    assert seen == [Change(thread_id, 3, True)]
    await refused(ThreadNotFound, store.read(ThreadId("unknown")))
    await other.close()


async def test_a_watcher_that_raises_stops_nobody(store: SQLiteStore) -> None:
    thread_id = await started(store)
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    seen: list[Change] = []

    def fail(changes: list[Change]) -> None:
        raise ValueError("a bug of the watcher")

    store.on_change(fail)
    store.on_change(seen.extend)
    await asyncio.gather(*(store.append(thread_id, [MESSAGE], append_id=str(n)) for n in range(300)))
    assert len(seen) == 300
    assert {str(context["exception"]) for context in reported} == {"a bug of the watcher"}
