"""Workers live and die: in one process, and in real ones that are killed."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tenuto.chain import verify_chain
from tenuto.errors import Conflict, InvalidInput, StoreError
from tenuto.events import ModelReplied, ThreadId
from tenuto.locks import is_alive, lock_path, lock_worker, owners_with_files, unlock_worker
from tenuto.rows import Change
from tenuto.store.sqlite import SQLiteStore
from tenuto.testing.store_contract.cases import MESSAGE, refused, started

LONG: dict[str, float] = {"lease_seconds": 600.0}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "tenuto.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path)
    await store.open()
    yield store
    await store.close()


def exists(path: str) -> bool:
    return os.path.exists(path)


def _hold(path: str, owner: str, pipe: Connection) -> None:
    """A process that takes every thread, says which, and goes on until it is killed."""

    async def hold() -> None:
        store = SQLiteStore(path)
        await store.open()
        await store.register(owner, ["ops"])
        claimed = await store.claim(owner, ["ops"], limit=100, **LONG)
        pipe.send([(claim.thread_id, claim.epoch) for claim in claimed.claims])
        await asyncio.Event().wait()

    asyncio.run(hold())


def signature(path: str) -> object:
    return json.loads(Path(path).read_text())


class Holder:
    """That process, from outside."""

    def __init__(self, path: str, owner: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_hold, args=(path, owner, theirs), daemon=True)
        self.process.start()
        theirs.close()

    async def claims(self) -> list[tuple[str, int]]:
        claims: list[tuple[str, int]] = await asyncio.to_thread(self._pipe.recv)
        return claims

    def kill(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(10)
        self._pipe.close()


async def test_a_killed_workers_threads_are_taken_over_at_once(store: SQLiteStore, path: str) -> None:
    ids = [await started(store, f"t{number}") for number in range(3)]
    holder = Holder(path, "victim")
    claims = await holder.claims()
    assert [thread_id for thread_id, _ in claims] == ids
    assert {(row.owner, row.pid) for row in await store.workers()} == {("victim", holder.process.pid)}
    assert await store.take("heir", ids[0], **LONG) is None
    changes: list[Change] = []
    freed = asyncio.Event()

    def note(new: list[Change]) -> None:
        changes.extend(new)
        freed.set()

    store.on_change(note)
    loop = asyncio.get_running_loop()
    holder.kill()
    killed = loop.time()
    assert await store.workers() == []
    async with asyncio.timeout(10):
        await freed.wait()
    taken = await store.claim("heir", ["ops"], limit=10, **LONG)
    assert loop.time() - killed < 2
    assert [claim.thread_id for claim in taken.claims] == ids
    assert {claim.epoch for claim in taken.claims} == {2}
    assert changes == [Change(thread_id, 2, True) for thread_id in ids]
    assert not exists(lock_path(path, "victim"))


async def test_opening_frees_what_a_dead_worker_held(path: str) -> None:
    first = SQLiteStore(path)
    await first.open()
    thread_id = await started(first)
    holder = Holder(path, "victim")
    await holder.claims()
    await first.close()
    holder.kill()
    second = SQLiteStore(path, inline=True)
    await second.open()
    assert (await second.thread(thread_id)).lease_owner is None
    assert not owners_with_files(path)
    await second.close()


async def test_two_stores_of_one_process_are_two_workers(store: SQLiteStore, path: str) -> None:
    second = SQLiteStore(path)
    await second.open()
    await store.register("worker-1", ["a"])
    await second.register("worker-2", ["b"])
    await refused(Conflict, second.register("worker-1", ["b"]))
    thread_id = await started(store)
    assert await second.take("worker-2", thread_id, **LONG) is not None
    store._bury_dead()
    second._bury_dead()
    for either in (store, second):
        assert {row.owner for row in await either.workers()} == {"worker-1", "worker-2"}
    assert (await store.thread(thread_id)).lease_owner == "worker-2"
    assert signature(lock_path(path, "worker-1")) == {"pid": os.getpid()}
    await second.close()
    assert [row.owner for row in await store.workers()] == ["worker-1"]
    assert (await store.thread(thread_id)).lease_owner is None
    assert owners_with_files(path) == {"worker-1"}


async def test_registering_again_changes_the_agents(store: SQLiteStore) -> None:
    await store.register("worker-1", ["a"])
    await store.register("worker-1", ["a", "b"])
    (row,) = await store.workers()
    assert row.agents == ("a", "b")


@pytest.mark.parametrize("owner", ["", "a/b", "..\0", "a b", "x" * 101, "é"])
async def test_a_workers_name_is_fit_for_a_file(store: SQLiteStore, owner: str) -> None:
    await refused(InvalidInput, store.register(owner, ["a"]))


def test_a_lock_on_a_removed_file_means_nothing(path: str) -> None:
    first = lock_worker(path, "w")
    assert first is not None
    assert is_alive(path, "w")
    assert lock_worker(path, "w") is None
    unlock_worker(path, "w", first)
    assert not is_alive(path, "w")
    second = lock_worker(path, "w")
    assert second is not None
    assert os.stat(second).st_ino == os.stat(lock_path(path, "w")).st_ino
    unlock_worker(path, "w", second)


def test_the_lock_of_a_file_removed_meanwhile_is_taken_anew(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file goes away between opening and locking, as a scanner may do to a worker that starts."""
    import fcntl

    flock, removed = fcntl.flock, []

    def remove_and_lock(descriptor: int, how: int) -> None:
        if not removed:
            removed.append(descriptor)
            os.unlink(lock_path(path, "w"))
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    descriptor = lock_worker(path, "w")
    assert removed
    assert descriptor is not None
    assert os.fstat(descriptor).st_nlink == 1
    unlock_worker(path, "w", descriptor)


