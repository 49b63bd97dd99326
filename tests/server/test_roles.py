"""Every route with every role, scopes, and what a token's coming and going does to a running server."""

import asyncio
import itertools
import json

import pytest
from tests.server.test_v1 import WAIT, is_problem, started

from tenuto import limits
from tenuto.server import Access
from tenuto.server.access import ROLES
from tenuto.server.tokens import NewToken, Token, create_token, digest, revoke_token

NOBODY = "0e6f3b0a-5d0c-4f6e-9a52-3c1d7b8e4f21"
ANY = ("submit", "read", "approve", "admin")

# Each operation with the roles of which one is needed. The ids are of what there is.
NEEDS = {
    "start_thread": ("submit",),
    "list_threads": ("read",),
    "get_thread": ("read",),
    "list_events": ("read",),
    "export_thread": ("read",),
    "send_message": ("submit",),
    "cancel_thread": ("submit",),
    "extend_thread": ("submit",),
    "list_interrupts": ("read", "approve"),
    "get_interrupt": ("read", "approve"),
    "resolve_interrupt": ("approve",),
    "list_workers": ("read",),
    "get_fleet": ("read",),
    "list_tokens": ("admin",),
    "create_token": ("admin",),
    "revoke_token": ("admin",),
    "submit_task": ("submit",),
    "approve_action": ("approve",),
    "get_health": ANY,
    "get_readiness": ANY,
}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


async def made(place, name, *roles, agents=(), expires=0.0):
    """A token's header. What the server had read is forgotten, as after a second."""
    wanted = NewToken(name, roles, agents, expires)
    _, token = await create_token(place.runtime.store, wanted, by="test")
    await asyncio.sleep(limits.TOKEN_SECONDS)
    return bearer(token)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(limits, "TOKEN_SECONDS", 0.02)


async def operations(place):
    """(operationId, method, path) of all that the description tells, with ids that there are."""
    state = await started(place, "refund")
    ids = {
        "{thread_id}": state["id"],
        "{interrupt_id}": state["interrupts"][0]["id"],
        "{name}": "nobody-has-this-name",
    }
    paths = (await place.client.get("/openapi.json")).json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            where = path
            for name, value in ids.items():
                where = where.replace(name, value)
            yield operation["operationId"], method.upper(), where


async def test_every_route_with_every_set_of_roles(serving):
    """Nothing is changed by any of these: the bodies are wrong, and refused after the role was looked at."""
    async with serving(Access("s3cret-of-ana")) as place:
        found = [operation async for operation in operations(place)]
        assert {name for name, _, _ in found} == set(NEEDS)
        callers = {}
        for count in (1, 2, 4):
            for roles in itertools.combinations(ROLES, count):
                name = "-".join(roles)
                callers[roles] = name, await made(place, name, *roles)
        for (operation, method, path), (roles, (name, headers)) in itertools.product(found, callers.items()):
            body = {"json": {"nonsense": 1}} if method == "POST" else {}
            response = await place.client.request(method, path, headers=headers, **body)
            where = f"{operation} with {roles}: {response.status_code} {response.text[:200]}"
            if set(roles) & {*NEEDS[operation], "admin"}:
                assert response.status_code in (200, 400, 404, 422), where
                continue
            assert response.status_code == 403, where
            detail = f"this needs role {' or '.join(NEEDS[operation])}; token {name} has {', '.join(roles)}"
            told = response.json()
            assert told["error" if path.startswith("/api") else "detail"] == detail
            assert (told["needs"], told["roles"]) == (list(NEEDS[operation]), list(roles))
            assert response.headers["www-authenticate"] == 'Bearer error="insufficient_scope"'
        assert len(await place.runtime.threads()) == 1
        assert len(await place.runtime.interrupts()) == 1


