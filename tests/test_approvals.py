"""What a call of a reply becomes, and what a person can say about it."""

import hashlib
from typing import Any, get_args

import pytest

from tenuto.approvals import OPTIONS, outcome_of
from tenuto.errors import InvalidInput
from tenuto.events import Call, CallId, InterruptKind, Outcome
from tenuto.limits import MAX_ERROR_CHARACTERS
from tenuto.messages import CallRequest
from tenuto.tools import DidNotHappen, Tool, ask_person, tool
from tenuto.tools.tool import call_digest, plan, replan

ID = CallId("s0001c000")


@tool(effect="read")
async def get_order(order_id: str, deep: bool = False) -> None: ...


@tool(
    effect="once",
    approval=lambda amount: f"refund {amount}?" if amount > 100 else False,
    timeout=2.5,
    expires_after=60,
    verify=lambda arguments, key: DidNotHappen(),
)
async def refund_order(order_id: str, amount: int = 500) -> None: ...


TOOLS: dict[str, Tool] = {each.name: each for each in (get_order, refund_order, ask_person)}


def planned(name: str, arguments: str | None, **options: Any) -> Call:
    return plan(TOOLS, CallRequest(name, arguments, "call_1", {"sig": "x"}), ID, **{"cut": False, **options})


def test_a_call_that_runs_by_itself() -> None:
    assert planned("get_order", '{"order_id": "17"}') == Call(
        ID,
        "get_order",
        raw='{"order_id": "17"}',
        provider_id="call_1",
        arguments='{"deep":false,"order_id":"17"}',
        effect="read",
        timeout_ms=60_000,
        expires_ms=86_400_000,
        extra={"sig": "x"},
    )
    exact = planned("get_order", '{"deep":false,"order_id":"17"}')
    assert (exact.arguments, exact.exact) == (None, '{"deep":false,"order_id":"17"}')


@pytest.mark.parametrize(
    ("raw", "stored"), [(None, None), ("", None), ("null", "{}"), ("  ", "{}"), ("{}", None)]
)
def test_absent_arguments(raw: str | None, stored: str | None) -> None:
    @tool(effect="read")
    def look() -> None: ...

    call = plan({"look": look}, CallRequest("look", raw), ID, cut=False)
    assert (call.raw, call.arguments, call.exact, call.error) == (raw, stored, "{}", "")


def test_a_call_that_needs_a_person() -> None:
    call = planned("refund_order", '{"order_id": 17, "order_id": 18}')
    assert (call.gated, call.effect) == (False, "read")
    assert "the key 'order_id' is there twice" in call.error
    call = planned("refund_order", '{"order_id": "17"}')
    assert (call.gated, call.prompt, call.question, call.verifiable) == (True, "refund 500?", "", True)
    assert (call.timeout_ms, call.expires_ms) == (2_500, 60_000)
    assert call.digest == call_digest("refund_order", '{"amount":500,"order_id":"17"}', refund_order.digest)
    small = planned("refund_order", '{"order_id": "17", "amount": "7"}')
    assert (small.gated, small.prompt, small.digest, small.effect) == (False, "", "", "once")


def test_a_call_that_is_a_question() -> None:
    call = planned("ask_person", '{"question": "Which?"}')
    assert (call.gated, call.question, call.prompt, call.effect) == (True, "Which?", "", "read")
    assert call.digest == call_digest("ask_person", '{"question":"Which?"}', ask_person.digest)


def test_calls_that_cannot_run() -> None:
    unknown = planned("get_ordr", "{}")
    assert unknown.error == (
        "there is no tool 'get_ordr'. Did you mean get_order or refund_order? "
        "The tools are: get_order, refund_order, ask_person."
    )
    assert plan({}, CallRequest("x\ud800", "\ud800"), ID, cut=False) == Call(
        ID, "x\ufffd", raw="\ufffd", error="there is no tool 'x\ufffd'. The tools are: none."
    )
    assert planned("get_order", '{"order_id": 1}').error.startswith(
        "Invalid arguments for get_order; it was not run"
    )
    assert planned("get_order", '{"order_id": "\ud800"}').raw == '{"order_id": "\ufffd"}'
    cut = planned("get_order", '{"order_id": "17"}', cut=True)
    assert "cut off at its length limit" in cut.error
    assert (cut.arguments, cut.raw) == (None, '{"order_id": "17"}')
    for call in (planned("n" * 100_000, "{}"), planned("get_order", "x" * 100_000)):
        assert 0 < len(call.error) <= MAX_ERROR_CHARACTERS


def test_a_changed_agent_plans_open_calls_again() -> None:
    call = planned("refund_order", '{"order_id": "17"}')
    assert replan(TOOLS, call) == call
    newer = tool(effect="once", approval=True, version="2", name="refund_order")(refund_order.function)
    again = replan({"refund_order": newer}, call)
    assert (again.id, again.raw, again.extra, again.prompt) == (ID, call.raw, call.extra, "")
    assert again.digest == call_digest("refund_order", call.exact, newer.digest) != call.digest
    assert replan({}, call).error.startswith("there is no tool 'refund_order'")
    cut = planned("refund_order", '{"order_id": "17"}', cut=True)
    assert replan(TOOLS, cut) is cut


def test_the_digest_of_a_call() -> None:
    # SHA-256 of the compact JSON array, first half: computed here without the code under test.
    expected = hashlib.sha256(b'["refund","{\\"a\\":1}","0f"]').hexdigest()[:32]
    assert call_digest("refund", '{"a":1}', "0f") == expected
    assert call_digest("refund", '{"a":1}0', "f") != expected


def test_what_a_person_can_say() -> None:
    assert OPTIONS == {
        "approval": ("approve", "reject", "edit"),
        "question": ("answer",),
        "review": ("happened", "did_not_happen", "drop"),
    }
    assert set(OPTIONS) == set(get_args(InterruptKind))
    decided = {outcome_of(kind, verb) for kind, verbs in OPTIONS.items() for verb in verbs}
    assert decided == set(get_args(Outcome)) - {"expired", "withdrawn"}
    assert outcome_of("approval", "edit") == "edited"


@pytest.mark.parametrize(
    ("kind", "verb"), [("approval", "approved"), ("question", "approve"), ("review", ""), ("approval", [])]
)
def test_other_words_decide_nothing(kind: InterruptKind, verb: Any) -> None:
    with pytest.raises(InvalidInput, match=f"kind {kind}; use: {OPTIONS[kind][0]}"):
        outcome_of(kind, verb)
