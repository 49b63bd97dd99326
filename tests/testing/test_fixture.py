"""The `crash` fixture, as a user's own test uses it."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tenuto import Agent, ConfigurationError, DidNotHappen, Happened, ask_person, tool
from tenuto.loop import act, run
from tenuto.testing import call, crash
from tenuto.testing.fixture import Crash

__all__ = ["crash"]

ROOT = Path(__file__).resolve().parents[2]
done: list[str] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


@tool(effect="once", approval=True)
def refund_order(order_id: str, reason: str) -> str:
    """Refund."""
    done.append(order_id)
    return f"refunded {order_id}"


@tool(effect="idempotent")
async def note(text: str) -> str:
    """Note."""
    done.append(text)
    return "noted"


@tool(
    effect="once",
    verify=lambda arguments, key: Happened("sent") if arguments["text"] in done else DidNotHappen(),
)
async def send(text: str) -> str:
    """Send."""
    done.append(text)
    return "sent"


ops = Agent("ops", tools=[refund_order])
desk = Agent("desk", tools=[note, send, ask_person])
REFUND = [call("refund_order", order_id="17", reason="damaged"), "done"]


async def test_a_refund_that_was_started_and_did_not_happen(crash: Crash) -> None:
    run = await crash(ops, REFUND, kill="after call_started", decide="approve")
    assert run.bodies == {"refund_order": 0}
    assert run.state.status == "awaiting_review"
    await run.decide("did_not_happen")
    assert run.bodies == {"refund_order": 1}
    assert (run.state.status, run.state.answer, done) == ("completed", "done", ["17"])


async def test_a_refund_that_happened_is_not_made_again(crash: Crash) -> None:
    run = await crash(ops, REFUND, kill="after effect refund_order")
    assert (run.bodies, run.state.status) == ({"refund_order": 1}, "awaiting_review")
    await run.decide("happened", answer="refunded 17")
    assert (run.bodies, run.state.status, done) == ({"refund_order": 1}, "completed", ["17"])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "event",
    [
        "thread_started",
        "model_replied",
        "interrupt_raised",
        "interrupt_resolved refund_order",
        "model_replied #2",
        "thread_completed",
    ],
)
async def test_everywhere_else_it_goes_on_by_itself(crash: Crash, when: str, event: str) -> None:
    run = await crash(ops, REFUND, kill=f"{when} {event}")
    assert (run.bodies, run.state.status, done) == ({"refund_order": 1}, "completed", ["17"])


async def test_it_can_die_in_each_life(crash: Crash) -> None:
    run = await crash(ops, REFUND, kill="after call_started")
    await run.decide("did_not_happen", kill="after effect")
    assert (run.bodies, run.state.status) == ({"refund_order": 1}, "awaiting_review")
    # Whoever says so wrongly has it made twice: the person is believed.
    await run.decide("did_not_happen")
    assert (run.bodies, run.state.status, done) == ({"refund_order": 2}, "completed", ["17", "17"])


@pytest.mark.parametrize(
    ("kill", "bodies"),
    [
        ("", {"note": 1, "send": 1}),
        ("after call_started send", {"note": 1, "send": 1}),
        ("after effect send", {"note": 1, "send": 1}),
        ("after effect note", {"note": 2, "send": 1}),
    ],
)
async def test_verify_is_asked_and_the_idempotent_runs_again(
    crash: Crash, kill: str, bodies: dict[str, int]
) -> None:
    run = await crash(desk, [call("note", text="a"), call("send", text="b"), "done"], kill)
    assert run.state.status == "completed"
    assert run.bodies == bodies | {"ask_person": 0}


async def test_people_are_asked_what_the_test_leaves_open(crash: Crash) -> None:
    replies = [call("ask_person", question="Which?"), "done"]
    run = await crash(desk, replies, kill="after interrupt_raised", message="Ask.")
    assert (run.state.status, run.state.interrupts[0].prompt) == ("awaiting_answer", "Which?")
    await run.decide("answer", answer="The lamp.")
    assert run.state.status == "completed"


async def test_nothing_is_decided_where_the_test_says_so(crash: Crash) -> None:
    run = await crash(ops, REFUND, decide=None)
    assert run.state.status == "awaiting_approval"
    await run.decide("edit", arguments={"order_id": "16", "reason": "damaged"})
    assert (run.state.status, done) == ("completed", ["16"])


async def test_decisions_by_tool(crash: Crash) -> None:
    run = await crash(ops, REFUND, decide={"refund_order": {"verb": "reject", "comment": "no"}})
    assert (run.bodies, run.state.status) == ({"refund_order": 0}, "completed")


async def test_a_fake_stands_in_and_its_verify_is_the_ledger(crash: Crash) -> None:
    replies = [call("send", text="b"), "done"]
    run = await crash(desk, replies, "after effect send", fakes={"send": lambda text: "not really"})
    assert (run.bodies["send"], run.state.status, done) == (1, "completed", [])


async def test_deciding_where_nothing_waits_fails_the_test(crash: Crash) -> None:
    run = await crash(ops, ["done"])
    with pytest.raises(AssertionError, match="nothing waits for a person: the thread is completed"):
        await run.decide("approve")


async def test_a_reply_that_calls_no_tool_of_the_agent_fails_the_test(crash: Crash) -> None:
    with pytest.raises(ConfigurationError, match="reply 1 of the script calls 'refnd', a tool that agent"):
        await crash(ops, [call("refnd", order_id="17"), "done"])


async def test_a_point_that_never_comes_fails_the_test(crash: Crash) -> None:
    with pytest.raises(
        AssertionError, match="never came to 'after effect note'; its events were: thread_sta"
    ):
        await crash(ops, REFUND, kill="after effect note")


async def test_a_runtime_that_records_too_late_is_found(
    crash: Crash, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def intent_after_effect(holder: Any, step: Any) -> None:
        for each in step.run:
            holder.start(each.id, act._run(holder, each))
        await asyncio.sleep(0.05)
        await holder.append(*(act._intent(holder, each) for each in step.run))

    monkeypatch.setattr(run, "act", intent_after_effect)
    refund = await crash(ops, REFUND, kill="after effect")
    assert (refund.bodies, done) == ({"refund_order": 2}, ["17", "17"])


async def test_what_was_killed_says_nothing(crash: Crash, caplog: pytest.LogCaptureFixture) -> None:
    await crash(ops, REFUND, kill="after call_started")
    assert caplog.records == []


USERS = """
import pytest
pytest_plugins = ["tenuto.testing.fixture"]
"""


def test_it_is_a_plugin_too(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(USERS)
    (tmp_path / "test_it.py").write_text("def test_it(crash):\n    assert callable(crash)\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "1 passed" in output


def test_pytest_is_not_needed_for_the_rest() -> None:
    code = "import sys, tenuto.testing, tenuto.testing.crashtest; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
