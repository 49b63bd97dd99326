"""/v1: threads, events, the inbox, waiting, and problems as RFC 9457 has them."""

import asyncio
from datetime import datetime

import pytest
from tests.server.conftest import APPROVER

from tenuto import limits
from tenuto.errors import PROBLEM_TYPES

NOBODY = "0e6f3b0a-5d0c-4f6e-9a52-3c1d7b8e4f21"
WAIT = {"Prefer": "wait=20"}


async def started(place, message, **more):
    body = {"message": message, **more}
    response = await place.client.post("/v1/threads", json=body, headers=WAIT)
    assert response.status_code == 201
    return response.json()


def is_problem(response, status, **more):
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    body = response.json()
    assert body["status"] == status
    assert body["type"] == "about:blank" or body["type"] in PROBLEM_TYPES
    assert body["title"]
    assert body["detail"]
    assert {key: body[key] for key in more} == more
    return body


# -- threads -----------------------------------------------------------------------------------------


async def test_a_thread_starts_and_is_found_again(place):
    response = await place.client.post("/v1/threads", json={"message": "slow", "metadata": {"order": 17}})
    assert response.status_code == 201
    state = response.json()
    assert response.headers["location"] == f"/v1/threads/{state['id']}"
    assert "preference-applied" not in response.headers
    assert state == {
        "id": state["id"],
        "agent": "ops",
        "status": "running",
        "steps": 0,
        "head_seq": 2,
        "answer": None,
        "error": None,
        "limit": None,
        "interrupts": [],
    }
    place.shop.gate.set()
    await place.runtime.wait(state["id"], 10)
    later = (await place.client.get(f"/v1/threads/{state['id']}")).json()
    assert (later["status"], later["answer"], later["steps"]) == ("completed", "open", 2)
    row = await place.runtime.store.thread(state["id"])
    assert row.metadata == {"order": 17}


async def test_a_thread_id_of_ones_own_makes_starting_idempotent(place):
    first = await started(place, "hello", thread_id=NOBODY)
    second = await started(place, "hello", thread_id=NOBODY)
    assert first == second
    assert first["id"] == NOBODY
    assert len(await place.runtime.threads()) == 1


async def test_another_agent_can_be_named(place):
    state = await started(place, "costly", agent="frugal")
    assert (state["agent"], state["status"], state["limit"]) == ("frugal", "halted", "tokens")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"message": " "},
        {"message": 1},
        {"message": "x", "agent": "nobody"},
        {"message": "x", "thread_id": "17"},
        {"message": "x", "thread_id": ""},
        {"message": "x", "metadata": []},
        {"message": "x", "metadata": {"a": "b" * limits.MAX_METADATA_BYTES}},
        {"message": "x", "mesage": "y"},
    ],
)
async def test_a_thread_that_cannot_be_started_is_422(place, body):
    is_problem(await place.client.post("/v1/threads", json=body), 422)
    assert await place.runtime.threads() == []


async def test_waiting_is_bounded_and_says_what_was_applied(place):
    for header, applied in (
        ("wait=0", "wait=0"),
        ('respond-async, wait="1"', "wait=1"),
        ("WAIT = 1 ; x=y", "wait=1"),
        ("wait=many", None),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("return=minimal", None),
    ):
        headers = {"Prefer": header}
        response = await place.client.post("/v1/threads", json={"message": "slow"}, headers=headers)
        assert response.headers.get("preference-applied") == applied
        assert response.json()["status"] == "running"
    headers = {"Prefer": "wait=99999999999999"}
    response = await place.client.post("/v1/threads", json={"message": "hello"}, headers=headers)
    assert response.headers["preference-applied"] == "wait=300"
    assert response.json()["answer"] == "Hello."


async def test_a_message_lets_a_thread_go_on(place):
    state = await started(place, "hello")
    path = f"/v1/threads/{state['id']}/messages"
    response = await place.client.post(path, json={"text": "again"}, headers=WAIT)
    assert response.status_code == 200
    assert (response.json()["answer"], response.json()["steps"]) == ("You said: again", 2)
    events = (await place.client.get(f"/v1/threads/{state['id']}/events?after=2")).json()["events"]
    (message,) = [event for event in events if event["type"] == "message_received"]
    assert (message["text"], message["channel"]) == ("again", "http")