async def test_a_worker_that_starts_outwaits_a_scan(store: SQLiteStore, path: str) -> None:
    """Another process that opens the database has the new lock file for a moment, to see whose it is."""
    descriptor = lock_worker(path, "worker-1")
    assert descriptor is not None
    asyncio.get_running_loop().call_later(0.05, unlock_worker, path, "worker-1", descriptor)
    await store.register("worker-1", ["a"])
    assert [row.owner for row in await store.workers()] == ["worker-1"]


async def test_lock_files_are_not_inherited(store: SQLiteStore, path: str) -> None:
    await store.register("worker-1", ["a"])
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE, close_fds=False
    )
    os.close(store._locks.pop("worker-1"))  # what the kernel does when a process dies
    # The kernel lets a parent go on a moment before it closes the child's files, as it becomes the program.
    async with asyncio.timeout(10):
        while await store.workers():  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.001)
    await child.communicate(b"\n")


async def test_a_lock_that_cannot_be_made_is_named(store: SQLiteStore, path: str) -> None:
    Path(lock_path(path, "worker-1")).mkdir()  # noqa: ASYNC240 - a test's own file
    error = await refused(StoreError, store.register("worker-1", ["a"]))
    assert lock_path(path, "worker-1") in str(error)


def _append_many(path: str, name: str, number: int) -> None:
    async def append() -> None:
        store = SQLiteStore(path)
        await store.open()
        thread_id = ThreadId("shared")
        for place in range(number):
            await store.append(thread_id, [MESSAGE], append_id=f"{name} {place}")
            own = await started(store, f"{name} {place}")
            claim = await store.take(name, own, **LONG)
            assert claim is not None
            await store.append(own, [ModelReplied(1, 2)], append_id="a", epoch=claim.epoch)
        await store.close()

    asyncio.run(append())


async def test_processes_write_side_by_side(store: SQLiteStore, path: str) -> None:
    await started(store, "shared")
    heads: dict[str, list[int]] = {}
    everything = asyncio.Event()

    def note(changes: list[Change]) -> None:
        for change in changes:
            heads.setdefault(change.thread_id, []).append(change.head_seq)
        if len(heads) == 101 and sum(seen[-1] for seen in heads.values()) == 102 + 100 * 3:
            everything.set()

    store.on_change(note)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(path, name, 50)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    for writer in writers:
        await asyncio.to_thread(writer.join, 60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(await store.read(ThreadId("shared"))) == 102
    async with asyncio.timeout(5):
        await everything.wait()
    assert all(seen == sorted(set(seen)) for seen in heads.values())


def _append_until_killed(path: str, pipe: Connection) -> None:
    async def append() -> None:
        store = SQLiteStore(path)
        await store.open()
        thread_id = await started(store)

        async def one(name: int) -> None:
            for place in range(1_000_000):
                appended = await store.append(thread_id, [MESSAGE] * 2, append_id=f"{name} {place}")
                pipe.send(appended.head_seq)

        await asyncio.gather(*(one(name) for name in range(5)))

    asyncio.run(append())


async def test_what_was_acknowledged_outlives_a_kill(store: SQLiteStore, path: str) -> None:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    writer = context.Process(target=_append_until_killed, args=(path, theirs), daemon=True)
    writer.start()
    theirs.close()
    acknowledged = [await asyncio.to_thread(pipe.recv) for _ in range(100)]
    writer.kill()
    with contextlib.suppress(EOFError):
        while True:
            acknowledged.append(pipe.recv())
    writer.join(10)
    thread_id = ThreadId("thread-1")
    entries = await store.read(thread_id)
    assert len(entries) >= max(acknowledged)
    assert len(entries) % 2 == 0  # all events of an append, or none
    rows = [row for after in range(0, len(entries), 1000) for row in await store.stored(thread_id, after)]
    assert verify_chain(thread_id, rows).checked == len(entries)
    assert (await store.append(thread_id, [MESSAGE], append_id="next")).head_seq == len(entries) + 1
