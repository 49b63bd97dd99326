"""A thousand subscribers of a server process: nothing is lost, and readers that are stuck harm nobody."""

import asyncio
import json
import socket
from pathlib import Path

import httpx2
import pytest
from tests.server.talking import ask, rested, said, talking
from tests.server.test_sse import Parser, logged

from tenuto.server.files import make_room_for_connections

SUBSCRIBERS, THREADS, STUCK = 1_000, 100, 20
STEPS, DELTAS = 1, 5
EVENTS = 1 + 2 * STEPS + 2  # of a turn: the message, replies and results, the answer and the end
ASK = "GET /v1/threads/{}/events HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n"


class Subscriber(asyncio.Protocol):
    """Follows one thread on a connection of its own; `told` is all that it was told."""

    def __init__(self, host, thread_id):
        self.thread_id = thread_id
        self.told = []
        self.ends = 0
        self.replayed = False
        self.changed = asyncio.Event()
        self.lost = False
        self._ask = ASK.format(thread_id, host).encode()
        self._parser = Parser()
        self._rest = b""
        self._head = True

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self._ask)

    def data_received(self, data):
        data = self._rest + data
        if self._head:
            head, end, rest = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = data
                return
            assert head.startswith(b"HTTP/1.1 200"), head
            self._head, data = False, rest
        while True:
            size, end, rest = data.partition(b"\r\n")
            if not end or len(rest) < int(size, 16) + 2:
                break
            told = list(self._parser.feed(rest[: int(size, 16)]))
            self.told += told
            for kind, _, _ in told:
                self.replayed = self.replayed or kind == "replayed"
                self.ends += kind == "thread_completed"
            data = rest[int(size, 16) + 2 :]
        self._rest = data
        self.changed.set()

    def connection_lost(self, error):
        self.lost = True
        self.changed.set()

    async def until(self, condition):
        while not (condition(self) or self.lost):
            self.changed.clear()
            await self.changed.wait()
        assert condition(self), "the connection was lost"


async def subscribe(url, thread_ids):
    loop, place, subscribers = asyncio.get_running_loop(), httpx2.URL(url), []
    for thread_id in thread_ids:
        one = Subscriber(place.host, thread_id)
        await loop.create_connection(lambda one=one: one, place.host, place.port)
        subscribers.append(one)
    await asyncio.gather(*(one.until(lambda one: one.replayed) for one in subscribers))
    return subscribers


def stuck_reader(url, thread_id):
    """Asks and reads nothing, with little room for what it does not read."""
    place, client = httpx2.URL(url), socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((place.host, place.port))
    client.sendall(ASK.format(thread_id, place.host).encode())
    client.setblocking(False)
    return client


async def all_of(client):
    """What had arrived before the server broke off."""
    size = 0
    try:
        while part := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            size += len(part)
    except ConnectionError:
        pass
    client.close()
    return size


def memory_bytes(pid):
    """What a process has for itself; 0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))


def check(one, turns):
    """Every event once and in order, and what was shown of each reply is its beginning."""
    events = logged(one.told)
    assert [event["seq"] for event in events] == list(range(1, 2 + turns * EVENTS))
    shown, replies, past = "", [], True
    for kind, _, data in one.told:
        past = past and kind != "replayed"
        if kind == "text_delta":
            assert not past
            shown += data["text"]
        elif kind == "reply_so_far":
            shown = data["text"]
        elif kind == "model_replied":
            assert data["text"].startswith(shown)
            replies.append(data["text"])
            shown = ""
    assert replies == turns * [said(step, DELTAS) for step in range(STEPS + 1)]
    assert shown == ""
    return json.dumps(events)


async def test_a_thousand_subscribers_on_a_hundred_threads_lose_nothing_beside_stuck_readers(tmp_path):
    make_room_for_connections()  # here as well: these are the other ends
    talk = f"{STEPS} {DELTAS} 5 500"
    async with talking(tmp_path, STREAM_WRITE_SECONDS="1.0", KEEP_ALIVE_SECONDS="5.0") as (client, child):
        url = str(client.base_url)
        threads = await asyncio.gather(*(ask(client, talk) for _ in range(THREADS)))
        # More than the buffers of a connection hold, so that who does not read it is stuck.
        loud = await ask(client, "30 1 0 250000")
        await asyncio.gather(*(rested(client, thread_id) for thread_id in (*threads, loud)))
        subscribers = await subscribe(url, [threads[n % THREADS] for n in range(SUBSCRIBERS)])
        before = memory_bytes(child.pid)
        stuck = [stuck_reader(url, loud) for _ in range(STUCK)]
        try:
            await asyncio.gather(*(ask(client, talk, thread_id) for thread_id in threads))
            await asyncio.gather(*(one.until(lambda one: one.ends == 2) for one in subscribers))
            # 20 readers of 7.5 MB each; what waits for them is bounded, and less than what they asked for.
            assert memory_bytes(child.pid) - before < STUCK * 2_500_000
            sizes = await asyncio.gather(*(all_of(one) for one in stuck))
        finally:
            for one in stuck:
                one.close()
            for one in subscribers:
                one.transport.close()
    assert all(0 < size < 30 * 250_000 for size in sizes)
    told = {}
    for one in subscribers:
        told.setdefault(one.thread_id, set()).add(check(one, 2))
    assert {len(ways) for ways in told.values()} == {1}  # all who follow a thread are told the same
    assert sum(len(logged(one.told)) for one in subscribers) == SUBSCRIBERS * (1 + 2 * EVENTS)


@pytest.mark.parametrize("limit", ["MAX_STREAMS", "MAX_HTTP_CONNECTIONS"])
async def test_what_is_too_much_is_refused_and_has_room_later(tmp_path, limit):
    async with talking(tmp_path, **{limit: "24"}) as (client, _):
        most = 24 if limit == "MAX_STREAMS" else 20
        thread_id = await ask(client, "0 1 0 0")
        await rested(client, thread_id)
        subscribers = await subscribe(str(client.base_url), [thread_id] * most)
        path = f"/v1/threads/{thread_id}/events"
        refused = await client.get(path, headers={"Accept": "text/event-stream"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert (await client.get(path)).status_code == 200  # pages are no streams
        subscribers.pop().transport.close()
        async with asyncio.timeout(20):
            while True:
                async with client.stream("GET", path, headers={"Accept": "text/event-stream"}) as response:
                    if response.status_code == 200:
                        break
        for one in subscribers:
            one.transport.close()
