"""docs/http.md says what there is: its routes with their roles, and its limits, each met at its edge."""

import asyncio
import re
import socket
from pathlib import Path
from uuid import uuid4

import pytest
from tests.server.conftest import APPROVER
from tests.server.test_roles import NEEDS, bearer
from tests.server.test_v1 import is_problem, started

from tenuto import Client, limits
from tenuto.server import Access, create_app, listening
from tenuto.server.tokens import NewToken, create_token

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


def rows(title):
    """The cells of the first table under this title."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]


async def test_the_page_has_the_routes_and_roles_that_there_are(place):
    paths = (await place.client.get("/openapi.json")).json()["paths"]
    needed = {
        f"{method.upper()} {path}": " or ".join(NEEDS[operation["operationId"]])
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    needed |= {"GET /healthz": "none", "GET /readyz": "none", "GET /metrics": "read"}
    told = {route: role for route, role, _ in rows("Routes")}
    assert told == needed
    for path, operations in paths.items():
        for method, operation in operations.items():
            if path.startswith("/v1"):
                assert f"Role: {told[f'{method.upper()} {path}']}." in operation["description"]


def test_the_page_has_the_limits_that_there_are():
    found = rows("Limits")
    assert len(found) > 10
    for name, value, _ in found:
        assert float(value.replace(",", "")) == getattr(limits, name), name
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z]+)+\b", PAGE))
    for name in named - {"APPROVER_SECRET", "SUBMIT_TOKEN", "TENUTO_TOKEN"}:
        assert hasattr(limits, name), name


async def test_metadata_is_asked_for_by_so_many_texts_and_no_more(place):
    for more, status in ((0, 200), (1, 422)):
        asked = {f"metadata[key{n}]": "x" for n in range(limits.MAX_METADATA_FILTERS + more)}
        answer = await place.client.get("/v1/threads", params=asked, headers=APPROVER)
        assert answer.status_code == status


async def test_a_key_is_so_long_and_no_longer(place):
    for more, status in ((0, 201), (1, 400)):
        headers = APPROVER | {"Idempotency-Key": "k" * (limits.MAX_KEY_CHARACTERS + more)}
        answer = await place.client.post("/v1/threads", json={"message": "refund"}, headers=headers)
        assert answer.status_code == status


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("message", limits.MAX_MESSAGE_CHARACTERS),
        ("by", limits.MAX_BY_CHARACTERS),
    ],
)
async def test_texts_of_a_start_at_their_edge(place, field, most):
    body = {"message": "hello", field: "é" * most}
    assert (await place.client.post("/v1/threads", json=body)).status_code == 201
    body[field] += "é"
    is_problem(await place.client.post("/v1/threads", json=body), 422)
    assert len(await place.runtime.threads()) == 1


async def test_a_reason_and_a_comment_at_their_edge(place):
    most = limits.MAX_COMMENT_CHARACTERS
    slow = (await place.client.post("/v1/threads", json={"message": "slow"})).json()
    path = f"/v1/threads/{slow['id']}/cancel"
    is_problem(await place.client.post(path, json={"reason": "é" * (most + 1)}), 422)
    assert (await place.client.post(path, json={"reason": "é" * most})).status_code == 200
    state = await started(place, "refund")
    path = f"/v1/interrupts/{state['interrupts'][0]['id']}/resolve"
    for size, status in ((most + 1, 422), (most, 200)):
        body = {"verb": "reject", "comment": "é" * size}
        assert (await place.client.post(path, json=body, headers=APPROVER)).status_code == status


async def test_a_body_at_its_edge(place):
    frame = len(b'{"message":""}')
    for size, status in ((limits.MAX_BODY_BYTES, 422), (limits.MAX_BODY_BYTES + 1, 413)):
        body = b'{"message":"%s"}' % (b"x" * (size - frame))
        response = await place.client.post("/v1/threads", content=body)
        is_problem(response, status)  # the message alone is too long
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("/v1/threads", limits.MAX_LISTED_THREADS),
        ("/v1/interrupts", limits.MAX_LISTED_INTERRUPTS),
        ("/v1/threads/{id}/events", limits.MAX_PAGE_ROWS),
    ],
)
async def test_pages_at_their_edge(place, path, most):
    path = path.format(**await started(place, "hello"))
    assert (await place.client.get(path, params={"limit": most})).status_code == 200
    for limit in (0, most + 1):
        is_problem(await place.client.get(path, params={"limit": limit}), 422)


async def test_a_page_of_events_is_so_large_and_no_larger(place, monkeypatch):
    thread = (await started(place, "for ever"))["id"]
    whole = (await place.client.get(f"/v1/threads/{thread}/events")).json()["events"]
    monkeypatch.setattr(limits, "FOLLOW_PAGE_EVENTS", 1)
    monkeypatch.setattr(limits, "MAX_PAGE_BYTES", 1_000)
    collected, pages, after = [], 0, 0
    while after is not None:
        answer = await place.client.get(f"/v1/threads/{thread}/events", params={"after": after})
        page = answer.json()
        collected, pages, after = collected + page["events"], pages + 1, page["next"]
        assert len(answer.content) < 5_000  # what was read last may go beyond the bound
    assert collected == whole
    assert pages > 2
    async with Client(str(place.client.base_url), token="s3cret-of-ana") as client:
        assert await client.events(thread) == await place.runtime.events(thread)
        assert await client.events(thread, 3, 7) == await place.runtime.events(thread, 3, 7)
        assert await client.events(thread, 3, 0) == []


async def test_tokens_at_their_edge(place, monkeypatch):
    monkeypatch.setattr(limits, "MAX_TOKENS", 2)
    _, admin = await create_token(place.runtime.store, NewToken("root", ["admin"]), by="test")
    agents = [f"agent {n}" for n in range(limits.MAX_TOKEN_AGENTS)]
    wanted = {"name": "a", "roles": ["read"], "agents": agents}
    made = await place.client.post("/v1/tokens", json=wanted, headers=bearer(admin))
    assert (made.status_code, made.json()["agents"]) == (201, agents)
    more = {"name": "b", "roles": ["read"]}
    refused = await place.client.post("/v1/tokens", json=more, headers=bearer(admin))
    assert "there are 2 tokens already" in is_problem(refused, 409)["detail"]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/", 404, None),
        ("GET", "/v1", 404, None),
        ("GET", "/v1/threads/", 404, None),
        ("PUT", "/v1/threads", 405, "GET, HEAD, POST"),
        ("DELETE", "/v1/threads/7", 405, "GET, HEAD"),
        ("HEAD", "/v1/threads/7/messages", 405, "POST"),
        ("OPTIONS", "/v1/interrupts", 405, "GET, HEAD"),
        ("GET", "/v1/tokens/ci", 405, "DELETE"),
        ("PATCH", "/v1/tokens", 405, "GET, HEAD, POST"),
        ("POST", "/healthz", 405, "GET, HEAD"),
        ("POST", "/openapi.json", 405, "GET, HEAD"),
        ("TRACE", "/v1/threads", 405, "GET, HEAD, POST"),
    ],
)
async def test_what_the_framework_refuses_is_a_problem_too(serving, method, path, status, allowed):
    async with serving(Access("s3cret", "token")) as place:
        response = await place.client.request(method, path)
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"
        if method != "HEAD":
            is_problem(response, status)
        assert response.headers.get("allow") == allowed


async def test_head_is_answered_as_get_without_the_body(place):
    thread = (await place.client.post("/v1/threads", json={"message": "hello"})).json()["id"]
    await place.runtime.wait(thread)
    events = f"/v1/threads/{thread}/events"
    paths = ["/v1/threads", f"/v1/threads/{thread}", events, f"/v1/threads/{thread}/export", "/v1/interrupts"]
    paths += [
        "/v1/workers",
        f"/v1/threads/{uuid4()}",
        "/v1/threads?cursor=1",
        "/v1/tokens",
        "/healthz",
        "/readyz",
    ]
    paths += ["/openapi.json", f"{events}?stream=true&until=rest"]
    for path in paths:
        got = await place.client.get(path)
        response = await place.client.head(path)
        assert (response.status_code, response.content) == (got.status_code, b""), path
        for name in ("content-type", "content-length", "www-authenticate", "cache-control"):
            assert response.headers.get(name) == got.headers.get(name), path
    # One without an end leaves nothing open, and the connection to whoever asks next.
    async with asyncio.timeout(5):
        stream = await place.client.head(f"{events}?stream=true")
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert (await place.client.get("/healthz")).status_code == 200
    assert place.runtime.hub.followers == 0


async def test_any_media_type_is_read_as_json_and_answered_as_json(place):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1"):
        headers = {"Content-Type": kind, "Accept": "application/xml"}
        response = await place.client.post("/v1/threads", content=b'{"message":"hello"}', headers=headers)
        assert (response.status_code, response.headers["content-type"]) == (201, "application/json")


async def test_nobody_holds_a_connection_by_saying_or_taking_nothing(place, monkeypatch):
    monkeypatch.setattr("tenuto.limits.HEAD_SECONDS", 0.5)
    paused = (await started(place, "refund"))["id"]
    for number in range(40):
        await place.runtime.send(paused, str(number) * 100_000)
    app = create_app(place.runtime, Access("s3cret-of-ana"), agent="ops")
    listener = listening._listen("127.0.0.1", 0)
    server = listening._Server(app, listener, "127.0.0.1", None)
    serving = asyncio.create_task(server.serve())
    events = f"/v1/threads/{paused}/events"
    try:
        followed = await _say(
            listener, f"GET {events}?stream=true&after=44 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        assert b"replayed" in await followed[0].readuntil(b"replayed")
        held = [
            await _say(listener, text)
            for text in (
                "",
                "GET /healthz HTTP/1.1\r\nHost: loc",
                "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal",
                "POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{",
                f"GET {events} HTTP/1.1\r\nHost: localhost\r\n\r\n",
            )
        ]
        for _ in range(400):
            if len(server.server_state.connections) > 1:
                await asyncio.sleep(0.05)
        assert len(server.server_state.connections) == 1
        await place.runtime.send(paused, "one more")
        assert await followed[0].readuntil(b"one more")  # what waits for something to happen is not held so
        for _, writer in [followed, *held]:
            writer.close()
    finally:
        server.should_exit = True
        await serving


async def _say(listener, text):
    """A connection over which so much was said; of what is answered little is taken unless it is read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(listener.getsockname())
    reader, writer = await asyncio.open_connection(sock=client, limit=4096)
    writer.write(text.encode())
    return reader, writer
