"""Following over connections that break: each event once and in order, and never silence for ever."""

import asyncio
import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.conftest import TOKEN, Asked, hangs_up, says, streams

from tenuto import Client, StoreError, ThreadNotFound, limits
from tenuto.client.following import _item
from tenuto.errors import Undecodable
from tenuto.events import Entry, MessageReceived
from tenuto.messages import AttemptFailed, ReplySoFar, TextDelta
from tenuto.models.sse import EventStream
from tenuto.stream import Replayed

THREAD = "0b6d6d0e-5f5c-4f0e-9f66-4c8f3c1f7a11"
AT = "2026-03-01T12:00:00.250Z"
AT_MS = 1_772_366_400_250
REPLAYED = b'event: replayed\ndata: {"seq":2}\n\n'
RESTED = b'event: rested\ndata: {"seq":4}\n\n'
ALIVE = b":\n\n"


def event(seq, text="hello"):
    data = f'{{"seq":{seq},"at":"{AT}","type":"message_received","text":"{text} {seq}"}}'
    return f"id: {seq}\nevent: message_received\ndata: {data}\n\n".encode()


def entry(seq, text="hello"):
    return Entry(seq, AT_MS, MessageReceived(f"{text} {seq}"))


def delta(text):
    return f'event: text_delta\ndata: {{"type":"text_delta","text":"{text}"}}\n\n'.encode()


async def followed(client, after=0, rest=True):
    return [item async for item in client.follow(THREAD, after, rest=rest)]


async def test_what_breaks_off_is_taken_up_behind_the_last_event(rogue, quick):
    async with rogue(
        streams(b"retry: 1000\n\n", event(3), event(4)[:-9]),
        streams(event(4), b'event: replayed\ndata: {"seq":4}\n\n', delta("hel")),
        says(503, retry_after="0"),
        hangs_up,
        streams(b'event: replayed\ndata: {"seq":4}\n\n', delta("hello 5"), event(5), RESTED),
    ) as (server, client):
        assert await followed(client, 2) == [
            entry(3),
            entry(4),
            Replayed(4),
            TextDelta("hel"),
            ReplySoFar(""),
            TextDelta("hello 5"),
            entry(5),
        ]
    path = f"/v1/threads/{THREAD}/events?until=rest"
    assert [(each.path, each.headers.get("last-event-id")) for each in server.asked] == [
        (f"{path}&after=2", None),
        (path, "3"),
        (path, "4"),
        (path, "4"),
        (path, "4"),
    ]
    assert {each.headers["accept"] for each in server.asked} == {"text/event-stream"}


async def test_what_was_shown_of_a_reply_is_void_when_its_attempt_failed_meanwhile(rogue, quick):
    replayed = b'event: replayed\ndata: {"seq":1}\n\n'
    failed = b'event: attempt_failed\ndata: {"type":"attempt_failed","error":"x","wait_seconds":0}\n\n'
    so_far = b'event: reply_so_far\ndata: {"type":"reply_so_far","text":"hello"}\n\n'
    async with rogue(
        streams(event(1), replayed, delta("stale")),
        streams(replayed, delta("new")),
        streams(replayed, so_far),
        streams(replayed, failed),
        streams(replayed, event(2), RESTED),
    ) as (_, client):
        told = await followed(client)
    assert told[:-2] == [
        entry(1),
        Replayed(1),
        TextDelta("stale"),
        ReplySoFar(""),
        TextDelta("new"),
        ReplySoFar("hello"),
    ]
    assert isinstance(told[-2], AttemptFailed)
    assert told[-1] == entry(2)


async def test_an_event_that_comes_again_is_not_told_again_and_one_left_out_is_asked_for(rogue, quick):
    async with rogue(
        streams(event(1), event(2), event(1), event(4)),
        streams(event(2), event(3), event(4), RESTED),
    ) as (server, client):
        assert await followed(client) == [entry(1), entry(2), entry(3), entry(4), Replayed(4)]
    assert server.asked[1].headers["last-event-id"] == "2"


async def test_a_client_that_comes_back_to_a_thread_at_rest_is_done(rogue, quick):
    async with rogue(streams(event(1)), says(204)) as (_, client):
        assert await followed(client) == [entry(1), Replayed(1)]


async def test_what_a_newer_server_tells_live_is_passed_over(rogue, quick):
    newer = b'event: mood_delta\ndata: {"type":"mood_delta","mood":"fine"}\n\nevent: x\ndata: 17\n\n'
    async with rogue(streams(event(1), newer, RESTED)) as (_, client):
        assert await followed(client) == [entry(1), Replayed(1)]


