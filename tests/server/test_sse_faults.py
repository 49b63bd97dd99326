"""Server-sent events when connections, readers, the store or the server fail."""

import asyncio
import contextlib
import random
import signal
import socket
import time

import httpx2
import pytest
from tests.server.test_process import process
from tests.server.test_sse import SSE, Parser, Talker, follow, logged, nobody_follows, pages, until
from tests.server.test_v1 import is_problem, started

from tenuto import limits
from tenuto.errors import StoreError


async def cut_and_come_back(place, thread_id, rng):
    """All that a client is told whose connections break at random bytes, and how many they were."""
    told, last_id, connections = [], None, 0
    while not told or told[-1][0] != "rested":
        connections += 1
        parser = Parser()
        left = int(rng.expovariate(1 / rng.choice([200, 2_000, 20_000])))
        headers = SSE | ({"Last-Event-ID": last_id} if last_id else {})
        path = f"/v1/threads/{thread_id}/events?until=rest"
        async with place.client.stream("GET", path, headers=headers) as response:
            if response.status_code == 204:  # the end itself was cut, and all events were there before it
                break
            assert response.status_code == 200
            async for data in response.aiter_bytes():
                told += parser.feed(data[:left])
                left -= len(data)
                if left <= 0:
                    break
        last_id = parser.last_id or last_id
    return told, connections


@pytest.mark.parametrize("seed", range(3))
async def test_connections_that_break_at_random_bytes_lose_and_double_nothing(serving, seed):
    talker = Talker(steps=5, deltas=40, pause=0.001)
    async with serving(model=talker) as place:
        threads = [await place.runtime.start("ops", f"go {number}") for number in range(6)]
        rngs = [random.Random(f"{seed} {number}") for number in range(3 * len(threads))]
        clients = [
            cut_and_come_back(place, threads[number % len(threads)], rng) for number, rng in enumerate(rngs)
        ]
        results = await asyncio.gather(*clients)
        whole = {thread_id: await pages(place, thread_id) for thread_id in threads}
        await until(lambda: nobody_follows(place))
    for number, (told, _) in enumerate(results):
        events = logged(told)
        assert events == whole[threads[number % len(threads)]], f"seed {seed}, client {number}"
        # thread_started and message_received; per step a reply, and the result of its call or the end
        assert [event["seq"] for event in events] == list(range(1, 2 + 2 * 6 + 1))
        assert events[-1]["type"] == "thread_completed"
        replies = [event["text"] for event in events if event["type"] == "model_replied"]
        assert replies == [talker.said(step) for step in range(6)]
        shown = ""
        for kind, _, data in told:
            if kind == "text_delta":
                shown += data["text"]
            elif kind in ("reply_so_far", "replayed"):
                shown = data.get("text", "")
            elif kind == "model_replied":
                assert data["text"].startswith(shown)  # never a text with a hole
                shown = ""
    assert sum(connections for _, connections in results) > 3 * len(clients)
    assert {"text_delta", "reply_so_far", "replayed"} <= {kind for told, _ in results for kind, _, _ in told}


async def test_many_who_follow_one_thread_are_told_the_same(serving):
    talker = Talker(steps=3, deltas=20)
    talker.gate.clear()
    async with serving(model=talker) as place:
        thread_id = await place.runtime.start("ops", "go")
        async with httpx2.AsyncClient(
            base_url=place.url, timeout=30, limits=httpx2.Limits(max_connections=50)
        ) as place.client:
            listening = [asyncio.create_task(follow(place, thread_id)) for _ in range(50)]
            await until(lambda: place.runtime.hub.followers == 50)
            talker.gate.set()
            told = await asyncio.gather(*listening)
            whole = await pages(place, thread_id)
        assert nobody_follows(place)
    assert logged(told[0]) == whole
    assert sum(kind == "text_delta" for kind, _, _ in told[0]) == 4 * 21
    assert all(one == told[0] for one in told)


# -- readers -----------------------------------------------------------------------------------------


