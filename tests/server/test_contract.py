"""/api/agent to the letter: every status, every refusal, in their order."""

import asyncio
import uuid

import pytest
from tests.server.conftest import APPROVER, SUBMITTER

from tenuto import limits
from tenuto.server import Access

NOBODY = "0e6f3b0a-5d0c-4f6e-9a52-3c1d7b8e4f21"


async def awaiting(place, task):
    """Start a task that pauses; its id and its actions."""
    response = await place.task(task)
    assert response.status_code == 200
    body = response.json()
    assert body["status"] == "awaiting_approval"
    return body["task_id"], body["actions"]


# -- answers -----------------------------------------------------------------------------------------


async def test_a_task_that_completes(place):
    response = await place.task("hello")
    assert response.status_code == 200
    task_id = response.json()["task_id"]
    assert str(uuid.UUID(task_id)) == task_id
    # Compact, and the fields in the order of the contract.
    expected = f'{{"task_id":"{task_id}","status":"completed","answer":"Hello.","steps":1}}'
    assert response.text == expected
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-store"


async def test_a_refund_pauses_is_approved_and_runs_once(place):
    first = await place.task("refund")
    task_id = first.json()["task_id"]
    action_id = first.json()["action"]["action_id"]
    action = {
        "name": "refund_order",
        "args": {"order_id": "17", "reason": "damaged"},
        "action_id": action_id,
    }
    expected = {"task_id": task_id, "status": "awaiting_approval", "action": action, "actions": [action]}
    assert first.json() == expected
    assert list(first.json()) == ["task_id", "status", "action", "actions"]
    assert list(first.json()["action"]) == ["name", "args", "action_id"]
    assert place.shop.refunds == []

    second = await place.approve(task_id)
    assert second.status_code == 200
    assert second.json() == {"task_id": task_id, "status": "completed", "answer": "refunded 17", "steps": 2}
    assert place.shop.refunds == ["17"]

    third = await place.approve(task_id)
    assert (third.status_code, third.json()) == (404, {"error": "no pending action for this task"})
    assert place.shop.refunds == ["17"]
    (row,) = await place.runtime.interrupts(pending=None, thread_id=task_id)
    assert (row.outcome, row.by) == ("approved", "approver")


async def test_a_rejected_refund_does_not_run(place):
    task_id, _ = await awaiting(place, "refund")
    response = await place.approve(task_id, False)
    assert response.status_code == 200
    assert response.json()["status"] == "completed"
    assert "rejected" in response.json()["answer"]
    assert place.shop.refunds == []


async def test_the_step_limit(place):
    response = await place.task("for ever")
    assert response.status_code == 200
    task_id = response.json()["task_id"]
    assert response.text == f'{{"task_id":"{task_id}","status":"step_limit","steps":6}}'


async def test_a_provider_that_stays_down_is_502_without_its_words(place):
    response = await place.task("down")
    assert response.status_code == 502
    task_id = response.json()["task_id"]
    expected = f'{{"task_id":"{task_id}","status":"failed","error":"the task could not continue"}}'
    assert response.text == expected


async def test_another_limit_halts_and_says_which(serving):
    async with serving(agent="frugal") as place:
        body = (await place.task("costly")).json()
        assert body == {"task_id": body["task_id"], "status": "halted", "limit": "tokens", "steps": 1}


async def test_a_question_and_a_review_are_shown_but_not_approved_here(place):
    asked = (await place.task("ask")).json()
    assert asked["status"] == "awaiting_answer"
    assert asked["action"]["kind"] == "question"
    assert asked["action"]["prompt"] == "Which colour?"
    doubted = (await place.task("explode")).json()
    assert doubted["status"] == "awaiting_review"
    assert (doubted["action"]["name"], doubted["action"]["args"]) == ("explode", {})
    for body, kind in ((asked, "question"), (doubted, "review")):
        action_id = body["action"]["action_id"]
        for more in ({}, {"action_id": action_id}):
            response = await place.approve(body["task_id"], True, **more)
            assert response.status_code == 409
            assert response.json() == {
                "error": f"this is no approval but a {kind}; decide it at /v1/interrupts/{action_id}/resolve"
            }
        assert (await place.client.get(f"/v1/interrupts/{action_id}")).json()["outcome"] is None


async def test_a_sleeping_thread_is_answered(place):
    body = (await place.task("sleep")).json()
    assert body == {"task_id": body["task_id"], "status": "sleeping", "steps": 1}


async def test_a_cancelled_thread_is_answered(place):
    waiting = asyncio.create_task(place.task("slow"))
    task_id = await place.started()
    await place.client.post(f"/v1/threads/{task_id}/cancel", json={})
    body = (await waiting).json()
    assert body == {"task_id": task_id, "status": "cancelled", "steps": 1}


async def test_a_task_that_takes_long_is_answered_202(place, monkeypatch):
    monkeypatch.setattr(limits, "MAX_WAIT_SECONDS", 0.2)
    response = await place.task("slow")
    task_id = response.json()["task_id"]
    assert (response.status_code, response.text) == (202, f'{{"task_id":"{task_id}","status":"running"}}')
    place.shop.gate.set()
    assert (await place.runtime.wait(task_id, 10)).answer == "open"


async def test_a_client_that_goes_away_changes_nothing(place):
    waiting = asyncio.create_task(place.task("slow"))
    task_id = await place.started()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    place.shop.gate.set()
    state = await place.runtime.wait(task_id, 10)
    assert (state.status, state.answer) == ("completed", "open")


# -- refusals, in their order ------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["tasks", "approve", "nothing", "", "tasks/", "tasks/1"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
async def test_the_method_is_looked_at_before_the_path(place, method, path):
    response = await place.client.request(method, f"/api/agent/{path}")
    assert response.status_code == 405
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["allow"] == "POST"
    assert response.text == ("" if method == "HEAD" else "Method not allowed")


