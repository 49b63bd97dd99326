"""What cannot be read, or was changed beside the log, is shown for what it is, and hides nothing else."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.faults.test_database import damage
from tests.loop.world import Ledger
from tests.server.conftest import APPROVER, Place, place, serving

from tenuto import Agent, Runtime, tool
from tenuto.client import Client
from tenuto.errors import Stale, StoreError, TenutoError, Undecodable
from tenuto.messages import Request
from tenuto.models.scripted import ScriptedModel, call
from tenuto.rows import InterruptRow
from tenuto.store.sqlite import SQLiteStore

__all__ = ["place", "serving"]  # fixtures

ORDERS = (1, 20, 300, 4000)
WAIT = APPROVER | {"Prefer": "wait=20"}


class Desk:
    """Threads 1..4, each with an approval for its own order, in a file that nobody has open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = Ledger()
        self.threads: list[str] = []
        self.rows: list[InterruptRow] = []

    def runtime(self) -> Runtime:
        @tool(effect="once", approval=True)
        async def pay(order: int, note: str) -> str:
            self.ledger.enter(f"pay {order}")
            return "paid"

        def script(request: Request) -> Any:
            if len(request.messages) > 1:
                return "done"
            return call("pay", order=int(request.messages[-1].text), note="n" * 900)

        return Runtime([Agent("ops", tools=[pay])], f"sqlite:///{self.path}", model=ScriptedModel(script))

    def execute(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                assert connection.execute(statement).rowcount > 0


@pytest.fixture
async def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "tenuto.db")
    async with desk.runtime() as runtime:
        for order in ORDERS:
            thread = await runtime.start("ops", str(order))
            await runtime.wait(thread)
            desk.threads.append(thread)
        desk.rows = await runtime.interrupts()
        assert [f'"order":{order}' in row.arguments for order, row in zip(ORDERS, desk.rows, strict=True)]
    return desk