async def test_cancel(place):
    thread_id = (await place.client.post("/v1/threads", json={"message": "slow"})).json()["id"]
    path = f"/v1/threads/{thread_id}/cancel"
    response = await place.client.post(path, json={"reason": "changed my mind"}, headers=WAIT)
    assert (response.status_code, response.json()["status"]) == (200, "cancelled")
    assert response.json()["error"] == "changed my mind"
    is_problem(await place.client.post(path, json={}), 409)


async def test_extend(place):
    state = await started(place, "for ever")
    assert (state["status"], state["limit"], state["steps"]) == ("halted", "steps", 6)
    path = f"/v1/threads/{state['id']}/extend"
    response = await place.client.post(path, json={"steps": 2}, headers=WAIT)
    assert (response.json()["status"], response.json()["steps"]) == ("halted", 8)
    for more in ({"steps": -1}, {"steps": 2**70}, {"steps": "2"}, {"cost": -0.1}, {"stepps": 1}):
        is_problem(await place.client.post(path, json=more), 422)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/threads?agnet=ops", "agnet"),
        ("/v1/threads?metadata.order=17&agent=ops", "metadata.order"),
        ("/v1/interrupts?cursor=x", "cursor"),
        ("/v1/interrupts?metadata[a]=x", "metadata[a]"),
        ("/v1/threads/{id}?wait=1", "wait"),
        ("/v1/threads/{id}/events?since=3", "since"),
        ("/v1/workers?access_token=x", "access_token"),
    ],
)
async def test_a_parameter_that_would_be_without_effect_is_422(place, path, name):
    state = await started(place, "hello")
    body = is_problem(await place.client.get(path.format(**state)), 422)
    assert name in body["detail"]


async def test_what_is_not_there_is_404(place):
    for what in ("x", NOBODY, f"{NOBODY}/events", f"{NOBODY}/events?stream=true", f"{NOBODY}/export"):
        is_problem(await place.client.get(f"/v1/threads/{what}"), 404)
    is_problem(await place.client.get(f"/v1/interrupts/{NOBODY}"), 404)
    is_problem(await place.client.get(f"/v1/interrupts?after={NOBODY}"), 404)
    is_problem(await place.client.get("/v1/nothing"), 404)
    is_problem(await place.client.get("/"), 404)
    for verb, body in (("messages", {"text": "x"}), ("cancel", {}), ("extend", {})):
        is_problem(await place.client.post(f"/v1/threads/{NOBODY}/{verb}", json=body), 404)
    is_problem(await place.resolve(NOBODY, "approve"), 404)
    is_problem(await place.client.delete(f"/v1/threads/{NOBODY}"), 405)


# -- events ------------------------------------------------------------------------------------------


async def test_events_come_in_pages(place):
    state = await started(place, "for ever")
    path = f"/v1/threads/{state['id']}/events"
    whole = (await place.client.get(path)).json()
    assert whole["next"] is None
    assert [event["seq"] for event in whole["events"]] == list(range(1, state["head_seq"] + 1))
    assert whole["events"][0]["type"] == "thread_started"
    assert list(whole["events"][0])[:3] == ["seq", "at", "type"]
    assert whole["events"][0]["agent"] == "ops"
    assert whole["events"][-1]["limit"] == "steps"
    assert datetime.fromisoformat(whole["events"][0]["at"]).utcoffset().total_seconds() == 0

    collected, after = [], 0
    while after is not None:
        page = (await place.client.get(path, params={"after": after, "limit": 4})).json()
        assert len(page["events"]) <= 4
        collected += page["events"]
        after = page["next"]
    assert collected == whole["events"]
    assert (await place.client.get(f"{path}?after={state['head_seq']}")).json() == {
        "events": [],
        "next": None,
    }


@pytest.mark.parametrize("query", ["after=-1", "after=x", f"after={10**30}", "limit=0", "limit=1001"])
async def test_a_cursor_that_is_none_is_422(place, query):
    state = await started(place, "hello")
    is_problem(await place.client.get(f"/v1/threads/{state['id']}/events?{query}"), 422)


# -- interrupts --------------------------------------------------------------------------------------


