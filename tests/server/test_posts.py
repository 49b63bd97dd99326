"""Idempotency-Key: the same request again is the same answer, and nothing is done twice, whoever dies."""

import asyncio
import json
import signal
import sqlite3
import uuid

import httpx2
import pytest
from tests.server.conftest import APPROVER
from tests.server.test_process import QUESTION, process
from tests.server.test_v1 import WAIT, is_problem, started

from tenuto import limits
from tenuto.errors import StoreError

REPLAYED = "idempotent-replayed"


def keyed(key="k-1", **more):
    return {"Idempotency-Key": key} | more


async def twice(place, path, body, *, key="k-1", headers=WAIT):
    """The same request two times; both answers."""
    first, second = [await place.client.post(path, json=body, headers=headers | keyed(key)) for _ in range(2)]
    assert REPLAYED not in first.headers
    assert second.headers[REPLAYED] == "true"
    assert (second.status_code, second.content) == (first.status_code, first.content)
    for name in ("content-type", "location", "preference-applied", "x-content-type-options"):
        assert second.headers.get_list(name) == first.headers.get_list(name)
    return first


async def test_every_post_that_creates_or_decides_is_done_once(place):
    first = await twice(place, "/v1/threads", {"message": "refund"})
    assert first.status_code == 201
    state = first.json()
    thread = f"/v1/threads/{state['id']}"
    said = await twice(place, f"{thread}/messages", {"text": "hello"})
    assert said.json()["seq"] == state["head_seq"] + 1
    await twice(place, f"{thread}/extend", {"steps": 3})
    interrupt = f"/v1/interrupts/{state['interrupts'][0]['id']}"
    decided = await twice(place, f"{interrupt}/resolve", {"verb": "approve"}, headers=APPROVER | WAIT)
    assert decided.json()["status"] == "completed"
    assert place.shop.refunds == ["17"]
    slow = (await place.client.post("/v1/threads", json={"message": "slow"})).json()
    cancelled = await twice(place, f"/v1/threads/{slow['id']}/cancel", {"reason": "enough"})
    assert cancelled.json()["status"] == "cancelled"
    types = await place.types(state["id"])
    assert [types.count(kind) for kind in ("message_received", "limits_extended", "interrupt_resolved")] == [
        *(2, 1, 1)
    ]
    assert (await place.types(slow["id"])).count("cancel_requested") == 1
    assert len(await place.runtime.threads()) == 2


async def test_the_contract_s_requests_are_done_once(place):
    first = await twice(place, "/api/agent/tasks", {"task": "refund"})
    assert first.json()["status"] == "awaiting_approval"
    body = {"task_id": first.json()["task_id"], "approved": True}
    done = await twice(place, "/api/agent/approve", body, headers=APPROVER)
    assert done.json() == {
        "task_id": body["task_id"],
        "status": "completed",
        "answer": "refunded 17",
        "steps": 2,
    }
    assert place.shop.refunds == ["17"]
    assert len(await place.runtime.threads()) == 1
    for content, status in ((b"{", 400), (b'{"task": "hello"}', 422)):
        again = await place.client.post("/api/agent/tasks", content=content, headers=keyed())
        assert (again.status_code, list(again.json())) == (status, ["error"])