async def test_every_route_without_a_token_and_with_one_that_nobody_knows(serving):
    async with serving(Access("s3cret-of-ana", "token-of-bob")) as place:
        found = [
            (operation, "POST" if "tasks" in path or "approve" in path else method, path)
            async for operation, method, path in _closed_operations(place)
        ]
        for operation, method, path in found:
            for headers in ({}, bearer("tnt_" + "x" * 43), bearer("s3cret-of-an")):
                response = await place.client.request(method, path, headers=headers)
                if operation in ("get_health", "get_readiness"):
                    assert response.status_code == 200
                elif path.startswith("/api"):
                    assert (response.status_code, response.text) == (401, "Unauthorized")
                else:
                    is_problem(response, 401)
                    given = ' error="invalid_token"' if headers else ""
                    assert response.headers["www-authenticate"] == f"Bearer{given}"
                assert "tnt_x" not in response.text


async def _closed_operations(place):
    paths = (await place.client.get("/openapi.json")).json()["paths"]
    for path, operations in paths.items():
        for method, operation in operations.items():
            yield operation["operationId"], method.upper(), path.replace("{", "").replace("}", "")


async def test_the_first_token_shuts_the_door_and_to_revoke_it_does_not_open_it(place):
    await started(place, "hello")
    reader = await made(place, "reader", "read")
    is_problem(await place.client.post("/v1/threads", json={"message": "hello"}), 401)
    is_problem(await place.client.get("/v1/threads"), 401)
    assert (await place.task("hello")).status_code == 401
    assert (await place.client.get("/v1/threads", headers=reader)).status_code == 200
    await revoke_token(place.runtime.store, "reader")
    await asyncio.sleep(limits.TOKEN_SECONDS)
    for headers in ({}, reader):
        is_problem(await place.client.get("/v1/threads", headers=headers), 401)


async def test_an_expired_token_works_no_more(place):
    headers = await made(place, "brief", "read", expires=0.3)
    assert (await place.client.get("/v1/threads", headers=headers)).status_code == 200
    await asyncio.sleep(0.3)
    response = await place.client.get("/v1/threads", headers=headers)
    assert "unknown, revoked or expired" in is_problem(response, 401)["detail"]


async def test_a_revoked_token_s_streams_and_waits_end(place):
    state = (await place.client.post("/v1/threads", json={"message": "slow"})).json()
    headers = await made(place, "follower", "read", "submit")

    async def follow():
        seen = b""
        path = f"/v1/threads/{state['id']}/events?stream=true"
        async with place.client.stream("GET", path, headers=headers) as response:
            async for chunk in response.aiter_bytes():
                seen += chunk
        return seen

    path = f"/v1/threads/{state['id']}/messages"
    wait = place.client.post(path, json={"text": "x"}, headers=headers | {"Prefer": "wait=60"})
    ends = [asyncio.create_task(follow()), asyncio.create_task(wait)]
    done, _ = await asyncio.wait(ends, timeout=20 * limits.TOKEN_SECONDS)
    assert not done
    await revoke_token(place.runtime.store, "follower")
    done, pending = await asyncio.wait(ends, timeout=10)
    assert not pending
    # Broken off, so that nobody takes it for the end.
    for task in done:
        assert task.exception() is not None


async def test_who_did_it_is_the_token_s_name(place):
    submits = await made(place, "ci", "submit", "read")
    approves = await made(place, "ana@shop", "approve")
    state = await place.client.post("/v1/threads", json={"message": "refund"}, headers=submits | WAIT)
    thread_id, (interrupt,) = state.json()["id"], state.json()["interrupts"]
    more = {"steps": 1, "by": "user"}  # what clients say who speak for nobody
    await place.client.post(f"/v1/threads/{thread_id}/extend", json=more, headers=submits)
    path = f"/v1/interrupts/{interrupt['id']}/resolve"
    decision = {"verb": "approve", "by": "approver"}
    assert (await place.client.post(path, json=decision, headers=approves | WAIT)).status_code == 200
    response = await place.client.post("/api/agent/tasks", json={"task": "refund"}, headers=submits)
    body = {"task_id": response.json()["task_id"], "approved": False}
    await place.client.post("/api/agent/approve", json=body, headers=approves)

    async def by(thread_id, kind):
        events = (await place.client.get(f"/v1/threads/{thread_id}/events", headers=submits)).json()["events"]
        return [event["by"] for event in events if event["type"] == kind]

    assert await by(thread_id, "thread_started") == ["ci"]
    assert await by(thread_id, "message_received") == ["ci"]
    assert await by(thread_id, "interrupt_resolved") == ["approver via ana@shop"]
    assert await by(thread_id, "limits_extended") == ["ci"]
    assert await by(response.json()["task_id"], "thread_started") == ["ci"]
    assert await by(response.json()["task_id"], "interrupt_resolved") == ["ana@shop"]


