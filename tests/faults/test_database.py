"""A database that refuses while threads run: what callers hear, that the worker goes on, nothing doubled."""

import asyncio
import contextlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.loop.world import Ledger, at_work, of_type, rest, until

from tenuto import Agent, Runtime, StoreError, ThreadState, limits, tool
from tenuto.events import (
    CallFinished,
    CallStarted,
    MessageReceived,
    ModelReplied,
    ThreadCompleted,
    ThreadId,
    ThreadStarted,
)
from tenuto.messages import Request, ToolMessage
from tenuto.models.scripted import ScriptedModel, call
from tenuto.store.sqlite import SQLiteStore
from tenuto.tools import Happened

BIG = "x" * 200_000
Fault = Callable[[Runtime, Path], Any]

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def full(runtime: Runtime, path: Path) -> Iterator[None]:
    """SQLite's own "database or disk is full", as for ENOSPC: the file may not grow any more."""
    connection = runtime.store._writing  # type: ignore[attr-defined]  # the seam
    before = connection.execute("PRAGMA max_page_count").fetchone()[0]
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA max_page_count = {before}")


@contextlib.contextmanager
def failing_writes(runtime: Runtime, path: Path) -> Iterator[None]:
    """The operating system refuses to let a file grow: a write in the middle of a commit fails for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wal = Path(f"{path}-wal")
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(wal.stat().st_size, path.stat().st_size), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def locked(runtime: Runtime, path: Path) -> Iterator[None]:
    """Another process holds the write lock for longer than anybody waits."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        try:
            yield
        finally:
            process.kill()