async def test_a_task_that_still_ran_is_waited_for_by_the_same_request_again(place, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_WAIT_SECONDS", 0.1)
        first = await place.client.post("/api/agent/tasks", json={"task": "slow"}, headers=keyed())
        assert (first.status_code, first.json()["status"]) == (202, "running")
    again = asyncio.create_task(place.client.post("/api/agent/tasks", json={"task": "slow"}, headers=keyed()))
    place.shop.gate.set()
    told = (await again).json()
    assert (told["status"], told["task_id"]) == ("completed", first.json()["task_id"])
    assert len(await place.runtime.threads()) == 1


async def test_what_was_refused_for_the_state_of_things_stays_refused(place):
    state = await started(place, "hello")
    path = f"/v1/threads/{state['id']}/cancel"
    refused = await twice(place, path, {})
    is_problem(refused, 409)
    await place.client.post(f"/v1/threads/{state['id']}/messages", json={"text": "slow"})
    assert (await place.client.post(path, json={}, headers=keyed())).content == refused.content
    assert (await place.client.post(path, json={}, headers=keyed("k-2"))).status_code == 200


async def test_a_key_belongs_to_its_body_its_path_and_its_caller(place):
    body = {"message": "hello", "metadata": {"a": 1, "b": [2.5, None]}}
    first = await place.client.post("/v1/threads", json=body, headers=keyed())
    # The same in JSON is the same.
    other = '{ "metadata": {"b":[2.5,null], "a":1}, "message": "h\\u0065llo"}'
    again = await place.client.post("/v1/threads", content=other.encode(), headers=keyed())
    assert (again.content, again.headers[REPLAYED]) == (first.content, "true")
    for different in ({"message": "hello"}, body | {"metadata": {"a": 1, "b": [2.5]}}, {"message": 1}):
        is_problem(await place.client.post("/v1/threads", json=different, headers=keyed()), 422)
    elsewhere = f"/v1/threads/{first.json()['id']}/messages"
    assert (await place.client.post(elsewhere, json={"text": "x"}, headers=keyed())).status_code == 200
    another = await place.client.post("/v1/threads", json=body, headers=keyed() | APPROVER)
    assert another.json()["id"] != first.json()["id"]
    assert REPLAYED not in another.headers


async def test_without_a_key_nothing_is_remembered(place):
    ids = {(await started(place, "hello"))["id"] for _ in range(3)}
    assert len(ids) == 3
    assert await place.runtime.store.records("request") == {}


@pytest.mark.parametrize("key", ["", '""', "a b", '"a', 'a"b" c', '"a\\b"', "x" * 256, '"' + "x" * 256 + '"'])
async def test_a_key_that_is_none_is_400(place, key):
    is_problem(await place.client.post("/v1/threads", json={"message": "x"}, headers=keyed(key)), 400)
    assert await place.runtime.threads() == []


async def test_two_keys_are_none(place):
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    is_problem(await place.client.post("/v1/threads", json={"message": "x"}, headers=headers), 400)


async def test_a_key_is_the_same_with_and_without_quotes(place):
    first = await place.client.post("/v1/threads", json={"message": "hello"}, headers=keyed("abc-1"))
    again = await place.client.post("/v1/threads", json={"message": "hello"}, headers=keyed('"abc-1"'))
    assert again.content == first.content
    longest = keyed('"' + "\\\\" * 255 + '"')
    assert (await place.client.post("/v1/threads", json={"message": "x"}, headers=longest)).status_code == 201


async def test_a_refused_request_can_be_mended_under_the_same_key(place):
    headers = keyed()
    is_problem(await place.client.post("/v1/threads", content=b"{", headers=headers), 400)
    is_problem(await place.client.post("/v1/threads", json={"mesage": "x"}, headers=headers), 422)
    is_problem(
        await place.client.post("/v1/threads", json={"message": "x", "agent": "?"}, headers=headers), 422
    )
    response = await place.client.post("/v1/threads", json={"message": "x"}, headers=headers)
    assert response.status_code == 201


async def test_of_twenty_at_once_one_is_done_and_all_hear_of_it(place):
    post = place.client.post("/v1/threads", json={"message": "hello"}, headers=WAIT | keyed())
    posts = [
        place.client.post("/v1/threads", json={"message": "hello"}, headers=WAIT | keyed()) for _ in range(19)
    ]
    responses = await asyncio.gather(post, *posts)
    assert {response.status_code for response in responses} == {201}
    assert len({response.content for response in responses}) == 1
    assert len([1 for response in responses if REPLAYED not in response.headers]) == 1
    assert len(await place.runtime.threads()) == 1


async def test_another_body_is_refused_while_the_first_is_being_answered(place):
    first = asyncio.create_task(
        place.client.post("/v1/threads", json={"message": "slow"}, headers=WAIT | keyed())
    )
    await place.started()
    is_problem(await place.client.post("/v1/threads", json={"message": "x"}, headers=keyed()), 422)
    place.shop.gate.set()
    assert (await first).status_code == 201


async def test_what_failed_here_is_tried_again(place, monkeypatch):
    start = place.runtime.start

    async def broken(*args, **more):
        raise StoreError("no")

    monkeypatch.setattr(place.runtime, "start", broken)
    is_problem(await place.client.post("/v1/threads", json={"message": "hello"}, headers=keyed()), 503)
    monkeypatch.setattr(place.runtime, "start", start)
    response = await place.client.post("/v1/threads", json={"message": "hello"}, headers=keyed())
    assert response.status_code == 201
    assert REPLAYED not in response.headers


async def test_an_answer_that_could_not_be_kept_is_given_and_nothing_is_done_twice(place, monkeypatch):
    """As when the process dies in between: append done, answer not kept."""
    state = await started(place, "refund")
    slow = (await place.client.post("/v1/threads", json={"message": "slow"})).json()

    async def broken(*args, **more):
        raise StoreError("no room")

    monkeypatch.setattr(place.runtime.store, "put_record", broken)
    thread, interrupt = f"/v1/threads/{state['id']}", f"/v1/interrupts/{state['interrupts'][0]['id']}"
    for path, body in (
        ("/v1/threads", {"message": "hello"}),
        ("/api/agent/tasks", {"task": "hello"}),
        (f"{thread}/messages", {"text": "hello"}),
        (f"{thread}/extend", {"steps": 1}),
        (f"{interrupt}/resolve", {"verb": "approve", "digest": state["interrupts"][0]["digest"]}),
        (
            "/api/agent/approve",
            {"task_id": state["id"], "action_id": interrupt.rpartition("/")[2], "approved": True},
        ),
        (f"/v1/threads/{slow['id']}/cancel", {"reason": "enough"}),
    ):
        headers = APPROVER | WAIT | keyed(f"of {path}".replace(" ", "-"))
        if (
            "approve" in path
        ):  # decided under another key: that it stays a conflict shows that the rest is not
            refused = await place.client.post(path, json=body, headers=headers)
            assert (refused.status_code, refused.json()["outcome"]) == (409, "approved")
            continue
        first, second = [await place.client.post(path, json=body, headers=headers) for _ in range(2)]
        assert first.status_code in (200, 201)
        assert (second.status_code, REPLAYED in second.headers) == (first.status_code, False)
        for name in ("id", "task_id", "seq", "status"):
            assert second.json().get(name) == first.json().get(name)
    assert place.shop.refunds == ["17"]
    types = await place.types(state["id"])
    assert [types.count(kind) for kind in ("message_received", "limits_extended", "interrupt_resolved")] == [
        *(2, 1, 1)
    ]
    assert (await place.types(slow["id"])).count("cancel_requested") == 1
    assert len(await place.runtime.threads()) == 4


async def test_a_key_is_known_for_a_day(place, monkeypatch):
    put, kept = place.runtime.store.put_record, []

    async def watched(kind, key, body, **more):
        kept.append((kind, key, body, more))
        return await put(kind, key, body, **more)

    monkeypatch.setattr(place.runtime.store, "put_record", watched)
    before = place.runtime.store.now_ms()
    await place.client.post("/v1/threads", json={"message": "hello"}, headers=keyed("the-key"))
    ((kind, name, body, more),) = kept
    assert (kind, list(await place.runtime.store.records("request"))) == ("request", [name])
    assert "the-key" not in name + str(body)
    day = more["expires_at_ms"] - before
    assert 86_400_000 <= day < 86_400_000 + 60_000


# -- processes ---------------------------------------------------------------------------------------

# As a server, but it is killed where an answer would be kept.
DYING = """
import os, signal
from tenuto.server.posts import Posts

async def die(*args):
    os.kill(os.getpid(), signal.SIGKILL)

if os.environ.get("die"):
    Posts._keep = die
"""


@pytest.mark.parametrize("path", ["/v1/threads", "/api/agent/tasks"])
async def test_a_server_that_is_killed_between_the_append_and_its_answer_doubles_nothing(tmp_path, path):
    body = {"message": QUESTION} if path == "/v1/threads" else {"task": QUESTION}
    headers = keyed(str(uuid.uuid4()))
    async with process(tmp_path, preamble=DYING, die="1") as (url, child), httpx2.AsyncClient() as client:
        with pytest.raises(httpx2.TransportError):
            await client.post(url + path, json=body, headers=headers)
        assert await asyncio.wait_for(child.wait(), 20) == -signal.SIGKILL
    async with process(tmp_path) as (url, _), httpx2.AsyncClient(timeout=30) as client:
        first = await client.post(url + path, json=body, headers=headers)
        again = await client.post(url + path, json=body, headers=headers)
        assert first.status_code in (200, 201)
        assert again.content == first.content
        assert (REPLAYED in first.headers, REPLAYED in again.headers) == (False, True)
        threads = (await client.get(f"{url}/v1/threads")).json()["threads"]
        assert [thread["id"] for thread in threads] == [first.json().get("id") or first.json()["task_id"]]
    with sqlite3.connect(tmp_path / "tenuto.db") as database:
        (kept,) = database.execute("SELECT count(*) FROM records WHERE kind = 'request'").fetchone()
    database.close()
    assert kept == 1


async def test_another_process_knows_the_answers(tmp_path):
    headers = keyed() | WAIT
    async with (
        process(tmp_path) as (url, _),
        process(tmp_path) as (other, _),
        httpx2.AsyncClient(timeout=30) as client,
    ):
        first = await client.post(f"{url}/v1/threads", json={"message": QUESTION}, headers=headers)
        again = await client.post(f"{other}/v1/threads", json={"message": QUESTION}, headers=headers)
    assert again.headers[REPLAYED] == "true"
    assert (json.loads(again.content), again.content) == (first.json(), first.content)