# -- scope -------------------------------------------------------------------------------------------


async def test_what_is_out_of_scope_is_not_there(place):
    ops = await started(place, "refund")
    frugal = await started(place, "refund", agent="frugal")
    scoped = await made(place, "scoped", "submit", "read", "approve", agents=["frugal"])
    (interrupt,) = ops["interrupts"]
    gone = {"thread_id": ops["id"], "interrupt_id": interrupt["id"]}
    paths = (await place.client.get("/openapi.json")).json()["paths"]
    checked = 0
    for path, methods in paths.items():
        if "_id}" not in path:
            continue
        for method in methods:
            where = path.format(**gone)
            response = await place.client.request(method.upper(), where, headers=scoped, content=b"{}")
            what = "interrupt" if "interrupt" in path else "thread"
            detail = is_problem(response, 404)["detail"]
            assert detail == f"there is no {what} {gone[what + '_id']}"
            nobody = await place.client.request(
                method.upper(),
                path.format(thread_id=NOBODY, interrupt_id=NOBODY),
                headers=scoped,
                content=b"{}",
            )
            # Nothing tells what is out of scope from what is not there.
            assert nobody.json() | {"detail": ""} == response.json() | {"detail": ""}
            checked += 1
    assert checked == 8
    for body in ({"task_id": ops["id"], "approved": True}, {"task_id": ops["id"], "approved": True}):
        response = await place.client.post("/api/agent/approve", json=body, headers=scoped)
        assert (response.status_code, response.json()) == (404, {"error": "no pending action for this task"})
        body["action_id"] = interrupt["id"]
    response = await place.client.get(f"/v1/threads/{frugal['id']}", headers=scoped)
    assert response.json()["agent"] == "frugal"
    assert [row.id for row in await place.runtime.interrupts()] == [
        state["interrupts"][0]["id"] for state in (ops, frugal)
    ]


async def test_an_agent_that_is_named_and_out_of_scope_is_403(place):
    scoped = await made(place, "scoped", "submit", "read", agents=["frugal"])
    for method, path, body in (
        ("POST", "/v1/threads", {"message": "hello"}),  # the server's first agent
        ("POST", "/v1/threads", {"message": "hello", "agent": "ops"}),
        ("GET", "/v1/threads?agent=ops", None),
        ("GET", "/v1/interrupts?agent=ops", None),
    ):
        response = await place.client.request(method, path, json=body, headers=scoped)
        detail = "token scoped is for agents frugal alone"
        is_problem(response, 403, detail=detail, agents=["frugal"])
    response = await place.client.post("/api/agent/tasks", json={"task": "hello"}, headers=scoped)
    assert (response.status_code, response.json()["error"]) == (403, detail)
    body = {"message": "hello", "agent": "frugal"}
    assert (await place.client.post("/v1/threads", json=body, headers=scoped)).status_code == 201
    assert len(await place.runtime.threads()) == 1


@pytest.mark.parametrize("agents", [["ops"], ["ops", "other"], ["frugal", "ops"]])
async def test_lists_are_those_of_the_scope_page_by_page(place, monkeypatch, agents):
    monkeypatch.setattr(limits, "MAX_PAGE_ROWS", 3)
    monkeypatch.setattr(limits, "MAX_SCANNED_ROWS", 3)
    expected = []
    for number in range(9):
        agent = "ops" if number % 4 == 0 else "frugal"
        state = await started(place, "refund", agent=agent)
        if agent in agents:
            expected.append(state["id"])
    headers = await made(place, "reader", "read", agents=agents)

    async def pages(path, key, cursor):
        query = {"limit": 2}
        while True:
            body = (await place.client.get(path, params=query, headers=headers)).json()
            assert len(body[key]) <= 2
            for row in body[key]:
                assert row["agent"] in agents
                yield row
            if body["next"] is None:
                return
            query[cursor] = body["next"]

    assert [row["id"] async for row in pages("/v1/threads", "threads", "cursor")] == expected[::-1]
    found = [row["thread_id"] async for row in pages("/v1/interrupts", "interrupts", "after")]
    assert found == expected
    workers = (await place.client.get("/v1/workers", headers=headers)).json()["workers"]
    assert [worker["agents"] for worker in workers] == [
        [agent for agent in ("ops", "frugal") if agent in agents]
    ]


