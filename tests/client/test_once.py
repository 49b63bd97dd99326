"""What is sent again has its effect once; and what a token may not do is said."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import httpx2
import pytest
from tests.client.conftest import TOKEN, Asked, says

from tenuto import AccessDenied, Client, ThreadNotFound, limits
from tenuto.events import CancelRequested, InterruptResolved, LimitsExtended, MessageReceived
from tenuto.server.tokens import NewToken, create_token


def losing(url: str) -> Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]:
    """Passes requests on to the server at `url`, and loses the first answer to each change."""
    lost: set[str] = set()

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {name: value for name, value in asked.headers.items() if name != "host"}
        async with httpx2.AsyncClient() as http:
            response = await http.request(asked.method, url + asked.path, headers=headers, content=asked.body)
        key = asked.headers.get("idempotency-key")
        if key is not None and key not in lost:
            lost.add(key)
            writer.close()  # the server has done it, and nobody hears of it
        else:
            kind = response.headers["content-type"]
            await says(response.status_code, response.content, content_type=kind)(asked, writer)

    return answer


async def test_a_change_whose_answer_was_lost_is_made_once(serving, rogue, quick):
    async with serving() as place, rogue(losing(place.url), token=TOKEN) as (server, client):
        thread = await client.start("ops", "two at once", by="ana")
        await place.runtime.wait(thread, 20)
        first, _ = await client.interrupts(thread_id=thread)
        approved = await client.resolve(first.id, "approve", by="ana")
        assert (approved.id, approved.outcome) == (first.id, "approved")
        said = await client.send(thread, "hello", by="ana")
        await client.extend(thread, by="ana", steps=3)
        await client.cancel(thread, by="ana", reason="no time")
        changes = [asked for asked in server.asked if asked.method == "POST"]
        assert len(changes) == 2 * 5
        await place.runtime.wait(thread, 20)
        entries = await place.runtime.events(thread)
        assert (await client.verify(thread)).ok
    for kind in (LimitsExtended, CancelRequested):
        assert sum(isinstance(entry.event, kind) for entry in entries) == 1
    told = [(entry.seq, entry.event.text) for entry in entries if isinstance(entry.event, MessageReceived)]
    assert told == [(2, "two at once"), (said, "hello")]
    decided = [entry.event for entry in entries if isinstance(entry.event, InterruptResolved)]
    assert decided[0] == approved
    assert [event.id for event in decided].count(first.id) == 1
    assert place.shop.refunds == ["17"]


@contextlib.asynccontextmanager
async def holder(place, *roles, agents=()):
    """A client with a token of these roles."""
    _, token = await create_token(place.runtime.store, NewToken("t", roles, agents, 0.0), by="test")
    await asyncio.sleep(limits.TOKEN_SECONDS)
    async with Client(place.url, token=token) as client:
        yield client


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(limits, "TOKEN_SECONDS", 0.02)


async def test_whoever_may_only_decide_learns_what_was_recorded_and_nothing_else(serving, soon):
    async with serving() as place, holder(place, "approve") as client:
        thread = await place.runtime.start("ops", "refund")
        await place.runtime.wait(thread, 20)
        (row,) = await client.interrupts()
        edited = {"order_id": "16", "reason": "damaged"}
        event = await client.resolve(row.id, "edit", by="ana", arguments=edited, digest=row.digest)
        recorded = [entry.event for entry in await place.runtime.events(thread)]
        assert event in recorded
        assert (event.by, event.arguments) == ("ana via t", '{"order_id":"16","reason":"damaged"}')
        for attempt in (
            client.state(thread),
            client.thread(thread),
            client.verify(thread),
            client.wait(thread),
        ):
            with pytest.raises(AccessDenied, match="this needs role read; token t has approve"):
                await attempt
        with pytest.raises(AccessDenied, match="this needs role submit"):
            await client.start("ops", "hello")


async def test_what_is_out_of_a_token_s_scope_is_not_there(serving, soon):
    async with serving() as place, holder(place, "read", "submit", agents=("frugal",)) as client:
        others = await place.runtime.start("ops", "hello")
        own = await client.start("frugal", "hello")
        await client.wait(own, 20)
        assert [row.id for row in await client.threads()] == [own]
        assert (await client.thread(own)).agent == "frugal"
        for attempt in (client.thread(others), client.state(others), client.send(others, "hello")):
            with pytest.raises(ThreadNotFound, match=others):
                await attempt
        with pytest.raises(AccessDenied, match="frugal"):
            await client.start("ops", "hello")
