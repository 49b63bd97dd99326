"""Fold and `next_step` under everything that can happen, in any order; and proof that faults are seen.

More examples: TENUTO_EXAMPLES=2000.
"""

import os
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.loop.faults import FAULTS, Fault
from tests.loop.pure import PureLoop

from tenuto import Agent, ask_person, thread, tool, wait_until
from tenuto.approvals import OPTIONS
from tenuto.events import (
    CancelRequested,
    Limits,
    LimitsExtended,
    MessageReceived,
)
from tenuto.messages import CallRequest, Reply, Usage

EXAMPLES = int(os.environ.get("TENUTO_EXAMPLES", "120"))
FAULT_EXAMPLES = 400
STEPS = 40


def _make(name: str, effect: Any, **options: Any) -> Any:
    def function(n: int) -> str:
        raise AssertionError("the machine plays the tools itself")

    return tool(effect=effect, name=name, timeout=20, expires_after=100, **options)(function)


def _never(arguments: Any, key: str) -> None:
    raise AssertionError("the machine plays verify itself")


OLD = [
    _make("look", "read"),
    _make("look_twice", "read", approval=True),
    _make("put", "idempotent"),
    _make("put_asked", "idempotent", approval=True),
    _make("pay", "once", approval=lambda n: n > 3),
    _make("pay_checked", "once", approval=True, verify=_never),
    _make("poke", "once"),
    _make("poke_checked", "once", verify=_never),
    wait_until,
    ask_person,
]
# The same agent after a deployment: new policies, a new version of what was approved, a tool less.
NEW = [
    *(one for one in OLD if one.name not in ("pay", "look", "put_asked", "poke_checked")),
    _make("pay", "once", approval=True, version="2"),
    _make("look", "read", approval=True),
    _make("poke_checked", "once", approval=True, verify=_never),
]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "wait_until": {"until": datetime(2030, 1, 1, tzinfo=UTC).isoformat()},
    "ask_person": {"question": "Which?"},
}


@st.composite
def _requests(draw: st.DrawFn) -> CallRequest:
    name = draw(st.sampled_from([*(one.name for one in OLD), "pay", "poke", "nonsense"]))
    if draw(st.integers(0, 9)) == 0:
        return CallRequest(name, draw(st.sampled_from([None, "", "{", '{"n": "x"}', "[1]"])))
    arguments = ARGUMENTS.get(name) or {"n": draw(st.integers(0, 9))}
    return CallRequest(name, msgspec.json.encode(arguments).decode())


RARELY = st.integers(0, 3).map(lambda number: number == 3)
REPLIES = st.builds(
    Reply,
    text=st.sampled_from(["", "well"]),
    calls=st.one_of(st.lists(_requests(), min_size=1, max_size=4), st.lists(_requests(), max_size=2)).map(
        tuple
    ),
    finish=st.sampled_from(["stop", "length"]),
    usage=st.builds(Usage, input=st.integers(0, 50), output=st.integers(0, 50)),
)


