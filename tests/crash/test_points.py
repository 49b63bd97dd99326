"""kill -9 at named points. Once each: what ran, who was asked, what the model was told.

One stand for all of them: its database has seen every crash when it is audited in the end.
"""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from tests.crash.conftest import Databases
from tests.crash.databases import log_of
from tests.crash.stand import Stand, standing, until
from tests.crash.workload import thread_id

from tenuto.limits import LEASE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
DROPPED = "Error: this call was started and its outcome is unknown; a person dropped it."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stand(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> AsyncIterator[Stand]:
    place = tmp_path_factory.mktemp("points")
    with databases(place) as database:
        async with standing(place, log_of(database), Stand) as stand:
            await stand.serve()
            yield stand
            stand.kill()
            figures = await stand.audit()
    assert (figures.doubles, figures.losses, figures.wrong) == (0, 0, [])


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count(1)


async def asked(stand: Stand, number: int) -> list[dict[str, Any]]:
    """What the provider was sent for this thread."""
    sent = [request["messages"] for request in await stand.provider_saw()]
    return [messages for messages in sent if messages[0]["content"].endswith(f"\n{number}")]


async def lines(stand: Stand, number: int) -> list[str]:
    """The keys of this thread's lines in the ledger."""
    return [line["key"] for line in stand.ledger() if line["key"].startswith(thread_id("desk", number))]


@pytest.mark.parametrize(
    ("kill", "tool", "ran", "questions"),
    [
        ("before thread_started", "pay", 1, 2),
        ("after thread_started", "pay", 1, 2),
        ("before model_replied", "pay", 1, 3),
        ("after model_replied", "pay", 1, 2),
        ("after interrupt_raised", "pay", 1, 2),
        ("before interrupt_resolved", "pay", 1, 2),
        pytest.param("after interrupt_resolved", "pay", 1, 2, marks=pytest.mark.sample),
        ("before call_started", "pay", 1, 2),
        pytest.param("after call_started", "pay_verified", 1, 2, marks=pytest.mark.sample),
        ("before call_finished", "pay_verified", 1, 2),
        ("after call_started", "store", 1, 2),
        ("before call_finished", "store", 2, 2),
        ("before call_finished", "look", 2, 2),
        ("after call_finished", "pay", 1, 2),
        ("before thread_completed", "pay", 1, 3),
        ("after thread_completed", "pay", 1, 2),
    ],
)
async def test_it_goes_on_by_itself(
    stand: Stand, numbers: Iterator[int], kill: str, tool: str, ran: int, questions: int
) -> None:
    number, reviews, stand.at_work = next(numbers), stand.figures.reviews, True
    stand.order(kill)
    async with asyncio.TaskGroup() as group:
        group.create_task(stand.person())
        starting = group.create_task(stand.start("desk", "desk", number, tool, str(number)))
        await stand.died()
        await stand.serve()
        state = await stand.rested(await starting)
        stand.at_work = False
    assert (state["status"], state["answer"]) == ("completed", f"told: {tool} 17: done")
    keys = await lines(stand, number)
    assert len(keys) == ran
    assert len(set(keys)) == 1, "every attempt has the same key"
    assert len(await asked(stand, number)) == questions
    assert stand.figures.reviews == reviews, "no person was asked what became of it"


async def test_in_mid_stream_the_model_is_asked_again(stand: Stand, numbers: Iterator[int]) -> None:
    number = next(numbers)
    thread = await stand.start("desk", "desk", number, "stream", str(number))
    await until(lambda: asked(stand, number))
    stand.kill()
    await stand.serve()
    assert (await stand.rested(thread))["answer"] == "a word " * 20
    first, second = await asked(stand, number)
    assert first == second


@pytest.mark.parametrize(
    ("kill", "outcome", "ran", "told"),
    [
        ("after call_started", "did_not_happen", 1, "pay 17: done"),
        ("after call_started", "drop", 0, DROPPED),
        ("before call_finished", "happened", 1, "paid, says the bank"),
        pytest.param("held", "happened", 1, "paid, says the bank", marks=pytest.mark.sample),
        ("held", "drop", 1, DROPPED),
    ],
)
async def test_a_call_in_doubt_is_one_visible_question(
    stand: Stand, numbers: Iterator[int], kill: str, outcome: str, ran: int, told: str
) -> None:
    number = next(numbers)
    thread = await stand.start("desk", "desk", number, "pay", str(number))
    (approval,) = await until(stand.pending)
    if kill == "held":
        await stand.ask_host("POST", "/hold?tool=pay")
    else:
        stand.order(kill)
    async with asyncio.TaskGroup() as group:
        group.create_task(stand.resolve(approval, "approve"))
        if kill == "held":
            await until(lambda: lines(stand, number))
            stand.kill()
            await stand.ask_host("POST", "/release")
        else:
            await stand.died()
        crashed = time.monotonic()
        await stand.serve()
        state = await stand.rested(thread)
    if not stand.log.takeover_seconds:  # on SQLite
        assert time.monotonic() - crashed < LEASE_SECONDS / 2, "seen at once, not when the lease ends"
    ran_before = await lines(stand, number)

    # One item, the same in the inbox, in the thread and in the log; a second approval finds it decided.
    (review,) = await stand.pending()
    assert (review["kind"], review["name"], review["arguments"]) == ("review", "pay", {"order_id": "17"})
    assert re.search(
        r"\w+\(\{.*\}\) was started \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by worker \S+ and its outcome",
        review["prompt"],
    )
    assert "its outcome is unknown" in review["prompt"]
    assert [each["id"] for each in state["interrupts"]] == [review["id"]]
    events = (await stand.ask("GET", f"/v1/threads/{thread}/events")).json()["events"]
    raised = [event["kind"] for event in events if event["type"] == "interrupt_raised"]
    assert raised == ["approval", "review"]
    again = await stand.ask("POST", f"/v1/interrupts/{approval['id']}/resolve", {"outcome": "approve"})
    assert (again.status_code, again.json()["outcome"]) == (409, "approved")

    # A restart adds nothing, and nothing runs before somebody decides.
    stand.kill()
    await stand.serve()
    assert await stand.pending() == [review]
    assert await lines(stand, number) == ran_before
    await stand.resolve(review, outcome, **({"answer": told} if outcome == "happened" else {}))
    assert (await stand.rested(thread))["answer"] == f"told: {told}"
    assert len(await lines(stand, number)) == ran
    last = (await asked(stand, number))[-1]
    assert [message["content"] for message in last if message["role"] == "tool"] == [told]