def page_of_second(desk: Desk) -> None:
    """The page that holds the second thread's interrupt_raised, and no index of anything."""
    with closing(sqlite3.connect(desk.path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = desk.path.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    place = content.index(f'"id":"{desk.rows[1].id}"'.encode())
    damage(desk.path, content[place // size * size : place + 40][-80:])


def changed(statement: str) -> Callable[[Desk], None]:
    return lambda desk: desk.execute(statement)


DAMAGE = {
    "an event that is none": (
        changed("UPDATE events SET body = '{}' WHERE thread = 2 AND seq = 4"),
        "event 4 of thread {thread}: stored event cannot be read",
    ),
    "an event that is no JSON": (
        changed("UPDATE events SET body = CAST(x'ff' AS TEXT) WHERE thread = 2 AND seq = 4"),
        "event 4 of thread {thread}: stored event cannot be read",
    ),
    "an event of a version that is none": (
        changed("UPDATE events SET version = 'x' WHERE thread = 2 AND seq = 4"),
        "event 4 of thread {thread}: x",
    ),
    "an event that is gone": (
        changed("DELETE FROM events WHERE thread = 2 AND seq = 4"),
        "event 4 of thread {thread}: it is missing",
    ),
    "an event of another kind": (
        changed("UPDATE interrupts SET raised_seq = 3 WHERE num = 2"),
        "event 3 of thread {thread} has another id than the row",
    ),
    "another kind": (changed("UPDATE interrupts SET kind = 'review' WHERE num = 2"), "another kind"),
    "no kind": (changed("UPDATE interrupts SET kind = 'zz' WHERE num = 2"), "another kind"),
    "another expiry": (changed("UPDATE interrupts SET expires_at = 9 WHERE num = 2"), "another expires_at"),
    "no expiry": (changed("UPDATE interrupts SET expires_at = 'x' WHERE num = 2"), "another expires_at"),
    "no time": (changed("UPDATE interrupts SET raised_at = 'x' WHERE num = 2"), "raised_at cannot be read"),
    "a damaged page": (
        page_of_second,
        "event 4 of thread {thread}: {path}: database disk image is malformed",
    ),
}


@pytest.mark.parametrize(("harm", "said"), DAMAGE.values(), ids=DAMAGE)
async def test_an_item_that_cannot_be_read_is_shown_in_its_place_and_hides_no_other(
    desk: Desk, harm: Callable[[Desk], None], said: str
) -> None:
    harm(desk)
    said = said.format(thread=desk.threads[1], path=desk.path)
    async with desk.runtime() as runtime:
        rows = await runtime.interrupts()
        assert [row.id for row in rows] == [row.id for row in desk.rows]
        assert [row for row in rows if not row.fault] == [desk.rows[0], *desk.rows[2:]]
        bad = rows[1]
        assert said in bad.fault
        assert bad.prompt == (
            f"This cannot be read, nor decided: {bad.fault}; `tenuto verify {desk.threads[1]}` tells more"
        )
        assert (bad.arguments, bad.digest, bad.options) == ("", "", ())
        for digest in (None, desk.rows[1].digest):
            with pytest.raises(TenutoError) as caught:
                await runtime.resolve(bad.id, "approve", by="ana", digest=digest)
            assert isinstance(caught.value, Undecodable | StoreError)
        # Filters find it as before; those of other threads do not.
        assert await runtime.interrupts(thread_id=desk.threads[2]) == [desk.rows[2]]
        assert [row.id for row in await runtime.interrupts(pending=None, limit=2)] == [
            row.id for row in desk.rows[:2]
        ]
        assert [row.id for row in await runtime.interrupts(after=bad.id)] == [row.id for row in desk.rows[2:]]
        # The others are decided and run.
        await runtime.resolve(desk.rows[3].id, "approve", by="ana", digest=desk.rows[3].digest)
        assert (await runtime.wait(desk.threads[3])).status == "completed"
        assert desk.ledger == {"pay 4000": 1}
        report = await runtime.verify(desk.threads[1])
        assert not report.ok
        assert (await runtime.verify(desk.threads[3])).ok


async def three(place: Place) -> list[str]:
    """Ids of three threads at a server, each with an approval."""
    threads = []
    for _ in range(3):
        done = await place.client.post("/v1/threads", json={"message": "refund"}, headers=WAIT)
        threads.append(done.json()["id"])
    return threads


def execute(place: Place, statement: str) -> None:
    place.runtime.store._writing.execute(statement)  # type: ignore[attr-defined]  # in memory there is no other way


async def test_over_http_the_others_are_listed_and_the_bad_one_is_refused(place: Place) -> None:
    threads = await three(place)
    before = (await place.client.get("/v1/interrupts", headers=APPROVER)).json()["interrupts"]
    execute(place, "UPDATE events SET body = '{}' WHERE thread = 2 AND type = 'interrupt_raised'")
    page = await place.client.get("/v1/interrupts", headers=APPROVER)
    assert page.status_code == 200
    items = page.json()["interrupts"]
    assert [items[0], items[2]] == [before[0], before[2]]
    assert (items[1]["id"], items[1]["options"], items[1]["arguments"]) == (before[1]["id"], [], None)
    assert f"event 4 of thread {threads[1]}" in items[1]["prompt"]
    alone = await place.client.get(f"/v1/interrupts/{items[1]['id']}", headers=APPROVER)
    assert alone.json() == items[1]
    refused = await place.resolve(items[1]["id"], "approve")
    assert (refused.status_code, refused.json()["type"]) == (500, "urn:tenuto:undecodable")
    assert (await place.resolve(items[2]["id"], "approve")).json()["status"] == "completed"
    assert place.shop.refunds == ["17"]


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "one"}], ids=["without a key", "with a key"])
async def test_over_http_a_thread_that_cannot_be_read_is_not_changed(
    place: Place, key: dict[str, str]
) -> None:
    thread = (await three(place))[1]
    (item,) = (
        await place.client.get("/v1/interrupts", params={"thread_id": thread}, headers=APPROVER)
    ).json()["interrupts"]
    execute(place, "UPDATE events SET body = '{}' WHERE thread = 2 AND seq = 3")
    before = await place.client.get(f"/v1/threads/{thread}/export", headers=APPROVER)
    for path, body in (
        (f"/v1/threads/{thread}/messages", {"text": "more"}),
        (f"/v1/threads/{thread}/cancel", {}),
        (f"/v1/threads/{thread}/extend", {"steps": 1}),
        (f"/v1/interrupts/{item['id']}/resolve", {"verb": "approve"}),
        ("/api/agent/approve", {"task_id": thread, "action_id": item["id"], "approved": True}),
    ):
        for headers in (APPROVER | key, WAIT | key):
            refused = await place.client.post(path, json=body, headers=headers)
            assert refused.status_code == 500, path
    after = await place.client.get(f"/v1/threads/{thread}/export", headers=APPROVER)
    assert after.text == before.text
    assert len(after.text.splitlines()) == 4


async def test_over_http_threads_are_listed_though_a_row_of_one_is_damaged(place: Place) -> None:
    threads = await three(place)
    execute(place, "UPDATE threads SET metadata = '{}x', status = 'zz', ready_at = 'x' WHERE num = 2")
    page = (await place.client.get("/v1/threads", headers=APPROVER)).json()["threads"]
    assert [row["id"] for row in page] == threads[::-1]
    assert (page[1]["metadata"], page[1]["status"], page[1]["ready_at"]) == ({}, "running", None)


async def test_what_a_server_tells_of_its_rows_is_held_to_the_events_that_it_sends(place: Place) -> None:
    threads = await three(place)
    execute(place, "UPDATE interrupts SET raised_at = 1 WHERE num = 2")
    execute(place, "UPDATE interrupts SET kind = 'zz' WHERE num = 3")
    async with Client(place.url, token="s3cret-of-ana") as client:
        reports = [await client.verify(thread) for thread in threads]
    assert [report.ok for report in reports] == [True, False, False]
    assert "has raised_at_ms 1 in the inbox" in reports[1].reason
    assert "has another kind" in reports[2].reason or "has kind 'question' in the inbox" in reports[2].reason


async def test_an_approval_covers_what_was_seen_though_the_rows_were_swapped(desk: Desk) -> None:
    """Two approvals of one thread, each row points at the other's event: none is approved unseen."""
    async with desk.runtime() as runtime:
        model = ScriptedModel([[call("pay", order=1, note=""), call("pay", order=1000, note="")], "done"])
        runtime._model = model
        thread = await runtime.start("ops", "two")
        await runtime.wait(thread)
        first, second = await runtime.interrupts(thread_id=thread)
    desk.execute(
        f"UPDATE interrupts SET raised_seq = {first.raised_seq + second.raised_seq} - raised_seq"
        f" WHERE id IN ('{first.id}', '{second.id}')"
    )
    async with desk.runtime() as runtime:
        for row in await runtime.interrupts(thread_id=thread):
            assert "has another id than the row of interrupt" in row.fault
            for shown in (first, second):
                with pytest.raises(Undecodable, match="cannot be decided"):
                    await runtime.resolve(row.id, "approve", by="ana", digest=shown.digest)
        assert "has another id" in (await runtime.verify(thread)).reason
        assert desk.ledger == {}


async def test_the_transaction_of_a_decision_looks_for_itself(desk: Desk) -> None:
    """The row is changed after it was read, before it is decided."""
    async with desk.runtime() as runtime:
        resolve = runtime.store.resolve

        async def later(*arguments: Any, **options: Any) -> Any:
            desk.execute("UPDATE interrupts SET raised_seq = 3 WHERE num = 1")
            return await resolve(*arguments, **options)

        runtime.store.resolve = later  # type: ignore[method-assign]  # the seam
        with pytest.raises(Undecodable, match="has another id"):
            await runtime.resolve(desk.rows[0].id, "approve", by="ana", digest=desk.rows[0].digest)
        assert len(await runtime.events(desk.threads[0])) == 4


async def test_a_digest_of_another_item_is_refused(desk: Desk) -> None:
    async with desk.runtime() as runtime:
        with pytest.raises(Stale):
            await runtime.resolve(desk.rows[0].id, "approve", by="ana", digest=desk.rows[1].digest)


TAMPERED = [
    ("DELETE FROM interrupts WHERE num = 2", "is in the events, and the inbox does not list it"),
    ("UPDATE interrupts SET outcome = 'approved' WHERE num = 2", "the event that decided it"),
    (
        "UPDATE interrupts SET outcome = NULL WHERE num = 1",
        "has outcome None in the inbox, and 'approved' in",
    ),
    ("UPDATE interrupts SET outcome = 'rejected' WHERE num = 1", "has another outcome than the row"),
    ("UPDATE interrupts SET resolved_seq = 4 WHERE num = 1", "has another kind than the row"),
    ("UPDATE interrupts SET resolved_at = 9 WHERE num = 1", "has resolved_at_ms 9 in the inbox, and"),
    ("UPDATE interrupts SET raised_at = 1 WHERE num = 2", "has raised_at_ms 1 in the inbox, and"),
    ("UPDATE interrupts SET id = 'other' WHERE num = 2", "interrupt other: event 4 of thread"),
    (
        "INSERT INTO interrupts VALUES (99, 'more', 2, 'approval', 4, 1, 0, NULL, NULL, NULL)",
        "interrupt more: event 4 of thread",
    ),
    ("UPDATE threads SET agent = 'other' WHERE num = 2", "has 'other' as agent, its events have 'ops'"),
    ("UPDATE threads SET metadata = '{\"a\":1}' WHERE num = 2", "has {'a': 1} as metadata"),
    ("UPDATE threads SET created_at = 1 WHERE num = 2", "has 1 as created_at"),
    ("UPDATE threads SET updated_at = 1 WHERE num = 2", "has 1 as updated_at"),
    ("UPDATE threads SET status = 'completed', ready_at = NULL WHERE num = 2", "says completed, its events"),
    ("UPDATE threads SET status = 'awaiting_review' WHERE num = 2", "its events say awaiting_approval"),
    ("UPDATE threads SET status = 'failed' WHERE num = 1", "says failed, its events say completed"),
    ("UPDATE threads SET ready_at = NULL WHERE num = 2", "and no worker would look at it"),
    ("INSERT INTO events (thread, seq, version, type, at, hash) VALUES (2, 0, 1, 'x', 1, 'x')", "event 0"),
    ("INSERT INTO events (thread, seq, version, type, at, hash) VALUES (2, -7, 1, 'x', 1, 'x')", "event -7"),
]


@pytest.mark.parametrize(("statement", "said"), TAMPERED)
async def test_verify_holds_what_is_beside_the_log_to_it(desk: Desk, statement: str, said: str) -> None:
    async with desk.runtime() as runtime:
        await runtime.resolve(desk.rows[0].id, "approve", by="ana")
        await runtime.wait(desk.threads[0])
        for thread in desk.threads:
            assert (await runtime.verify(thread)).ok
    desk.execute(statement)
    store = SQLiteStore(str(desk.path))
    await store.open()
    async with Runtime(database=store) as runtime:
        reports = [await runtime.verify(thread) for thread in desk.threads]
    (bad,) = [report for report in reports if not report.ok]
    assert said in bad.reason


ROWS = [
    ("metadata = '{}x'", "what its row has as metadata cannot be read"),
    ("status = x'ff'", "status"),
    ("status = 'zzz'", "status"),
    ("agent = CAST(x'ff' AS TEXT)", "has '\ufffd' as agent"),
    ("head_hash = 'abc'", "the thread's row names another last event"),
    ("head_seq = 'x'", "head_seq"),
    ("updated_at = 'x'", "updated_at"),
    ("ready_at = 'x'", "ready_at"),
    ("lease_owner = x'ff'", "lease_owner"),
]


@pytest.mark.parametrize(("change", "said"), ROWS)
async def test_a_column_that_cannot_be_read_is_named_and_its_thread_still_listed(
    desk: Desk, change: str, said: str
) -> None:
    desk.execute(f"UPDATE threads SET {change} WHERE num = 2")
    async with Runtime(database=f"sqlite:///{desk.path}") as runtime:
        rows = await runtime.threads()
        assert [row.id for row in rows] == desk.threads[::-1]
        assert [row.id for row in await runtime.interrupts()] == [row.id for row in desk.rows]
        reports = [await runtime.verify(thread) for thread in desk.threads]
        assert [report.ok for report in reports] == [True, False, True, True]
        assert said in reports[1].reason


BAD_ROWS = [
    "head_seq = 'x'",
    "head_seq = -1",
    "epoch = 'x'",
    "deaths = 'x'",
    "status = x'ff', metadata = 'x'",
]


@pytest.mark.parametrize("harm", [*BAD_ROWS, "id = CAST(x'ff' AS TEXT)"])
async def test_a_worker_goes_on_with_the_others_whatever_one_row_holds(
    desk: Desk, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk.execute(
        f"UPDATE threads SET ready_at = 1, status = 'running', {harm} WHERE num = 1",
        "INSERT INTO workers (owner, agents, pid, started_at) VALUES ('w', 'x', 1, 1)",
    )
    async with desk.runtime() as runtime:
        await runtime.resolve(desk.rows[3].id, "approve", by="ana")
        assert (await runtime.wait(desk.threads[3], timeout=20)).status == "completed"
        assert {worker.owner for worker in await runtime.workers()} == {runtime.owner}
        if "head_seq" in harm:
            # Said in a line; it waits for its next turn, and no lease holds it.
            row = await runtime.thread(desk.threads[0])
            assert (row.lease_owner, row.status, row.ready_at_ms == 1) == (None, "running", False)
            line = next(record for record in caplog.records if record.name == "tenuto.worker")
            assert "cannot go on, here or elsewhere: its row does not say where" in line.getMessage()
            assert line.exc_info is None


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "DELETE FROM threads WHERE num = 2",
            "thread number 2, whose row is gone, has 4 events out of their",
        ),
        ("DELETE FROM threads WHERE num = 2", "is of thread number 2, whose row is gone"),
        ("UPDATE threads SET created_at = 'x' WHERE num = 2", "is in no list, for its created_at is 'x'"),
        (
            "UPDATE events SET seq = -4 WHERE thread = 2 AND seq = 4",
            "has 1 events out of their place, the first",
        ),
    ],
)
async def test_what_no_list_shows_is_found(desk: Desk, statement: str, said: str) -> None:
    desk.execute(statement)
    async with Runtime(database=f"sqlite:///{desk.path}") as runtime:
        assert any(said in stray for stray in await runtime.store.strays())


async def test_the_history_in_sql_shows_the_rest(desk: Desk) -> None:
    desk.execute("UPDATE events SET body = 'x' WHERE thread = 2 AND seq = 4")
    with closing(sqlite3.connect(desk.path)) as connection:
        told = connection.execute("SELECT task_id, event FROM task_events ORDER BY at").fetchall()
    assert sum(event == "awaiting_approval" for _, event in told) == len(ORDERS) - 1
    assert {task for task, _ in told} == set(desk.threads)