# -- tokens over HTTP --------------------------------------------------------------------------------


async def test_an_admin_makes_lists_and_revokes_tokens(place):
    admin = await made(place, "root@shop", "admin")
    wanted = {"name": "ci", "roles": ["read", "submit", "read"], "agents": ["ops"], "expires_seconds": 3600}
    response = await place.client.post("/v1/tokens", json=wanted, headers=admin)
    assert response.status_code == 201
    shown = response.json()
    token = shown.pop("token")
    assert token.startswith("tnt_")
    assert len(token) >= 4 + 43
    assert (shown["roles"], shown["agents"], shown["works"]) == (["submit", "read"], ["ops"], True)
    assert (shown["created_by"], shown["revoked_at"]) == ("root@shop", None)
    assert (await place.client.get("/v1/threads", headers=bearer(token))).status_code == 200

    listed = (await place.client.get("/v1/tokens", headers=admin)).json()["tokens"]
    assert [each["name"] for each in listed] == ["ci", "root@shop"]
    assert listed[0] == shown
    is_problem(await place.client.post("/v1/tokens", json=wanted, headers=admin), 409)

    revoked = await place.client.delete("/v1/tokens/ci", headers=admin)
    assert (revoked.status_code, revoked.json()["works"]) == (200, False)
    is_problem(await place.client.get("/v1/threads", headers=bearer(token)), 401)
    again = await place.client.delete("/v1/tokens/ci", headers=admin)
    assert again.json() == revoked.json()
    is_problem(await place.client.delete("/v1/tokens/nobody", headers=admin), 404)
    # The name of one that works no more is taken over.
    second = (await place.client.post("/v1/tokens", json=wanted, headers=admin)).json()["token"]
    assert second != token
    assert (await place.client.get("/v1/threads", headers=bearer(second))).status_code == 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "-a"},
        {"name": "a" * 65},
        {"name": "approver"},
        {"name": "user"},
        {"roles": []},
        {"roles": ["root"]},
        {"roles": ["admin"], "agents": ["ops"]},
        {"agents": [""]},
        {"agents": ["a"] * 33},
        {"expires_seconds": 0},
        {"expires_seconds": -1},
        {"expires_seconds": 1e12},
        {"more": 1},
    ],
)
async def test_a_token_that_cannot_be_is_422(place, wrong):
    admin = await made(place, "root@shop", "admin")
    wanted = {"name": "ci", "roles": ["read"]} | wrong
    is_problem(await place.client.post("/v1/tokens", json=wanted, headers=admin), 422)
    assert len((await place.client.get("/v1/tokens", headers=admin)).json()["tokens"]) == 1


async def test_of_two_that_make_one_name_at_once_one_does(place):
    store = place.runtime.store
    wanted = NewToken("ci", ["read"])
    results = await asyncio.gather(
        *(create_token(store, wanted, by="test") for _ in range(5)), return_exceptions=True
    )
    assert len([result for result in results if isinstance(result, tuple)]) == 1


async def test_what_is_kept_is_a_hash(place):
    headers = await made(place, "ci", "read")
    token = headers["Authorization"].removeprefix("Bearer ")
    kept = (await place.runtime.store.records("token"))["ci"]
    assert token.encode() not in kept
    assert token[4:].encode() not in kept
    assert json.loads(kept)["hash"] == digest(token.encode())
    assert token not in repr(Token("ci", digest(token.encode()), ("read",)))
