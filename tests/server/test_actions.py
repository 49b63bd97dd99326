"""Which action an approve means, and that each is decided once, by somebody who saw it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.server.conftest import APPROVER

NOBODY = "0e6f3b0a-5d0c-4f6e-9a52-3c1d7b8e4f21"


async def awaiting(place, task):
    """Start a task that pauses; its id and its actions."""
    response = await place.task(task)
    assert response.status_code == 200
    body = response.json()
    assert body["status"] == "awaiting_approval"
    return body["task_id"], body["actions"]


async def test_of_several_pending_actions_one_has_to_be_named(place):
    task_id, actions = await awaiting(place, "two at once")
    assert [action["args"]["order_id"] for action in actions] == ["17", "18"]
    response = await place.approve(task_id)
    assert response.status_code == 409
    assert response.json()["actions"] == actions
    assert "action_id" in response.json()["error"]

    second = await place.approve(task_id, action_id=actions[1]["action_id"])
    assert second.status_code == 200
    assert second.json()["actions"] == [actions[0]]
    # One is left; but one was decided before, so that a request without a name may be a retried one.
    assert (await place.approve(task_id)).status_code == 409
    third = await place.approve(task_id, False, action_id=actions[0]["action_id"])
    assert third.json()["status"] == "completed"
    assert place.shop.refunds == ["18"]


async def test_an_approval_beside_a_question_has_to_be_named(place):
    task_id, actions = await awaiting(place, "mixed")
    assert [action.get("kind") for action in actions] == [None, "question"]
    assert (await place.approve(task_id)).status_code == 409
    response = await place.approve(task_id, action_id=actions[0]["action_id"])
    assert response.json()["status"] == "awaiting_answer"


async def test_a_retried_approve_never_decides_an_action_that_nobody_saw(place):
    task_id, actions = await awaiting(place, "two in turn")
    first = (await place.approve(task_id)).json()
    assert first["status"] == "awaiting_approval"
    assert first["action"]["args"]["order_id"] == "18"
    retried = await place.approve(task_id)
    assert retried.status_code == 409
    assert retried.json()["actions"] == first["actions"]
    named = await place.approve(task_id, action_id=actions[0]["action_id"])
    assert named.status_code == 409
    assert place.shop.refunds == ["17"]
    assert (await place.runtime.state(task_id)).status == "awaiting_approval"
    assert (await place.approve(task_id, action_id=first["action"]["action_id"])).json()["steps"] == 3
    assert place.shop.refunds == ["17", "18"]


async def test_nor_does_one_in_a_later_turn(place):
    task_id, _ = await awaiting(place, "refund")
    await place.approve(task_id)
    headers = {"Prefer": "wait=20"}
    await place.client.post(f"/v1/threads/{task_id}/messages", json={"text": "refund"}, headers=headers)
    assert (await place.approve(task_id)).status_code == 409
    assert place.shop.refunds == ["17"]


async def test_a_decided_action_says_who_decided_what_and_when(place):
    task_id, actions = await awaiting(place, "refund")
    action_id = actions[0]["action_id"]
    await place.approve(task_id, False, action_id=action_id)
    (row,) = await place.runtime.interrupts(pending=None, thread_id=task_id)
    response = await place.approve(task_id, True, action_id=action_id)
    assert response.status_code == 409
    body = response.json()
    assert (body["outcome"], body["by"]) == ("rejected", "approver")
    at = datetime.fromisoformat(body["at"])
    assert (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1) == row.resolved_at_ms
    assert "rejected by approver at " + body["at"] in body["error"]


@pytest.mark.parametrize("action_id", [NOBODY, "x", "", "\ud800", "a" * 100_000])
async def test_an_unknown_action_is_404(place, action_id):
    task_id, _ = await awaiting(place, "refund")
    if action_id == "\ud800":
        content = b'{"task_id":"%s","approved":true,"action_id":"\\ud800"}' % task_id.encode()
        response = await place.client.post("/api/agent/approve", content=content, headers=APPROVER)
        assert response.status_code == 400
    else:
        response = await place.approve(task_id, action_id=action_id)
        assert response.status_code == 404
        assert response.json() == {"error": "no pending action for this task"}
    assert (await place.runtime.state(task_id)).status == "awaiting_approval"


async def test_an_action_of_another_task_is_404(place):
    task_id, _ = await awaiting(place, "refund")
    other_id, others = await awaiting(place, "refund")
    response = await place.approve(task_id, action_id=others[0]["action_id"])
    assert (response.status_code, response.json()) == (404, {"error": "no pending action for this task"})
    assert (await place.runtime.state(other_id)).status == "awaiting_approval"


@pytest.mark.parametrize("action_id", [1, True, [], {}])
async def test_an_action_id_is_text(place, action_id):
    assert (await place.approve(NOBODY, action_id=action_id)).status_code == 400


async def test_an_expired_action_is_409_and_says_so(place):
    task_id, actions = await awaiting(place, "quickly")
    await asyncio.sleep(0.4)
    response = await place.approve(task_id, action_id=actions[0]["action_id"])
    assert response.status_code == 409
    assert response.json()["outcome"] == "expired"
    assert "expired" in response.json()["error"]
    state = await place.runtime.wait(task_id, 10)
    assert "nobody decided in time" in state.answer
    assert place.shop.refunds == []


@pytest.mark.parametrize("named", [True, False])
async def test_of_twenty_approves_one_decides_and_the_tool_runs_once(place, named):
    task_id, actions = await awaiting(place, "refund")
    more = {"action_id": actions[0]["action_id"]} if named else {}
    responses = await asyncio.gather(*(place.approve(task_id, **more) for _ in range(20)))
    statuses = sorted(response.status_code for response in responses)
    assert statuses.count(200) == 1
    assert all(status in (404, 409) for status in statuses[1:])
    assert place.shop.refunds == ["17"]
    (winner,) = [response.json() for response in responses if response.status_code == 200]
    assert winner == {"task_id": task_id, "status": "completed", "answer": "refunded 17", "steps": 2}
    for response in responses:
        assert "error" in response.json() or response.status_code == 200
