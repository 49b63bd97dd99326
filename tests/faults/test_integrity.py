"""A log that was changed, cut or damaged: which event does not fit, and why, as `verify` says it."""

import re
import sqlite3
from pathlib import Path

import pytest

from tenuto.chain import ChainReport, verify_thread
from tenuto.errors import StoreError, ThreadNotFound
from tenuto.events import InterruptId, InterruptRaised, MessageReceived, ThreadId, ThreadStarted
from tenuto.store.sqlite import SQLiteStore

THREAD = ThreadId("11111111-1111-4111-8111-111111111111")
EVENTS = 2_500


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with a long thread that nobody has open."""
    path = tmp_path / "tenuto.db"
    store = SQLiteStore(str(path))
    await store.open()
    await store.create(THREAD, [ThreadStarted("a", "f")], append_id="0")
    events = [MessageReceived(f"message {n} " + "x" * 100) for n in range(2, EVENTS + 1)]
    await store.append(THREAD, events, append_id="1")
    await store.close()
    return path


async def verified(path: Path) -> ChainReport:
    store = SQLiteStore(str(path))
    await store.open()
    heard: list[int] = []
    try:
        report = await verify_thread(store, THREAD, heard.append)
    finally:
        await store.close()
    assert heard == sorted(heard)
    return report


def execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


async def test_a_long_thread_is_checked_page_by_page(path: Path) -> None:
    report = await verified(path)
    assert (report.ok, report.checked, report.erased) == (True, EVENTS, 0)


@pytest.mark.parametrize("seq", [1, 7, 999, 1000, 1001, 2000, EVENTS])
@pytest.mark.parametrize(
    ("column", "to", "said"),
    [
        ("body", "body || ' '", "what it says (body, type, version or time) was changed"),
        ("salt", "zeroblob(16)", "what it says (body, type, version or time) was changed"),
        ("salt", "'text'", "what it says (body, type, version or time) was changed"),
        ("salt", "NULL", "of salt and body only one is there"),
        ("body", "NULL", "of salt and body only one is there"),
        ("body_hash", "zeroblob(32)", "the body is not the one that was hashed"),
        ("hash", "'text'", "its hash was changed; what it says (body, type, version or time) was not"),
        ("at", "'soon'", "what it says (body, type, version or time) was changed"),
    ],
)
async def test_the_first_event_that_was_changed_is_named(
    path: Path, seq: int, column: str, to: str, said: str
) -> None:
    execute(path, f"UPDATE events SET {column} = {to} WHERE seq = {seq}")
    report = await verified(path)
    assert (report.ok, report.first_bad_seq, report.checked) == (False, seq, seq - 1)
    if seq == EVENTS and "was changed" in said:
        said = "what it says (body, type, version or time) or its hash was changed"
    assert said in report.reason


@pytest.mark.parametrize(("changed", "missing"), [(5, 9), (9, 5), (1500, 1501), (999, 2400)])
async def test_a_changed_event_before_a_missing_one_is_found_first(
    path: Path, changed: int, missing: int
) -> None:
    execute(path, f"UPDATE events SET body = '' WHERE seq = {changed}")
    execute(path, f"DELETE FROM events WHERE seq = {missing}")
    report = await verified(path)
    assert report.first_bad_seq == min(changed, missing)
    assert ("is missing" in report.reason) is (missing < changed)


@pytest.mark.parametrize("kept", [1, 1000, EVENTS - 1])
async def test_a_log_that_was_cut_is_shorter_than_its_head(path: Path, kept: int) -> None:
    execute(path, f"DELETE FROM events WHERE seq > {kept}")
    report = await verified(path)
    assert (report.ok, report.checked, report.first_bad_seq) == (False, kept, kept + 1)
    assert f"event {kept + 1} of thread {THREAD} is missing" in report.reason


async def test_a_damaged_page_is_named_with_the_event_in_it(path: Path) -> None:
    """The page of the table that holds event 1700 is overwritten, as a failing disk does it."""
    content = path.read_bytes()  # noqa: ASYNC240 - a test's own file
    size = int.from_bytes(content[16:18], "big")
    page = content.index(b"message 1700 ") // size * size
    with open(path, "r+b") as file:  # noqa: ASYNC230 - the same
        file.seek(page)
        file.write(b"\xff" * (size // 2))
    report = await verified(path)
    assert (report.ok, report.first_bad_seq) == (False, report.checked + 1)
    assert 1650 < report.first_bad_seq <= 1700
    assert report.reason == f"{path}: database disk image is malformed"
    assert report.head_hash != bytes(32)


async def test_whatever_page_is_damaged_it_is_said_in_our_own_words(tmp_path: Path) -> None:
    """Whoever opens, lists, reads, verifies or writes gets a `StoreError` or the truth."""
    path, other = tmp_path / "tenuto.db", ThreadId("22222222-2222-4222-8222-222222222222")
    store = SQLiteStore(str(path))
    await store.open()
    for thread in (THREAD, other):
        events = [ThreadStarted("a", "f"), *(MessageReceived("x" * 300) for _ in range(30))]
        await store.create(thread, events, append_id="0")
    await store.close()
    sound = path.read_bytes()
    size = int.from_bytes(sound[16:18], "big")
    said: list[str] = []
    for page in range(1, len(sound) // size):
        damaged = bytearray(sound)
        damaged[page * size : page * size + size // 2] = b"\xff" * (size // 2)
        path.write_bytes(damaged)
        try:
            store = SQLiteStore(str(path))
            await store.open()
        except StoreError as error:
            said.append(str(error))
            continue
        for attempt in (
            store.threads(),
            store.interrupts(),
            store.workers(),
            store.read(THREAD),
            verify_thread(store, other),
            store.append(other, [MessageReceived("y")], append_id="1"),
            store.claim("w", ["a"], limit=10, lease_seconds=1),
        ):
            try:
                await attempt
            except (StoreError, ThreadNotFound) as error:
                said.append(str(error))
        await store.close()
    assert any("malformed" in text for text in said)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE threads SET head_hash = zeroblob(32)", "the thread's row names another last event"),
        ("UPDATE threads SET head_seq = 2499", "says that event 2499 is the last"),
    ],
)
async def test_the_row_that_the_next_event_is_chained_on_is_checked(
    path: Path, statement: str, said: str
) -> None:
    execute(path, statement)
    report = await verified(path)
    assert not report.ok
    assert re.search(said, report.reason)


async def test_a_tail_that_was_cut_off_with_its_place_is_noticed(path: Path) -> None:
    execute(path, f"DELETE FROM events WHERE seq > {EVENTS - 3}")
    execute(path, f"UPDATE threads SET head_seq = {EVENTS - 3}")
    report = await verified(path)
    assert (report.ok, report.first_bad_seq) == (False, EVENTS - 3)
    assert "some were cut off" in report.reason


async def paused(tmp_path: Path) -> Path:
    """A thread that waits for a person, released."""
    path = tmp_path / "paused.db"
    store = SQLiteStore(str(path))
    await store.open()
    await store.create(THREAD, [ThreadStarted("a", "f"), MessageReceived("go")], append_id="0")
    claim = await store.take("w", THREAD, lease_seconds=5)
    assert claim is not None
    asked = InterruptRaised(InterruptId("i"), "question", prompt="well?")
    await store.append(THREAD, [asked], append_id="1", epoch=claim.epoch)
    await store.release(claim, seen_seq=3, wake_at_ms=None, status="awaiting_answer")
    await store.close()
    return path


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE interrupts SET outcome = 'dropped'", "interrupt i: the event that decided it"),
        ("DELETE FROM interrupts", "interrupt i is in the events"),
        (
            "UPDATE threads SET status = 'completed'",
            "row says completed, its events say awaiting",
        ),
    ],
)
async def test_an_item_that_vanished_beside_the_log_is_noticed(
    tmp_path: Path, statement: str, said: str
) -> None:
    path = await paused(tmp_path)
    assert (await verified(path)).ok
    execute(path, statement)
    report = await verified(path)
    assert not report.ok
    assert said in report.reason