async def test_an_event_of_a_newer_version_is_an_error_and_not_left_out(rogue, quick):
    newer = f'id: 1\nevent: of_tomorrow\ndata: {{"seq":1,"at":"{AT}","type":"of_tomorrow"}}\n\n'.encode()
    async with rogue(streams(newer, event(2), RESTED)) as (_, client):
        with pytest.raises(Undecodable):
            await followed(client)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([hangs_up], "cannot be reached"),
        ([says(503)], "says 503"),
        ([streams(event(1)), hangs_up], "cannot be reached"),
        ([streams(event(1), REPLAYED)], "ended the stream"),
        ([streams(event(2))], "left out event 1"),
        ([says(200, b"{}", content_type="application/json")], "no event stream"),
        ([streams(event(1, "x" * 300))], "too large"),
        ([streams(b'id: 1\nevent: message_received\ndata: {"seq":1,"at"\n\n')], "no event"),
        ([streams(b'id: 1\nevent: message_received\ndata: {"seq":1,"at":"noon","type":"x"}\n\n')], "no"),
    ],
)
async def test_a_server_that_stays_away_or_talks_nonsense_is_an_error(
    rogue, quick, monkeypatch, answers, words
):
    monkeypatch.setattr(limits, "MAX_EVENT_BYTES", 200)
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 100)
    async with rogue(*answers) as (server, client):
        with pytest.raises(StoreError, match=words):
            await followed(client)
    assert len(server.asked) <= limits.CLIENT_STREAM_ATTEMPTS + 1


async def test_a_silent_connection_is_given_up_and_an_idle_one_is_not(rogue, quick, monkeypatch):
    monkeypatch.setattr(limits, "CLIENT_SILENCE_SECONDS", 0.3)
    over = asyncio.Event()

    async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await over.wait()

    async def idle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        for _ in range(8):
            await asyncio.sleep(0.1)
            writer.write(ALIVE)
        writer.write(event(2) + RESTED)
        await writer.drain()

    async with rogue(streams(event(1), and_then=silent), streams(and_then=idle)) as (server, client):
        assert await followed(client) == [entry(1), entry(2), Replayed(2)]
        assert len(server.asked) == 2
        over.set()
    async with rogue(streams(event(1), and_then=silent)) as (server, client):
        over.clear()
        items = client.follow(THREAD)
        assert await anext(items) == entry(1)
        monkeypatch.setattr(limits, "CLIENT_SILENCE_SECONDS", 0.05)
        with pytest.raises(StoreError, match="cannot be reached"):
            await anext(items)
        over.set()


async def test_whoever_stops_following_leaves_no_connection(serving):
    async with serving() as place, Client(place.url, token=TOKEN) as client:
        thread = await client.start("ops", "slow")
        async with contextlib.aclosing(client.follow(thread)) as items:
            assert (await anext(items)).seq == 1
        place.shop.gate.set()
        assert (await client.wait(thread, 20)).answer == "open"
        with pytest.raises(ThreadNotFound):
            await anext(client.follow(THREAD))


async def test_wait_gives_what_is_true_when_its_time_is_over(serving):
    async with serving() as place, Client(place.url, token=TOKEN) as client:
        thread = await client.start("ops", "slow")
        assert (await client.wait(thread, 0.2)).status == "running"
        assert (await client.wait(thread, 0)).status == "running"
        place.shop.gate.set()
        assert (await client.wait(thread)).status == "completed"


class Cutting:
    """A proxy that lets a few bytes through, then breaks the connection; the last one it lets be."""

    def __init__(self, port: int, seed: int, cuts: int) -> None:
        self._port, self._random, self._cuts = port, random.Random(seed), cuts

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_server = await asyncio.open_connection("127.0.0.1", self._port)

        async def forth() -> None:
            while data := await reader.read(65536):
                to_server.write(data)

        task = asyncio.create_task(forth())
        self._cuts -= 1
        left = self._random.randrange(200, 3000) if self._cuts >= 0 else 1 << 30
        with contextlib.suppress(ConnectionError):
            while left > 0 and (data := await there.read(min(left, 65536))):
                writer.write(data)
                await writer.drain()
                left -= len(data)
        task.cancel()
        for each in (writer, to_server):
            each.close()
            with contextlib.suppress(ConnectionError):
                await each.wait_closed()


@pytest.mark.parametrize("seed", range(4))
async def test_a_connection_that_is_cut_at_random_bytes_loses_and_doubles_nothing(
    serving, quick, monkeypatch, seed
):
    monkeypatch.setattr(limits, "CLIENT_STREAM_ATTEMPTS", 40)
    monkeypatch.setattr(limits, "CLIENT_ATTEMPTS", 40)
    async with serving() as place:
        cutting = Cutting(int(place.url.rpartition(":")[2]), seed, cuts=30)
        serving_tasks = set()

        async def serve(reader, writer):
            serving_tasks.add(asyncio.current_task())
            await cutting.serve(reader, writer)

        proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with Client(url, token=TOKEN) as client:
            thread = await place.runtime.start("ops", "for ever")
            items = [item async for item in client.follow(thread, rest=True)]
            state = await client.wait(thread, 20)
        proxy.close()
        await asyncio.gather(*serving_tasks)
        assert [item for item in items if isinstance(item, Entry)] == await place.runtime.events(thread)
        assert sum(isinstance(item, Replayed) for item in items) == 1
        assert state == await place.runtime.state(thread)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=60))
def test_frames_are_read_the_same_however_they_are_cut(sizes):
    body = b"retry: 1000\n\n" + event(1, "ü") + ALIVE + REPLAYED + delta("日") + event(2) + RESTED
    stream, items, place = EventStream(), [], 0
    for size in [*sizes, len(body)]:
        items += [_item(frame) for frame in stream.feed(body[place : place + size])]
        place += size
    assert items[:4] == [entry(1, "ü"), Replayed(2), TextDelta("日"), entry(2)]
    assert len(items) == 5
