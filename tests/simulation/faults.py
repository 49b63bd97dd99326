"""Deliberate faults of the runtime, each at a named seam: the simulation has to catch every one of them."""

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenuto import approvals, steps, thread
from tenuto.events import TERMINAL, AgentChanged, CallStarted
from tenuto.loop import act, holder, run
from tenuto.loop.holder import Holder
from tenuto.runtime import Runtime
from tenuto.store.sqlite_write import Transaction
from tenuto.tools.tool import call_digest

Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: list[Any] = []


def within(seeds: int, promise: str) -> Callable[[Fault], Fault]:
    """A fault, how many seeds may pass before it is seen, and by which promise: no other one counts."""

    def add(fault: Fault) -> Fault:
        FAULTS.append(pytest.param(fault, seeds, promise, id=fault.__name__))
        return fault

    return add


def _around(patch: pytest.MonkeyPatch, place: Any, name: str, wrong: Callable[..., Any]) -> None:
    """`wrong` is called in place of the attribute, with the right one as its first argument."""
    right = getattr(place, name)
    patch.setattr(place, name, lambda *arguments, **options: wrong(right, *arguments, **options))


# -- the store ---------------------------------------------------------------------------------------


@within(300, "2 one decision")
def a_decision_is_not_compare_and_set(patch: pytest.MonkeyPatch) -> None:
    _around(
        patch,
        Transaction,
        "_interrupt",
        lambda right, self, of: msgspec.structs.replace(right(self, of), outcome=None),
    )
    _around(patch, Runtime, "resolve", _blind)


async def _blind(right: Any, self: Runtime, interrupt_id: str, verb: str, **decision: Any) -> Any:
    """The caller has not seen that it is decided: what a race looks like from here."""
    row = await self.store.interrupt(interrupt_id)  # type: ignore[arg-type]  # an InterruptId
    store, self.store = self.store, _Unseeing(self.store, msgspec.structs.replace(row, outcome=None))  # type: ignore[assignment]  # stands in
    try:
        return await right(self, interrupt_id, verb, **decision)
    finally:
        self.store = store


class _Unseeing:
    def __init__(self, store: Any, row: Any) -> None:
        self._store, self._row = store, row

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def interrupt(self, interrupt_id: str) -> Any:
        return self._row


@within(300, "fencing")
def the_epoch_is_not_checked(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: Any, **given: Any) -> Any:
        if given["epoch"] is not None and (head := self._head(given["thread_id"], given["key"])) is not None:
            given["epoch"] = head.epoch
        return right(self, **given)

    _around(patch, Transaction, "append", wrong)


@within(300, "projection")
def a_release_does_not_look_for_news(patch: pytest.MonkeyPatch) -> None:
    _around(
        patch,
        Transaction,
        "release",
        lambda right, self, **given: right(self, **{**given, "head_seq": 1 << 60}),
    )


@within(300, "2 one decision")
def a_retry_is_written_again(patch: pytest.MonkeyPatch) -> None:
    """As if each attempt at an append had an id of its own."""

    def wrong(right: Any, self: Any, of: Any, head: Any, rows: Any, key: bytes, *, external: bool) -> Any:
        return right(self, of, head, rows, os.urandom(16), external=external)

    _around(patch, Transaction, "_grow", wrong)


@within(300, "2 one decision")
def a_late_decision_counts(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, self: Any, **given: Any) -> Any:
        now_ms, self.now_ms = self.now_ms, 0
        try:
            return right(self, **given)
        finally:
            self.now_ms = now_ms

    _around(patch, Transaction, "resolve", wrong)


@within(300, "3 approval")
def the_digest_that_a_person_saw_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    _around(
        patch,
        Transaction,
        "resolve",
        lambda right, self, **given: right(self, **{**given, "digest": None}),
    )


# -- the runtime -------------------------------------------------------------------------------------


@within(300, "3 approval")
def a_decision_is_written_before_it_is_validated(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, row: Any, arguments: Any, tools: Any) -> tuple[str, str]:
        exact = msgspec.json.encode(arguments).decode()
        return exact, call_digest(row.name, exact, tools[row.name].digest)

    _around(patch, approvals, "_edited", wrong)


# -- the loop ----------------------------------------------------------------------------------------


