"""Health, errors that nobody expected, and the description of it all."""

import re

import pytest
from tests.server.conftest import APPROVER
from tests.server.test_v1 import is_problem, started

from tenuto.errors import StoreError
from tenuto.events import TYPES


async def test_it_lives_and_is_ready_only_while_the_store_answers_and_it_does_not_stop(place, monkeypatch):
    async def codes() -> list[int]:
        return [(await place.client.get(path)).status_code for path in ("/healthz", "/readyz")]

    response = await place.client.get("/readyz")
    assert (response.status_code, response.text) == (200, '{"status":"ok"}')
    assert await codes() == [200, 200]

    async def broken(**filters):
        raise StoreError("disk image is malformed at /secret/place")

    with monkeypatch.context() as patch:
        patch.setattr(place.runtime.store, "threads", broken)
        assert await codes() == [200, 503]
        assert "secret" not in str(is_problem(await place.client.get("/readyz"), 503))
    assert await codes() == [200, 200]
    place.stopping.set()
    assert await codes() == [200, 503]


@pytest.mark.parametrize(("failure", "status"), [(StoreError, 503), (RuntimeError, 500)])
async def test_what_goes_wrong_inside_stays_inside_and_is_logged(place, monkeypatch, caplog, failure, status):
    async def broken(*args, **more):
        raise failure("inner words")

    monkeypatch.setattr(place.runtime, "start", broken)
    for path, body in (("/v1/threads", {"message": "x"}), ("/api/agent/tasks", {"task": "x"})):
        response = await place.client.post(path, json=body, headers=APPROVER)
        assert "inner words" not in str(is_problem(response, status))
        assert "inner words" in caplog.text
        if status == 503 and path == "/v1/threads":  # nobody shall double it by sending it blindly again
            assert "may have been done: look before" in response.json()["detail"]
            with_key = APPROVER | {"Idempotency-Key": "one"}
            response = await place.client.post(path, json=body, headers=with_key)
            assert "with the same Idempotency-Key it can be sent again" in is_problem(response, 503)["detail"]
        assert "s3cret-of-ana" not in caplog.text
        caplog.clear()


async def test_the_description_names_what_there_is(place):
    made = (await place.client.get("/openapi.json")).json()
    assert set(made["paths"]) == {
        "/api/agent/tasks",
        "/api/agent/approve",
        "/healthz",
        "/readyz",
        "/v1/threads",
        "/v1/threads/{thread_id}",
        "/v1/threads/{thread_id}/events",
        "/v1/threads/{thread_id}/export",
        "/v1/threads/{thread_id}/messages",
        "/v1/threads/{thread_id}/cancel",
        "/v1/threads/{thread_id}/extend",
        "/v1/interrupts",
        "/v1/interrupts/{interrupt_id}",
        "/v1/interrupts/{interrupt_id}/resolve",
        "/v1/workers",
        "/v1/fleet",
        "/v1/tokens",
        "/v1/tokens/{name}",
    }
    schemas = made["components"]["schemas"]
    state = await started(place, "refund")
    assert set(schemas["State"]["properties"]) == set(state)
    listed = (await place.client.get("/v1/interrupts")).json()["interrupts"][0]
    assert set(schemas["Interrupt"]["properties"]) == set(listed)
    assert set(schemas["NewThread"]["required"]) == {"message"}
    body = made["paths"]["/v1/threads"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/NewThread"}
    listed = (await place.client.get("/v1/threads")).json()["threads"][0]
    assert set(schemas["ThreadSummary"]["properties"]) == set(listed)
    answers = made["paths"]["/v1/threads/{thread_id}/events"]["get"]["responses"]
    assert set(answers) == {"200", "204", "400", "401", "403", "404", "422", "500", "503"}
    assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
    answers = made["paths"]["/v1/threads/{thread_id}/export"]["get"]["responses"]
    assert set(answers["200"]["content"]) == {"application/x-ndjson"}
    assert {tuple(answers[code]["content"]) for code in answers if code >= "4"} == {
        ("application/problem+json",)
    }
    # Every reference leads somewhere.
    for name in set(re.findall(r"#/components/schemas/(\w+)", str(made))):
        assert name in schemas
    names = [
        operation["operationId"]
        for path in made["paths"].values()
        for method, operation in path.items()
        if method in ("get", "post", "delete")
    ]
    assert len(names) == len(set(names)) == 20
    assert all(re.fullmatch("[a-z]+(_[a-z]+)+", name) for name in names)


async def test_every_answer_says_that_it_is_not_to_be_kept_framed_or_run(place):
    for path in ("/v1/threads", "/v1/nothing", "/healthz", "/openapi.json", "/api/agent/tasks", "/v1/tokens"):
        headers = (await place.client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_no_page_runs_code_from_elsewhere(place):
    for path in ("/docs", "/docs/oauth2-redirect", "/redoc"):
        assert (await place.client.get(path)).status_code == 404
    assert (await place.client.get("/openapi.json")).status_code == 200


async def test_the_description_of_events_is_what_is_sent(place):
    schemas = (await place.client.get("/openapi.json")).json()["components"]["schemas"]
    kinds = schemas["EventPage"]["properties"]["events"]["items"]
    assert {name.rpartition("/")[2] for name in kinds["discriminator"]["mapping"].values()} == {
        kind.__name__ for kind in TYPES.values()
    }
    seen = set()
    for message in ("mixed", "two in turn", "explode", "for ever", "down"):
        state = await started(place, message)
        if message == "two in turn":
            await place.resolve(state["interrupts"][0]["id"], "approve")
        for event in (await place.client.get(f"/v1/threads/{state['id']}/events")).json()["events"]:
            schema = schemas[kinds["discriminator"]["mapping"][event["type"]].rpartition("/")[2]]
            assert set(schema["required"]) <= set(event) <= set(schema["properties"])
            assert schema["required"][:3] == ["seq", "at", "type"]
            seen.add(event["type"])
    assert len(seen) >= 9