def connected(place, path, **headers):
    """A socket of a client that asked and reads nothing yet, with little room for what it does not read."""
    url = httpx2.URL(place.url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((url.host, url.port))
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {url.host}:{url.port}",
        *(f"{k}: {v}" for k, v in headers.items()),
    ]
    client.sendall("\r\n".join([*lines, "", ""]).encode())
    return client


async def received(client, pause=0.0):
    """The body until the connection ends, and whether the body ended before it (RFC 9112, section 7.1)."""
    client.setblocking(False)
    data, body = b"", b""
    while part := await asyncio.get_running_loop().sock_recv(client, 65_536):
        data += part
        if data.endswith(b"\r\n0\r\n\r\n"):
            break
        await asyncio.sleep(pause)
    client.close()
    head, _, data = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    while data:
        size, _, data = data.partition(b"\r\n")
        if size == b"0":
            return body, True
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return body, False


async def test_a_client_that_leaves_leaves_no_follower(place):
    thread_id = (await place.client.post("/v1/threads", json={"message": "slow"})).json()["id"]
    await until(lambda: place.shop.gate._waiters)  # nothing else begins from here on
    before = asyncio.all_tasks()
    path = f"/v1/threads/{thread_id}/events"
    clients = [connected(place, path, **SSE) for _ in range(5)]
    await until(lambda: place.runtime.hub.followers == 5)
    for client in clients[:3]:
        client.close()
    await until(lambda: place.runtime.hub.followers == 2)
    # One ends with a reset, as a process that was killed can.
    clients[3].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    clients[3].close()
    clients[4].shutdown(socket.SHUT_WR)
    await until(lambda: nobody_follows(place))
    clients[4].close()
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_reader_that_is_stuck_slows_nobody_is_dropped_and_can_resume(serving, monkeypatch, caplog):
    monkeypatch.setattr(limits, "STREAM_WRITE_SECONDS", 2.0)
    talker = Talker(steps=5, deltas=10, text="x" * 200_000)
    talker.gate.clear()
    async with serving(model=talker) as place:
        thread_id = await place.runtime.start("ops", "go")
        client = connected(place, f"/v1/threads/{thread_id}/events", **SSE)
        await until(lambda: place.runtime.hub.followers)
        talker.gate.set()
        state = await place.runtime.wait(thread_id, 30)
        assert state.answer == talker.said(5)
        assert place.runtime.hub.followers  # nobody waited until the reader was dropped
        # Of 24 MB of deltas and replies: what the connection buffers, and a bounded backlog.
        (follower,) = place.runtime.hub._followed[thread_id].followers
        assert follower._held == sum(size for _, size in follower._items) <= limits.MAX_LIVE_BACKLOG_BYTES
        assert len(follower._items) <= 2
        await until(lambda: nobody_follows(place))
        body, whole = await received(client)
        assert not whole
        parser = Parser()
        told = list(parser.feed(body))
        assert parser.rest or parser.fields  # in the middle of something
        rest = await follow(place, thread_id, **{"Last-Event-ID": parser.last_id or ""})
        assert logged(told) + logged(rest) == await pages(place, thread_id)
    assert "without completing" not in caplog.text


async def test_a_slow_reader_that_goes_on_reading_gets_all(serving, monkeypatch):
    monkeypatch.setattr(limits, "STREAM_WRITE_SECONDS", 1.0)
    async with serving(model=Talker(steps=5, deltas=10, text="x" * 50_000)) as place:
        thread_id = await place.runtime.start("ops", "go")
        await place.runtime.wait(thread_id, 30)
        client = connected(place, f"/v1/threads/{thread_id}/events?until=rest", **SSE)
        body, whole = await received(client, pause=0.002)
        assert whole
        told = list(Parser().feed(body))
        assert told[-1][0] == "rested"
        assert logged(told) == await pages(place, thread_id)


async def test_there_are_so_many_streams_and_no_more(place, monkeypatch):
    monkeypatch.setattr(limits, "MAX_STREAMS", 2)
    state = await started(place, "hello")
    path = f"/v1/threads/{state['id']}/events"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            response = await stack.enter_async_context(place.client.stream("GET", path, headers=SSE))
            assert response.status_code == 200
        refused = await place.client.get(path, headers=SSE)
        is_problem(refused, 503)
        assert refused.headers["retry-after"] == "5"
        assert (await place.client.get(path)).status_code == 200  # pages are no streams
    await until(lambda: nobody_follows(place))
    assert logged(await follow(place, state["id"])) == await pages(place, state["id"])