async def test_the_inbox_and_a_decision(place):
    state = await started(place, "refund")
    (shown,) = state["interrupts"]
    (listed,) = (await place.client.get("/v1/interrupts?status=pending")).json()["interrupts"]
    assert (await place.client.get(f"/v1/interrupts/{listed['id']}")).json() == listed
    assert {key: listed[key] for key in shown} == shown
    assert (shown["kind"], shown["name"], shown["options"]) == (
        "approval",
        "refund_order",
        ["approve", "reject", "edit"],
    )
    assert shown["arguments"] == {"order_id": "17", "reason": "damaged"}
    assert (listed["thread_id"], listed["agent"], listed["outcome"]) == (state["id"], "ops", None)
    day = datetime.fromisoformat(listed["expires_at"]) - datetime.fromisoformat(listed["raised_at"])
    assert day.total_seconds() == pytest.approx(86_400, abs=5)

    response = await place.resolve(shown["id"], "approve", digest=shown["digest"], comment="go on")
    assert response.status_code == 200
    assert response.headers["preference-applied"] == "wait=20"
    assert (response.json()["status"], response.json()["answer"]) == ("completed", "refunded 17")
    assert (await place.client.get("/v1/interrupts")).json() == {
        "interrupts": [],
        "next": None,
        "in_doubt": [],
    }
    (done,) = (await place.client.get("/v1/interrupts?status=all")).json()["interrupts"]
    assert (done["outcome"], done["by"], done["comment"]) == ("approved", "approver", "go on")

    again = await place.resolve(shown["id"], "reject")
    body = is_problem(again, 409, outcome="approved", by="approver", at=done["resolved_at"])
    assert body["interrupt_id"] == shown["id"]
    assert place.shop.refunds == ["17"]


async def test_a_rejection_with_a_comment_is_read_by_the_model(place):
    state = await started(place, "refund")
    response = await place.resolve(state["interrupts"][0]["id"], "reject", comment="ask for a photo first")
    assert "ask for a photo first" in response.json()["answer"]
    assert place.shop.refunds == []


async def test_edited_arguments_are_what_runs(place):
    state = await started(place, "refund")
    interrupt_id = state["interrupts"][0]["id"]
    refused = await place.resolve(interrupt_id, "edit", arguments={"order_id": "18"})
    assert "reason" in is_problem(refused, 422)["detail"]
    is_problem(await place.resolve(interrupt_id, "edit"), 422)
    is_problem(await place.resolve(interrupt_id, "edit", arguments={"order_id": 2**70, "reason": "x"}), 422)
    path = f"/v1/interrupts/{interrupt_id}/resolve"  # what cannot be kept to the letter is not rounded
    body = b'{"verb":"edit","arguments":{"order_id":12345678901234567.89,"reason":"x"}}'
    assert (
        "exactly" in is_problem(await place.client.post(path, content=body, headers=APPROVER), 400)["detail"]
    )
    edited = {"order_id": "18", "reason": "wrong order"}
    response = await place.resolve(interrupt_id, "edit", arguments=edited)
    assert response.json()["answer"].endswith("\nrefunded 18")
    assert place.shop.refunds == ["18"]


async def test_an_answer_and_the_outcomes_of_a_review(place):
    asked = await started(place, "ask")
    interrupt_id = asked["interrupts"][0]["id"]
    is_problem(await place.resolve(interrupt_id, "answer"), 422)
    is_problem(await place.resolve(interrupt_id, "approve"), 422)
    response = await place.resolve(interrupt_id, "answer", answer="Green.")
    assert response.json()["answer"] == "Green."
    for verb, more, part in (
        ("happened", {"answer": "it is done"}, "it is done"),
        ("drop", {}, "outcome is unknown"),
    ):
        doubted = await started(place, "explode")
        assert doubted["status"] == "awaiting_review"
        response = await place.resolve(doubted["interrupts"][0]["id"], verb, **more)
        assert part in response.json()["answer"]


async def test_a_digest_of_another_call_decides_nothing(place):
    state = await started(place, "refund")
    is_problem(await place.resolve(state["interrupts"][0]["id"], "approve", digest="0" * 32), 409)
    assert (await place.client.get(f"/v1/threads/{state['id']}")).json()["status"] == "awaiting_approval"


async def test_the_verb_may_be_told_by_its_old_name(place):
    for told in ({"verb": "approve"}, {"outcome": "approve"}):
        state = await started(place, "refund")
        path = f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve"
        response = await place.client.post(path, json=told, headers=APPROVER | WAIT)
        assert (response.status_code, response.json()["status"]) == (200, "completed")
    state = await started(place, "refund")
    path = f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve"
    both = {"verb": "approve", "outcome": "approve"}
    for told in (both, both | {"outcome": "reject"}, {"verb": None}, {"verb": "answer"}, {}):
        is_problem(await place.client.post(path, json=told, headers=APPROVER), 422)