@pytest.mark.parametrize("path", ["nothing", "", "tasks/", "approve/x", "Tasks"])
async def test_the_path_is_looked_at_before_the_token(place, path):
    response = await place.client.post(f"/api/agent/{path}", content=b"{")
    assert (response.status_code, response.text) == (404, "Not found")
    assert response.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic s3cret-of-ana"},
        {"Authorization": "s3cret-of-ana"},
        {"Authorization": "Bearer s3cret-of-ana2"},
        {"Authorization": "Bearer s3cret-of-Ana"},
    ],
)
async def test_the_token_is_looked_at_before_the_body(place, headers):
    task_id, _ = await awaiting(place, "refund")
    for content in (b"{", b'{"task_id":"%s","approved":true}' % task_id.encode()):
        response = await place.client.post("/api/agent/approve", content=content, headers=headers)
        assert (response.status_code, response.text) == (401, "Unauthorized")
        assert response.headers["content-type"].startswith("text/plain")
        assert response.headers["www-authenticate"] == "Bearer"
    assert (await place.runtime.state(task_id)).status == "awaiting_approval"


async def test_two_authorization_headers_are_none(place):
    headers = [("Authorization", "Bearer wrong"), ("Authorization", "Bearer s3cret-of-ana")]
    response = await place.client.post("/api/agent/approve", json={}, headers=headers)
    assert response.status_code == 401


async def test_without_an_approver_secret_nobody_approves(serving):
    async with serving(Access()) as place:
        task_id, _ = await awaiting(place, "refund")
        for header in ("Bearer", "Bearer s3cret-of-ana", "Bearer None", ""):
            headers = {"Authorization": header}
            body = {"task_id": task_id, "approved": True}
            response = await place.client.post("/api/agent/approve", json=body, headers=headers)
            assert (response.status_code, response.text) == (401, "Unauthorized")


async def test_a_submit_token_is_needed_once_it_is_configured_and_may_not_decide(serving):
    async with serving(Access("s3cret-of-ana", "token-of-bob")) as place:
        refused = await place.task("refund")
        assert (refused.status_code, refused.text) == (401, "Unauthorized")
        assert (await place.task("hello", **APPROVER)).status_code == 200
        task_id = (await place.task("refund", **SUBMITTER)).json()["task_id"]
        body = {"task_id": task_id, "approved": True}
        response = await place.client.post("/api/agent/approve", json=body, headers=SUBMITTER)
        assert response.status_code == 401
        assert (await place.approve(task_id)).status_code == 200


@pytest.mark.parametrize("task", ["", "  \n", None, 1, True, ["x"], {"a": 1}])
async def test_a_task_is_text(place, task):
    response = await place.client.post("/api/agent/tasks", json={"task": task})
    assert (response.status_code, response.text) == (400, '{"error":"task is required"}')
    assert await place.runtime.threads() == []


async def test_a_task_has_a_longest_length(place):
    response = await place.task("x" * (limits.MAX_MESSAGE_CHARACTERS + 1))
    assert response.status_code == 400
    assert str(limits.MAX_MESSAGE_CHARACTERS) in response.json()["error"]


@pytest.mark.parametrize("path", ["tasks", "approve"])
async def test_a_body_over_the_limit_is_413_with_and_without_its_length(place, path):
    large = b'{"task":"' + b"x" * limits.MAX_BODY_BYTES + b'"}'

    async def pieces():
        for start in range(0, len(large), 65536):
            yield large[start : start + 65536]

    for content in (large, pieces()):
        response = await place.client.post(f"/api/agent/{path}", content=content, headers=APPROVER)
        assert response.status_code == 413
        assert response.json() == {"error": "the body is larger than 1048576 bytes"}
    assert await place.runtime.threads() == []


@pytest.mark.parametrize(
    "task_id",
    ["", "17", None, 17, True, [NOBODY], NOBODY.replace("-", ""), f"{{{NOBODY}}}", f"urn:uuid:{NOBODY}"],
)
async def test_a_task_id_is_a_uuid_and_looked_at_before_approved(place, task_id):
    response = await place.approve(task_id, "yes")
    assert (response.status_code, response.text) == (400, '{"error":"task_id is not a task ID"}')


@pytest.mark.parametrize("approved", ["true", "yes", 1, 0, None, [], {}, 1.0, "false"])
async def test_approved_is_a_boolean_and_nothing_else_decides(place, approved):
    task_id, _ = await awaiting(place, "refund")
    response = await place.approve(task_id, approved)
    assert (response.status_code, response.json()) == (400, {"error": "approved is neither true nor false"})
    missing = await place.client.post("/api/agent/approve", json={"task_id": task_id}, headers=APPROVER)
    assert missing.status_code == 400
    # It is looked at before what is pending.
    assert (await place.approve(NOBODY, approved)).status_code == 400
    assert (await place.runtime.state(task_id)).status == "awaiting_approval"
    assert place.shop.refunds == []


async def test_an_unknown_task_has_no_pending_action(place):
    response = await place.approve(NOBODY)
    assert (response.status_code, response.text) == (404, '{"error":"no pending action for this task"}')


async def test_a_task_id_in_capitals_is_the_same(place):
    task_id, actions = await awaiting(place, "refund")
    response = await place.approve(task_id.upper(), action_id=actions[0]["action_id"].upper())
    assert response.json()["task_id"] == task_id


async def test_a_form_type_is_no_hindrance(place):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response = await place.client.post("/api/agent/tasks", content=b'{"task": "hello"}', headers=headers)
    assert response.json()["answer"] == "Hello."