# -- the server --------------------------------------------------------------------------------------


async def test_what_cannot_be_read_breaks_the_stream_off(place, monkeypatch, caplog):
    state = await started(place, "for ever")
    monkeypatch.setattr(limits, "MAX_PAGE_ROWS", 4)
    for name, path in (("read", "events?until=rest"), ("stored", "export")):
        method = getattr(place.runtime.store, name)

        async def fails_later(thread_id, after=0, limit=None, method=method):
            if after >= 4:
                raise StoreError("disk image is malformed at /secret/place")
            return await method(thread_id, after, limit)

        with monkeypatch.context() as patch:
            patch.setattr(place.runtime.store, name, fails_later)
            body, whole = await received(connected(place, f"/v1/threads/{state['id']}/{path}", **SSE))
        assert not whole
        assert b"secret" not in body
        assert b"rested" not in body
        assert "malformed" in caplog.text
        assert "without completing" not in caplog.text
        caplog.clear()
        await until(lambda: nobody_follows(place))


def streams():
    """Each has a task that hears that its client is gone."""
    return [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "gone"]


async def test_the_stop_ends_what_is_read_and_breaks_off_what_is_not(serving):
    async with serving(model=Talker(steps=2, deltas=10, text="x" * 200_000)) as place:
        thread_id = await place.runtime.start("ops", "go")
        await place.runtime.wait(thread_id, 30)
        path = f"/v1/threads/{thread_id}"
        stuck = connected(place, f"{path}/events", **SSE)
        export = connected(place, f"{path}/export")
        parser, told = Parser(), []
        async with place.client.stream("GET", f"{path}/events", headers=SSE) as response:
            async for data in response.aiter_bytes():  # raises when the body is not ended
                told += parser.feed(data)
                if told and told[-1][0] == "replayed":
                    assert place.runtime.hub.followers == 2
                    place.stopping.set()
        await until(lambda: len(streams()) == 1)  # the export
        assert logged(told) == await pages(place, thread_id)
        assert told[-1][0] == "replayed"  # it did not rest: it was stopped
        _, whole = await received(stuck)
        assert not whole
        # What has an end comes to it.
        lines, whole = await received(export)
        assert whole
        assert len(lines.splitlines()) == len(logged(told))


async def test_the_server_s_stop_ends_streams_and_its_death_breaks_them_off(tmp_path):
    told, parser = [], Parser()

    async def hear(client, path, kind):
        headers = SSE | ({"Last-Event-ID": parser.last_id} if parser.last_id else {})
        async with client.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200
            async for data in response.aiter_bytes():
                told.extend(parser.feed(data))
                if told and told[-1][0] == kind:
                    return

    async with process(tmp_path) as (url, child), httpx2.AsyncClient(base_url=url, timeout=30) as client:
        state = (await client.post("/v1/threads", json={"message": "rest 1"})).json()
        path = f"/v1/threads/{state['id']}/events"
        await hear(client, path, "replayed")
        listening = asyncio.create_task(hear(client, path, "never"))
        await asyncio.sleep(0.2)
        child.kill()
        with pytest.raises(httpx2.TransportError):
            await listening
    parser.rest, parser.fields = b"", {}
    async with process(tmp_path) as (url, child), httpx2.AsyncClient(base_url=url, timeout=30) as client:
        listening = asyncio.create_task(hear(client, path, "never"))
        headers = {"Prefer": "wait=20"}
        await client.post(f"{path.removesuffix('events')}extend", json={"steps": 1}, headers=headers)
        # The thread rests and the stream goes on; the stop ends it without a break.
        begun = time.perf_counter()
        child.send_signal(signal.SIGTERM)
        await listening
        assert await asyncio.wait_for(child.wait(), 20) == 0
        assert time.perf_counter() - begun < 5
        assert (await child.stderr.read()).decode() == ""
    events = logged(told)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "thread_completed"
    assert "rested" not in [kind for kind, _, _ in told]