class ThreadMachine(RuleBasedStateMachine):
    """The world around one thread."""

    loop: PureLoop

    @initialize(
        steps_=st.sampled_from([0, 1, 2, 5]),
        tokens=st.sampled_from([0, 200]),
        withdraw=st.booleans(),
        errors=st.sampled_from([0, 2, 3]),
    )
    def begin(self, steps_: int, tokens: int, withdraw: bool, errors: int) -> None:
        options: dict[str, Any] = {
            "max_steps": steps_,
            "max_tokens": tokens,
            "max_consecutive_errors": errors,
            "on_message_while_waiting": "withdraw" if withdraw else "queue",
            "question_expires_after": 100,
        }
        self.agents = [Agent("ops", tools=OLD, **options), Agent("ops", tools=NEW, **options)]
        self.loop = PureLoop(self.agents[0])

    # -- the worker --------------------------------------------------------------------------------------

    @rule(times=st.integers(1, 4))
    def go_on(self, times: int) -> None:
        for _ in range(times):
            self.loop.step()

    @rule()
    def rest(self) -> None:
        self.loop.run_to_rest()

    @rule()
    def die(self) -> None:
        self.loop.crash()

    @rule(reply=REPLIES)
    def die_after_intent(self, reply: Reply) -> None:
        if self._asking():
            self.loop.replies(reply)
        self.loop.step(dies_after_intent=True)

    @rule(place=st.integers(0, 1), sure=RARELY)
    def deploy(self, place: int, sure: bool) -> None:
        if sure:
            self.loop.crash()
            self.loop.agent = self.agents[place]

    @rule(seconds=st.sampled_from([1, 19, 21, 60, 101]))
    def time_passes(self, seconds: int) -> None:
        self.loop.now_ms += seconds * 1000

    # -- the model and the tools ---------------------------------------------------------------------------

    def _asking(self) -> bool:
        return self.loop.asking is not None and self.loop.state.cancel is None

    @precondition(_asking)
    @rule(reply=REPLIES)
    def model_replies(self, reply: Reply) -> None:
        self.loop.replies(reply)

    @rule(reply=REPLIES, again=REPLIES)
    def model_is_asked_and_replies(self, reply: Reply, again: Reply) -> None:
        for one in (reply, again):
            self.loop.run_to_rest()
            if self.loop.state.ended is not None:
                self.message()
                self.loop.run_to_rest()
            if self._asking():
                self.loop.replies(one)
                self.loop.check()
        self.loop.run_to_rest()

    @precondition(_asking)
    @rule(sure=RARELY)
    def model_fails(self, sure: bool) -> None:
        if sure:
            self.loop.fails()

    @precondition(lambda self: bool(self.loop.running))
    @rule(data=st.data(), many=st.booleans())
    def calls_end(self, data: st.DataObject, many: bool) -> None:
        for call_id in sorted(self.loop.running)[: None if many else 1]:
            outcomes = ["ok", "ok", "error", "doubt", "doubt"]
            if self.loop.state.call(call_id).call.name == "wait_until":
                outcomes = ["until"]
            if self.loop.running[call_id]:
                outcomes = ["happened", "not", "unknown"]
            self.loop.ends(call_id, data.draw(st.sampled_from(outcomes)))
            self.loop.check()

    # -- people ----------------------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.loop.state.interrupts))
    @rule(data=st.data(), many=st.booleans(), rests=st.booleans())
    def people_decide(self, data: st.DataObject, many: bool, rests: bool) -> None:
        for raised in self.loop.state.interrupts[: None if many else 1]:
            verbs = list(OPTIONS[raised.kind]) + ["approve"] * 3 * (raised.kind == "approval")
            edited = f'{{"n": {data.draw(st.integers(10, 12))}}}'
            self.loop.decide(raised.id, data.draw(st.sampled_from(verbs)), edited)
        if rests:
            self.loop.run_to_rest()

    @rule()
    def message(self) -> None:
        self.loop.append(MessageReceived(f"message {len(self.loop.log)}"))

    @rule()
    def message_slips_in(self) -> None:
        self.loop.step(slips_in=MessageReceived(f"slipped {len(self.loop.log)}"))

    @rule(sure=RARELY)
    def cancel(self, sure: bool) -> None:
        if sure:
            self.loop.append(CancelRequested("ana", "enough"))

    @rule(steps_=st.integers(0, 2), tokens=st.sampled_from([0, 100]))
    def extend(self, steps_: int, tokens: int) -> None:
        if self.loop.state.ended not in ("completed", "cancelled"):
            self.loop.append(LimitsExtended(Limits(steps_, tokens)))

    # -- always --------------------------------------------------------------------------------------------

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "loop"):
            self.loop.check()

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_to_rest()
            self.loop.check()
            self.loop.append(CancelRequested("ana", "the end"))
            self.loop.run_to_rest()
            assert self.loop.state.ended is not None
            self.loop.check()


def _settings(examples: int, *, explore: bool = True) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=checks,
        database=None,
        phases=[Phase.generate, Phase.shrink] if "TENUTO_EXAMPLES" in os.environ else [Phase.generate],
        derandomize=not explore,
    )


def test_whatever_happens_the_promises_hold() -> None:
    run_machine(ThreadMachine, settings=_settings(EXAMPLES))


def test_a_call_in_doubt_whose_tool_was_removed_is_told_and_not_run() -> None:
    """Found by the machine: approved, started, its worker died, and the next agent lacks the tool."""
    machine = ThreadMachine()
    machine.begin(steps_=0, tokens=0, withdraw=False, errors=0)
    loop = machine.loop
    loop.run_to_rest()
    loop.replies(Reply(calls=(CallRequest("put_asked", '{"n": 1}'),)))
    loop.run_to_rest()
    loop.decide(loop.state.interrupts[0].id, "approve")
    loop.step(dies_after_intent=True)
    loop.agent = machine.agents[1]
    loop.now_ms += 101_000
    loop.run_to_rest()
    loop.check()
    assert loop.dispatches == []
    assert "no tool 'put_asked'" in loop.log[-1].event.text  # type: ignore[union-attr]  # a call_finished


@pytest.mark.timeout(240)  # shrinking what was found takes long where others work as well
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_machine_finds_the_fault(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises((AssertionError, thread.CorruptLog, KeyError, StopIteration)):
        run_machine(ThreadMachine, settings=_settings(FAULT_EXAMPLES, explore=False))