@within(300, "2 once")
def the_intent_is_recorded_after_the_effect(patch: pytest.MonkeyPatch) -> None:
    async def wrong(right: Any, self: Holder, step: Any) -> None:
        for call in step.run:
            self.start(call.id, act._run(self, call))
        if starts := [act._intent(self, call) for call in step.run if call.call.effect != "read"]:
            await self.append(*starts)
        for call in step.verify:
            self.start(call.id, act._verify(self, call))

    _around(patch, act, "act", wrong)
    patch.setattr(run, "act", act.act)


@within(600, "no message lost")
def an_end_is_written_over_an_unseen_message(patch: pytest.MonkeyPatch) -> None:
    async def wrong(right: Any, self: Holder, *events: Any, conditional: bool = False) -> bool:
        ends = isinstance(events[-1], TERMINAL)
        done: bool = await right(self, *events, conditional=conditional and not ends)
        return done

    _around(patch, Holder, "append", wrong)


@within(300, "idempotency")
def each_attempt_has_a_key_of_its_own(patch: pytest.MonkeyPatch) -> None:
    _around(patch, act, "idempotency_key", lambda right, of, call: f"{right(of, call)}:{call.attempt % 2}")


@within(300, "3 approval")
def a_changed_agent_inherits_approvals(patch: pytest.MonkeyPatch) -> None:
    """Neither asked again when the agent changes nor compared when the call is dispatched."""

    async def wrong(right: Any, self: Holder) -> None:
        if self.state.agent and self.state.fingerprint != self.agent.fingerprint:
            await self.append(AgentChanged(self.agent.fingerprint, self.agent.limits, self.agent.policy))

    _around(patch, run, "_adopt", wrong)
    patch.setattr(act, "_tool", lambda self, call: self.agent.by_name[call.call.name])


@within(300, "fencing")
def the_lease_is_not_checked_before_a_dispatch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holder, "check_lease", lambda self: None)


@within(600, "fencing")
def a_lost_lease_counts_as_renewed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holder, "lose", lambda self: self.renewed(self.around.clock.monotonic(), 0))


@within(600, "log")
def a_call_that_ended_is_taken_for_one_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """What ends while another result is being recorded waits for the next time."""

    async def wrong(right: Any, self: Holder) -> None:
        if self._finished:
            await self.append(*self.take_finished())
        if self._head_heard > self.state.head_seq:
            for entry in await self.store.read(self.thread_id, self.state.head_seq):
                holder.apply(self.state, entry)

    _around(patch, Holder, "absorb", wrong)


# -- the rules ---------------------------------------------------------------------------------------


@within(300, "2 once")
def verify_and_rerun_do_not_wait_for_the_deadline(patch: pytest.MonkeyPatch) -> None:
    def wrong(state: Any, entry: Any, event: Any) -> None:
        right(state, entry, msgspec.structs.replace(event, deadline_ms=0))

    right = thread._APPLY[CallStarted]
    patch.setitem(thread._APPLY, CallStarted, wrong)


@within(300, "deadline")
def a_once_call_in_doubt_runs_again(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, state: Any, calls: Any, now_ms: int, local: Any) -> Any:
        step = right(state, calls, now_ms, local)
        if isinstance(step, steps.AskPerson):
            reviewed = {event.call_id for event in step.events if event.kind == "review"}
            if reviewed:
                return steps.RunCalls(tuple(call for call in calls if call.id in reviewed))
        return step

    _around(patch, steps, "_open", wrong)


@within(300, "2 one result")
def a_result_is_recorded_twice(patch: pytest.MonkeyPatch) -> None:
    _around(patch, steps, "_settled", lambda right, *facts: [*right(*facts), *right(*facts)])


@within(300, "4 history")
def the_model_is_asked_before_all_calls_are_settled(patch: pytest.MonkeyPatch) -> None:
    def wrong(right: Any, state: Any, calls: Any, now_ms: int, local: Any) -> Any:
        step = right(state, calls, now_ms, local)
        if isinstance(step, steps.Wait) and not local.running and len(calls) < len(state.calls):
            return steps.CallModel()
        return step

    _around(patch, steps, "_open", wrong)


@within(300, "nothing is stuck")
def a_dead_worker_leaves_its_threads_for_good(patch: pytest.MonkeyPatch) -> None:
    """A claim takes the thread out of the queue, as a queue that deletes what it hands out would."""

    def wrong(right: Any, self: Any, owner: str, row: Any, lease_ms: int) -> Any:
        return right(self, owner, row, lease_ms * 10_000)

    _around(patch, Transaction, "_lease", wrong)
