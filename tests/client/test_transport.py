"""Requests when all does not go well: what is sent again, what is an error, and what it says."""

import asyncio
import json
import socket

import pytest
from tests.client.conftest import hangs_up, says, streams

from tenuto import (
    AccessDenied,
    AlreadyDecided,
    Client,
    ConfigurationError,
    Conflict,
    InvalidInput,
    Stale,
    StoreError,
    ThreadNotFound,
    limits,
)
from tenuto.errors import Undecodable

THREAD = "0b6d6d0e-5f5c-4f0e-9f66-4c8f3c1f7a11"
SEEN = json.dumps({"id": THREAD, "head_seq": 3, "seq": 3}).encode()
EMPTY = b'{"events":[],"next":null}'


def problem(status, kind="about:blank", detail="no", **more):
    body = {"type": kind, "title": "T", "status": status, "detail": detail, **more}
    return says(status, json.dumps(body).encode(), content_type="application/problem+json")


# -- again -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [hangs_up, says(429), says(502), says(503), says(504, b"<html>")])
async def test_a_change_is_sent_again_with_the_same_key(rogue, quick, trouble):
    async with rogue(trouble, trouble, says(200, SEEN), says(200, SEEN), token="t0ken") as (server, client):
        assert await client.send(THREAD, "hello", by="ana") == 3
        assert await client.send(THREAD, "hello", by="ana") == 3
    first, *again, other = server.asked
    assert [(each.method, each.path) for each in server.asked] == [
        ("POST", f"/v1/threads/{THREAD}/messages")
    ] * 4
    assert json.loads(first.body) == {"text": "hello", "by": "ana"}
    assert first.headers["authorization"] == "Bearer t0ken"
    assert [(each.body, each.headers["idempotency-key"]) for each in again] == [
        (first.body, first.headers["idempotency-key"])
    ] * 2
    assert other.headers["idempotency-key"] != first.headers["idempotency-key"]


async def test_an_append_id_is_the_key_of_whoever_sends_it(rogue):
    async with rogue(says(200, SEEN)) as (server, client):
        for append_id in ("one ü", "one ü", "two"):
            await client.cancel(THREAD, append_id=append_id)
    one, same, two = (each.headers["idempotency-key"] for each in server.asked)
    assert one == same != two
    assert one.isascii()


async def test_it_waits_as_long_as_it_is_told_to(rogue, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    busy = says(503, retry_after="7")
    async with rogue(busy, says(429, retry_after="3600"), busy, says(200, EMPTY)) as (_, client):
        monkeypatch.setattr("tenuto.client.transport.asyncio.sleep", sleep)
        assert await client.events(THREAD) == []
    assert [seconds for seconds in slept if seconds] == [7.0, limits.CLIENT_RETRY_LONGEST_SECONDS, 7.0]


async def test_a_request_that_is_still_being_answered_is_waited_for(rogue, quick):
    running = problem(409, detail="still being answered")
    again = says(409, b"{}", retry_after="0")
    async with rogue(again, says(200, SEEN)) as (server, client):
        await client.cancel(THREAD)
    assert len(server.asked) == 2
    async with rogue(running) as (server, client):
        with pytest.raises(Conflict, match="still being answered"):
            await client.cancel(THREAD)
    assert len(server.asked) == 1


async def test_it_gives_up_after_a_few_attempts(rogue, quick):
    async with rogue(problem(503, detail="the store does not answer")) as (server, client):
        with pytest.raises(StoreError, match=f"the server {server.url} says 503: the store does not answer"):
            await client.thread(THREAD)
    assert len(server.asked) == limits.CLIENT_ATTEMPTS


async def test_a_server_that_is_not_there_is_one_clear_line(quick):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with Client(url) as client:
        with pytest.raises(StoreError, match=f"the server {url} cannot be reached: .*onnect"):
            await client.start("ops", "hello")


async def test_a_server_that_says_nothing_is_given_up(rogue, quick, monkeypatch):
    monkeypatch.setattr(limits, "CLIENT_ANSWER_SECONDS", 0.05)
    stopped = asyncio.Event()

    async def says_nothing(asked, writer):
        await stopped.wait()

    async with rogue(says_nothing) as (server, client):
        with pytest.raises(StoreError, match="cannot be reached: no answer in time"):
            await client.thread(THREAD)
        stopped.set()
    assert len(server.asked) == limits.CLIENT_ATTEMPTS


async def test_more_streams_than_connections_are_an_error_in_the_end(rogue, quick, monkeypatch):
    monkeypatch.setattr(limits, "CLIENT_CONNECTIONS", 1)
    monkeypatch.setattr(limits, "CLIENT_ANSWER_SECONDS", 0.05)
    over = asyncio.Event()

    async def goes_on(asked, writer):
        await over.wait()

    event = b'data: {"seq":1,"at":"2026-03-01T12:00:00Z","type":"message_received","text":"x"}\n\n'
    async with rogue(streams(event, and_then=goes_on)) as (_, client):
        items = client.follow(THREAD)
        assert (await anext(items)).seq == 1
        with pytest.raises(StoreError, match="cannot be reached"):
            await client.thread(THREAD)
        await items.aclose()
        over.set()


async def test_an_answer_without_end_is_not_read_to_it(rogue, monkeypatch):
    monkeypatch.setattr(limits, "MAX_ANSWER_BYTES", 1000)
    async with rogue(says(200, b"x" * 1001)) as (_, client):
        with pytest.raises(StoreError, match="more than 1000 bytes"):
            await client.thread(THREAD)


# -- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (problem(404, "urn:tenuto:thread-not-found", "no thread x"), ThreadNotFound, "^no thread x$"),
        (problem(409, "urn:tenuto:stale", "it is another call"), Stale, "^it is another call$"),
        (problem(409, "urn:tenuto:of-tomorrow", "it was too late"), Conflict, "^it was too late$"),
        (problem(422, detail="limit: too many"), InvalidInput, "^limit: too many$"),
        (problem(413, detail="too large"), InvalidInput, "^too large$"),
        (problem(500, "urn:tenuto:undecodable", "cannot be read"), Undecodable, "^cannot be read$"),
        (
            problem(401, detail="a token is needed"),
            AccessDenied,
            r"refuses: a token is needed; no token was sent",
        ),
        (problem(403, detail="this needs role admin"), AccessDenied, "refuses: this needs role admin"),
        (problem(404, detail="Not Found"), StoreError, "knows no /v1/threads: it is another server"),
        (says(404, b"<html>nginx"), StoreError, "knows no /v1/threads: it is another server"),
        (problem(500, detail="its log says why"), StoreError, "says 500: its log says why"),
        (says(418), StoreError, "says 418: Said"),
        (
            says(307, location="https://elsewhere/"),
            ConfigurationError,
            "redirects to https://elsewhere/; use that",
        ),
        (says(200, b"<html>Welcome"), StoreError, "is no Tenuto server, or one of another version"),
        (says(200, b'{"id":"x"}'), StoreError, "is no Tenuto server, or one of another version"),
        (says(200, b"\xff\xfe"), StoreError, "is no Tenuto server, or one of another version"),
    ],
)
async def test_a_refusal_is_raised_once_as_what_it_is(rogue, answer, kind, words):
    async with rogue(answer) as (server, client):
        with pytest.raises(kind, match=words) as raised:
            await client.thread(THREAD)
    assert type(raised.value) is kind
    assert len(server.asked) == 1