async def test_for_whom_a_caller_says_it_speaks_is_recorded_as_a_claim(place):
    state = await started(place, "refund", by="ana")
    path = f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve"
    decision = {"verb": "approve", "by": "bo"}
    await place.client.post(path, json=decision, headers=APPROVER | WAIT)
    path = f"/v1/threads/{state['id']}"
    for text, by in (("hello", "ana"), ("again", "user"), ("more", "")):
        body = {"text": text, "by": by}
        await place.client.post(f"{path}/messages", json=body, headers=WAIT)
    events = (await place.client.get(f"{path}/events")).json()["events"]
    said = [event["by"] for event in events if event["type"] == "message_received" and "by" in event]
    assert said == ["ana via user", "ana via user"]  # "user" is the default and left out
    (resolved,) = [event for event in events if event["type"] == "interrupt_resolved"]
    assert resolved["by"] == "bo via approver"
    assert events[0]["by"] == "ana via user"
    is_problem(await place.client.post(f"{path}/messages", json={"text": "x", "by": "a" * 101}), 422)


async def test_a_malformed_decision_decides_nothing(place):
    state = await started(place, "refund")
    interrupt_id = state["interrupts"][0]["id"]
    path = f"/v1/interrupts/{interrupt_id}/resolve"
    for body in ({}, {"outcome": True}, {"outcome": "approved"}, {"outcome": "approve", "coment": "x"}):
        is_problem(await place.client.post(path, json=body, headers=APPROVER), 422)
    is_problem(await place.client.post(path, content=b"[]", headers=APPROVER), 400)
    is_problem(await place.resolve(interrupt_id, "approve", arguments={"order_id": "18"}), 422)
    is_problem(await place.resolve(interrupt_id, "approve", comment="x" * 20_000), 422)
    assert (await place.client.get(f"/v1/interrupts/{interrupt_id}")).json()["outcome"] is None


async def test_the_inbox_comes_in_pages_and_by_thread(place):
    threads = [await started(place, "refund") for _ in range(5)]
    ids, after = [], {}
    while True:
        page = (await place.client.get("/v1/interrupts", params={"limit": 2, **after})).json()
        ids += [interrupt["thread_id"] for interrupt in page["interrupts"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert sorted(ids) == sorted(state["id"] for state in threads)
    one = (await place.client.get("/v1/interrupts", params={"thread_id": threads[2]["id"]})).json()
    assert [interrupt["id"] for interrupt in one["interrupts"]] == [threads[2]["interrupts"][0]["id"]]
    is_problem(await place.client.get("/v1/interrupts?status=some"), 422)


async def test_the_inbox_is_filtered(place):
    refund = await started(place, "refund")
    asked = await started(place, "ask")
    frugal = await started(place, "refund", agent="frugal")
    decided = await started(place, "refund")
    await place.resolve(decided["interrupts"][0]["id"], "reject")

    async def threads(**query):
        page = (await place.client.get("/v1/interrupts", params=query)).json()
        return [interrupt["thread_id"] for interrupt in page["interrupts"]]

    ids = [state["id"] for state in (refund, asked, frugal, decided)]
    assert await threads() == await threads(status="pending") == ids[:3]
    assert await threads(status="decided") == ids[3:]
    assert await threads(status="all") == ids
    assert await threads(kind="question") == [asked["id"]]
    assert await threads(kind="approval", status="all") == [refund["id"], frugal["id"], decided["id"]]
    assert await threads(agent="frugal") == [frugal["id"]]
    assert await threads(agent="frugal", kind="question") == []
    assert await threads(thread_id=decided["id"]) == []
    assert await threads(thread_id="") == []
    assert await threads(thread_id=decided["id"], status="decided", kind="approval") == [decided["id"]]
    is_problem(await place.client.get("/v1/interrupts?kind=none"), 422)


async def test_of_twenty_resolutions_one_decides(place):
    state = await started(place, "refund")
    interrupt_id = state["interrupts"][0]["id"]
    verbs = ["approve", "reject"] * 10
    responses = await asyncio.gather(*(place.resolve(interrupt_id, verb) for verb in verbs))
    won = [verb for verb, response in zip(verbs, responses, strict=True) if response.status_code == 200]
    assert len(won) == 1
    for response in responses:
        if response.status_code != 200:
            is_problem(
                response, 409, outcome={"approve": "approved", "reject": "rejected"}[won[0]], by="approver"
            )
    assert place.shop.refunds == (["17"] if won == ["approve"] else [])
