"""Calls that may have happened are found at once, wherever a person looks, until a worker looks at them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.conftest import APPROVER, Place, place, serving

from tenuto import Agent, Client, Runtime, limits, tool
from tenuto.doubt import InDoubt
from tenuto.events import (
    Call,
    CallFinished,
    CallId,
    CallStarted,
    MessageReceived,
    ModelReplied,
    ThreadId,
    ThreadStarted,
)
from tenuto.models.scripted import ScriptedModel
from tenuto.store import Store
from tenuto.store.sqlite import SQLiteStore

__all__ = ["place", "serving"]  # fixtures

THREAD = ThreadId("11111111-1111-4111-8111-111111111111")
OTHER = ThreadId("22222222-2222-4222-8222-222222222222")
PAY = Call(CallId("s0001c000"), "pay", raw='{"order":17}', effect="once")
MAIL = Call(CallId("s0001c001"), "mail", raw='{"to":"ana"}', effect="idempotent")


async def cut_off(store: Store, thread: ThreadId, *, lease_seconds: float = 0.0, agent: str = "away") -> None:
    """A thread whose holder began to pay, and had mailed, when it died."""
    await store.create(thread, [ThreadStarted(agent, "f"), MessageReceived("go")], append_id="0")
    claim = await store.take("w9", thread, lease_seconds=lease_seconds)
    assert claim is not None
    events = [
        ModelReplied(1, 2, calls=(PAY, MAIL)),
        CallStarted(PAY.id, attempt=1, worker="w9"),
        CallStarted(MAIL.id, attempt=1, worker="w9"),
        CallFinished(MAIL.id, text="mailed"),
    ]
    await store.append(thread, events, append_id="1", epoch=claim.epoch)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = SQLiteStore(str(tmp_path / "tenuto.db"))
    await store.open()
    yield store
    await store.close()


def about_pay(found: list[InDoubt], thread: str) -> None:
    (doubt,) = found
    assert (doubt.thread_id, doubt.agent, doubt.call_id) == (thread, "away", PAY.id)
    assert (doubt.name, doubt.arguments, doubt.worker) == ("pay", '{"order":17}', "w9")
    assert doubt.started_at_ms > 0
    assert doubt.text.startswith('pay({"order":17}) was started ')
    assert doubt.text.endswith(" by worker w9 and has no result: it may have happened")


async def test_a_call_whose_worker_died_is_found(store: Store) -> None:
    await cut_off(store, THREAD)
    await store.create(OTHER, [ThreadStarted("away", "f"), MessageReceived("go")], append_id="0")
    runtime = Runtime(database=store)
    about_pay(await runtime.in_doubt(), THREAD)
    about_pay(await runtime.in_doubt(THREAD), THREAD)
    assert await runtime.in_doubt(OTHER) == []


async def test_a_call_of_a_live_holder_is_not_in_doubt(store: Store) -> None:
    await cut_off(store, THREAD, lease_seconds=60)
    assert await Runtime(database=store).in_doubt() == []


async def test_what_is_settled_is_not_in_doubt(store: Store) -> None:
    await cut_off(store, THREAD)
    claim = await store.take("w1", THREAD, lease_seconds=0)
    assert claim is not None
    settled = [CallFinished(PAY.id, text="paid")]
    await store.append(THREAD, settled, append_id="2", epoch=claim.epoch)
    assert await Runtime(database=store).in_doubt() == []
    # Nor is one of a reply before the last.
    claim = await store.take("w1", THREAD, lease_seconds=0)
    assert claim is not None
    await store.append(THREAD, [ModelReplied(2, 6)], append_id="3", epoch=claim.epoch)
    assert await store.doubtful() == []


async def test_a_thread_that_cannot_be_read_hides_no_other(store: Store) -> None:
    for thread in (OTHER, THREAD):
        await cut_off(store, thread)
    store._writing.execute("UPDATE events SET body = '{}' WHERE thread = 1 AND seq = 2")  # type: ignore[attr-defined]  # to damage it
    about_pay(await Runtime(database=store).in_doubt(), THREAD)


async def test_a_look_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        await cut_off(store, ThreadId(f"{number}1111111-1111-4111-8111-111111111111"))
    monkeypatch.setattr(limits, "MAX_DOUBTFUL_THREADS", 3)
    assert len(await Runtime(database=store).in_doubt()) == 3


async def test_a_server_tells_of_it_and_its_client_too(place: Place) -> None:
    await cut_off(place.runtime.store, THREAD)
    page = (await place.client.get("/v1/interrupts", headers=APPROVER)).json()
    (doubt,) = page["in_doubt"]
    assert (doubt["thread_id"], doubt["call_id"], doubt["arguments"]) == (THREAD, PAY.id, {"order": 17})
    assert "may have happened" in doubt["text"]
    assert doubt["started_at"].endswith("Z")
    alone = (await place.client.get(f"/v1/threads/{THREAD}", headers=APPROVER)).json()
    assert alone["in_doubt"] == [doubt]
    async with Client(place.url, token="s3cret-of-ana") as client:
        assert await client.in_doubt() == await place.runtime.in_doubt()
        about_pay(await client.in_doubt(THREAD), THREAD)
    for query in ("agent=ops", f"thread_id={OTHER}"):
        page = (await place.client.get(f"/v1/interrupts?{query}", headers=APPROVER)).json()
        assert page["in_doubt"] == []


async def test_a_worker_of_its_agent_makes_it_an_item(tmp_path: Path) -> None:
    store = SQLiteStore(str(tmp_path / "tenuto.db"))
    await store.open()
    await cut_off(store, THREAD)
    await store.close()

    @tool(effect="once")
    async def pay(order: int) -> str:
        return "paid"

    away = Agent("away", tools=[pay], model=ScriptedModel(["done"]))
    async with Runtime([away], f"sqlite:///{tmp_path}/tenuto.db") as runtime:
        state = await runtime.wait(THREAD, 20)
        assert state.status == "awaiting_review"
        assert await runtime.in_doubt() == []
        (row,) = await runtime.interrupts()
        assert "its outcome is unknown: no result of it was recorded" in row.prompt