async def test_a_decision_that_came_too_late_says_who_what_and_when(rogue):
    facts = {"interrupt_id": "i", "outcome": "approved", "by": "bo", "at": "2026-03-01T12:00:00.250Z"}
    async with rogue(problem(409, "urn:tenuto:already-decided", "too late", **facts)) as (_, client):
        with pytest.raises(AlreadyDecided, match="too late") as raised:
            await client.resolve("i", "approve", by="ana")
    assert raised.value.facts == {
        "interrupt_id": "i",
        "outcome": "approved",
        "by": "bo",
        "at_ms": 1_772_366_400_250,
    }


async def test_a_token_is_shown_nowhere(rogue, quick):
    async with rogue(problem(401), token="s3cret") as (_, client):
        with pytest.raises(AccessDenied) as raised:
            await client.thread(THREAD)
        assert "s3cret" not in f"{raised.value!r} {raised.value} {client!r} {vars(client)!r}"


# -- where -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8000",
        "ftp://host",
        "http://",
        "http://h?x=1",
        "http://h#x",
        "http://h:x",
        "http://a:secret@h",
    ],
)
def test_a_url_that_is_none_is_refused_without_its_secrets(url):
    with pytest.raises(ConfigurationError) as raised:
        Client(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("token", ["two words", "line\nfeed", "ü", "nul\0"])
def test_a_token_that_could_not_be_sent_is_refused(token):
    with pytest.raises(ConfigurationError) as raised:
        Client("http://host", token=token)
    assert token not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["https://host/agents", "https://host/agents/", "https://host/agents/v1", " https://host/agents/v1/ "],
)
def test_a_server_may_be_below_a_path(url):
    assert Client(url).url == "https://host/agents"


async def test_the_environment_names_a_server(rogue):
    async with rogue(says(200, EMPTY)) as (server, _):
        environment = {"TENUTO_URL": server.url, "TENUTO_TOKEN": " t0ken\n"}
        async with Client.from_environment(environment) as client:
            assert await client.events(THREAD, 5) == []
    assert server.asked[0].headers["authorization"] == "Bearer t0ken"
    assert server.asked[0].path == f"/v1/threads/{THREAD}/events?after=5&limit=1000"
    for nothing in ({}, {"TENUTO_URL": " "}):
        with pytest.raises(ConfigurationError, match="TENUTO_URL"):
            Client.from_environment(nothing)


async def test_a_client_that_is_not_open_says_so():
    client = Client("http://host")
    with pytest.raises(ConfigurationError, match="async with"):
        await client.thread(THREAD)
    async with client:
        pass
    with pytest.raises(ConfigurationError, match="async with"):
        await client.thread(THREAD)
