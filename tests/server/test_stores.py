"""The server on each database: what it asks of it beside the log, and texts that a database may refuse."""

import asyncio

import pytest
from tests.server.conftest import APPROVER
from tests.server.test_posts import keyed, twice
from tests.server.test_roles import made
from tests.server.test_v1 import WAIT, is_problem, started

from tenuto import limits
from tenuto.server.tokens import revoke_token


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request, serving, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "TOKEN_SECONDS", 0.02)
    if request.param == "postgres":
        database = request.getfixturevalue("postgres_url")
    else:
        database = f"sqlite:///{tmp_path}/tenuto.db"
    async with serving(database=database) as started:
        yield started


async def test_keys_tokens_and_filters(place):
    first = await twice(place, "/v1/threads", {"message": "refund", "metadata": {"order": "17"}})
    state = first.json()
    path = f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve"
    await twice(place, path, {"verb": "approve"}, headers=APPROVER | WAIT)
    await twice(place, f"/v1/threads/{state['id']}/messages", {"text": "hello"})
    assert place.shop.refunds == ["17"]
    (row,) = (await place.client.get("/v1/threads?metadata[order]=17")).json()["threads"]
    assert row["id"] == state["id"]
    assert (await place.client.get("/v1/threads?metadata[order]=18")).json()["threads"] == []
    found = (await place.client.get("/v1/interrupts?status=decided&kind=approval")).json()["interrupts"]
    assert [interrupt["outcome"] for interrupt in found] == ["approved"]

    headers = await made(place, "ci", "read", agents=["frugal"])
    is_problem(await place.client.get("/v1/threads"), 401)
    is_problem(await place.client.get(f"/v1/threads/{state['id']}", headers=headers), 404)
    await revoke_token(place.runtime.store, "ci")
    await asyncio.sleep(limits.TOKEN_SECONDS)
    is_problem(await place.client.get("/v1/threads", headers=headers), 401)


async def test_a_request_whose_answer_was_not_kept_finds_its_event(place, monkeypatch):
    state = await started(place, "refund")
    store = place.runtime.store

    async def lost(*args, **more):
        raise RuntimeError("killed")

    path = f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve"
    headers = APPROVER | WAIT | keyed()
    with monkeypatch.context() as patch:
        patch.setattr(store, "put_record", lost)
        is_problem(await place.client.post(path, json={"verb": "approve"}, headers=headers), 500)
    response = await place.client.post(path, json={"verb": "approve"}, headers=headers)
    assert (response.status_code, response.json()["status"]) == (200, "completed")
    is_problem(await place.client.post(path, json={"verb": "approve"}, headers=headers | keyed("k-2")), 409)
    assert place.shop.refunds == ["17"]


@pytest.mark.parametrize("text", ["%00", "%F0%9F%8E%89", "%ED%A0%80", "%ff", "'%22;--", "x" * 3000])
async def test_any_text_in_a_path_or_a_query_is_no_fault_of_the_server(place, text):
    state = await started(place, "refund")
    admin = await made(place, "root", "admin")
    for path in (
        *(f"/v1/threads/{text}", f"/v1/threads/{text}/events", f"/v1/threads/{text}/events?stream=true"),
        *(f"/v1/threads/{text}/export", f"/v1/interrupts/{text}", f"/v1/interrupts?after={text}"),
        *(f"/v1/interrupts?thread_id={text}", f"/v1/interrupts?agent={text}", f"/v1/threads?agent={text}"),
        *(f"/v1/threads?metadata[{text}]={text}", f"/v1/threads?id={text}", f"/v1/threads?cursor={text}"),
    ):
        response = await place.client.get(path, headers=admin)
        assert response.status_code in (200, 400, 404, 422), (path, response.text)
    for path, body in (
        (f"/v1/threads/{text}/messages", {"text": "x"}),
        (f"/v1/threads/{text}/cancel", {}),
        (f"/v1/interrupts/{text}/resolve", {"verb": "approve"}),
    ):
        for headers in (admin, admin | keyed()):
            response = await place.client.post(path, json=body, headers=headers)
            assert response.status_code in (404, 422), response.text
    response = await place.client.delete(f"/v1/tokens/{text}", headers=admin)
    assert response.status_code in (404, 422), response.text
    told = "a\u0000\u2028🎉"
    for path, body in (
        ("/v1/threads", {"message": told, "by": told, "metadata": {told: told}}),
        (f"/v1/threads/{state['id']}/messages", {"text": told, "by": told}),
        (f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve", {"verb": "reject", "comment": told}),
    ):
        response = await place.client.post(path, json=body, headers=admin | keyed("k-3"))
        assert response.status_code in (200, 201), response.text