FAULTS: dict[str, Fault] = {"disk full": full, "writes fail": failing_writes, "locked": locked}
SAID = {full: "database or disk is full", failing_writes: "disk I/O error", locked: "database is locked"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUSY_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr(limits, "STORE_ATTEMPTS", 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tenuto.db"


def script(request: Request) -> Any:
    """Pay, then say what came of it; a large answer, so that a full disk has no room for it."""
    results = [message.text for message in request.messages if isinstance(message, ToolMessage)]
    return f"{results[-1]} {BIG}" if results else call("pay")


async def failed_appends(runtime: Runtime, count: int) -> None:
    """Until so many more appends of the loop were refused."""
    refused = asyncio.Event()
    append, seen = runtime.store.append, 0

    async def appending(*arguments: Any, **options: Any) -> Any:
        nonlocal seen
        try:
            return await append(*arguments, **options)
        except StoreError:
            seen += 1
            if seen >= count:
                refused.set()
            raise

    runtime.store.append = appending  # type: ignore[method-assign]  # only to look
    async with asyncio.timeout(20):
        await refused.wait()


def whole(state: ThreadState) -> None:
    assert (state.status, state.answer) == ("completed", f"paid {BIG}")


async def once_each(runtime: Runtime, thread: str) -> None:
    for kind, count in ((ModelReplied, 2), (CallStarted, 1), (CallFinished, 1), (ThreadCompleted, 1)):
        assert len(await of_type(runtime, thread, kind)) == count


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_what_a_caller_hears_and_nothing_half_done_is_left(fault: Fault, path: Path) -> None:
    async with at_work([], lambda _: "done", database=f"sqlite:///{path}") as runtime:
        thread = await runtime.start("ops", "go")
        await rest(runtime, thread)
        with fault(runtime, path):
            for attempt in (lambda: runtime.start("ops", BIG), lambda: runtime.send(thread, BIG)):
                with pytest.raises(StoreError, match=SAID[fault]) as caught:
                    await attempt()
                assert str(path) in str(caught.value)
            # What is there can be read all the while.
            assert (await runtime.state(thread)).answer == "done"
            assert len(await runtime.threads()) == 1
        assert len(await runtime.events(thread)) == 4
        await runtime.send(thread, BIG)
        assert (await rest(runtime, thread)).status == "completed"


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_the_worker_goes_on_by_itself_and_doubles_nothing(fault: Fault, path: Path) -> None:
    """The fault begins while the model thinks of its last answer, and lasts for several attempts."""
    ledger, thinking, think = Ledger(), asyncio.Event(), asyncio.Event()

    async def slowly(request: Request) -> Any:
        answer = script(request)
        if isinstance(answer, str):
            thinking.set()
            await think.wait()
        return answer

    @tool(effect="once")
    async def pay() -> str:
        ledger.enter("pay")
        return "paid"

    async with at_work([pay], slowly, database=f"sqlite:///{path}", lease=1.0) as runtime:
        thread = await runtime.start("ops", "go")
        await thinking.wait()
        with fault(runtime, path):
            think.set()
            await failed_appends(runtime, 1)
            await asyncio.sleep(0.5)  # many a claim is refused as well
            assert (await runtime.state(thread)).status == "running"
        whole(await until(runtime, thread, "completed"))
        assert ledger == {"pay": 1}
        await once_each(runtime, thread)


@pytest.mark.parametrize(("fault", "refusals"), [(failing_writes, 2), (locked, 1)])
@pytest.mark.parametrize("has_verify", [True, False])
async def test_a_result_that_could_not_be_recorded_is_in_doubt_and_its_call_never_runs_twice(
    fault: Fault, refusals: int, has_verify: bool, path: Path
) -> None:
    """A commit that failed is tried again, as its outcome is unknown; a refusal before that is final."""
    ledger = Ledger()
    runtimes: list[Runtime] = []
    broken = contextlib.ExitStack()

    async def verify(arguments: Any, idempotency_key: str) -> Any:
        return Happened("paid")

    @tool(effect="once", timeout=1, verify=verify if has_verify else None)
    async def pay() -> str:
        ledger.enter("pay")
        broken.enter_context(fault(runtimes[0], path))
        return "paid"

    async with at_work([pay], script, database=f"sqlite:///{path}", lease=1.0) as runtime:
        runtimes.append(runtime)
        with broken:
            thread = await runtime.start("ops", "go")
            await failed_appends(runtime, refusals)
            await asyncio.sleep(0.5)  # nor can the thread be given back
        if not has_verify:
            state = await until(runtime, thread, "awaiting_review")
            await runtime.resolve(state.interrupts[0].id, "happened", by="ana", answer="paid")
        whole(await until(runtime, thread, "completed"))
        assert ledger == {"pay": 1}
        await once_each(runtime, thread)


def damage(path: Path, text: bytes) -> None:
    """Overwrite half of the page that holds `text`, as a failing disk does it."""
    content = path.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    with path.open("r+b") as file:
        file.seek(content.index(text) // size * size)
        file.write(b"\xff" * (size // 2))


async def test_one_damaged_thread_is_named_and_holds_nobody_up(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SQLiteStore(str(path))
    await store.open()
    bad = ThreadId("11111111-1111-4111-8111-111111111111")
    said = [MessageReceived(f"message {n} " + "x" * 300) for n in range(2, 301)]
    await store.create(bad, [ThreadStarted("ops", "f"), *said], append_id="a")
    await store.close()
    damage(path, b"message 150 ")
    model = ScriptedModel(lambda _: "done")
    async with Runtime([Agent("ops")], f"sqlite:///{path}", model=model) as runtime:
        for _ in range(3):
            good = await runtime.start("ops", "go")
            assert (await rest(runtime, good)).answer == "done"
            assert (await runtime.verify(good)).ok
        await runtime.send(bad, "still there?")  # what is acknowledged is in the log, here as well
        with pytest.raises(StoreError, match="malformed"):
            await runtime.state(bad)
        report = await runtime.verify(bad)
        assert (report.ok, 100 < report.first_bad_seq <= 150) == (False, True)
        assert report.reason == f"{path}: database disk image is malformed"
        row = await runtime.store.thread(bad)
        assert (row.status, row.head_seq) == ("running", 301)
    assert f"thread {bad}: advancing failed" in caplog.messages


# Root may write everything. All is imported first: another user may not be able to read the installation.
AS_A_STRANGER = """
import asyncio, concurrent.futures.thread, os, sys
from tenuto import Agent, Runtime, TenutoError
from tenuto.models.scripted import ScriptedModel
import tenuto.store.sqlite

async def main(database, what):
    async with Runtime([Agent("ops")] if what == "write" else [], database, model=ScriptedModel(["a"])) as it:
        if what == "write":
            await it.start("ops", "go")
        else:
            print(len(await it.threads()))

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    asyncio.run(main(*sys.argv[1:]))
except TenutoError as error:
    print(f"{type(error).__name__}: {error}")
"""


def as_a_stranger(path: Path, what: str) -> str:
    """What a program says that may read the file and nothing more."""
    command = [sys.executable, "-c", AS_A_STRANGER, f"sqlite:///{path}", what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def readable() -> Iterator[Path]:
    """A database that everybody can read and nobody can write."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "tenuto.db"
        asyncio.run(_one_thread(path))
        path.chmod(0o444)
        Path(place).chmod(0o555)
        yield path
        Path(place).chmod(0o755)


async def _one_thread(path: Path) -> None:
    async with at_work([], ["done"], database=f"sqlite:///{path}") as runtime:
        await rest(runtime, await runtime.start("ops", "go"))


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_file_that_may_not_be_written_is_one_clear_error(readable: Path, what: str) -> None:
    before = readable.read_bytes()
    said = as_a_stranger(readable, what)
    assert said.startswith(f"StoreError: {readable}: ")
    assert "attempt to write a readonly database (its folder has to be writable, also to read: " in said
    assert said.count("\n") == 1
    assert readable.read_bytes() == before
