"""What a subscriber costs: memory while it waits, CPU for each event and each delta that it is told.

    ./dev bench --streams [--quick]
    .venv/bin/python bench/streams.py [--quick] [--subscribers N] [--threads N]

The server is `tenuto.server.serve` in a process of its own, on a file, with a model and a tool that are
functions; this process is the subscribers, on real sockets. Each phase runs twice, without anybody who
listens and with all of them, and what listening costs is the difference of the server's CPU time. At the end
some subscribers read nothing at all: the others must be told the same at about the same cost.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import re
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

STEPS = 10
DELTAS = 200
EVENTS_PER_TURN = 1 + 2 * STEPS + 2  # the message, a reply and a result for each step, the answer and the end
HERE = Path(__file__)
ASK = "GET /v1/threads/{}/events HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n\r\n"
EVENT = re.compile(rb"\nid: (\d+)\nevent: (\w+)\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn for each figure, 200 subscribers")
    parser.add_argument("--subscribers", type=int, help="default 1000")
    parser.add_argument("--threads", type=int, default=100, help="what they follow (default 100)")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if not Path("/proc/self/stat").exists():
        raise SystemExit("bench: the CPU time and memory of the server are read from /proc, which is Linux's")
    subscribers = options.subscribers or (200 if options.quick else 1000)
    asyncio.run(measure(subscribers, min(options.threads, subscribers), 1 if options.quick else 3))


# -- the server, in a process of its own ------------------------------------------------------------------


def serve(database: str) -> None:
    from tenuto import Agent, Runtime, tool
    from tenuto.messages import CallRequest, Reply, TextDelta, UserMessage
    from tenuto.server import serve as serve_agents

    @tool(effect="read")
    async def lookup(i: int) -> str:
        """Look something up."""
        return "x" * 490

    class Model:
        name = "scripted"

        async def reply(self, request, emit=None):
            place = max(i for i, said in enumerate(request.messages) if isinstance(said, UserMessage))
            if request.messages[place].text == "talk":
                for number in range(DELTAS):
                    if emit is not None:
                        emit(TextDelta(f" word{number}"))
                    await asyncio.sleep(0.002)
                return Reply(text="".join(f" word{number}" for number in range(DELTAS)))
            step = (len(request.messages) - place) // 2
            if step < STEPS:
                return Reply(text="y" * 60, calls=(CallRequest("lookup", f'{{"i":{step}}}'),))
            return Reply(text="done")

    agent = Agent("bench", "Look things up.", [lookup], model=Model(), max_steps=0)
    runtime = Runtime([agent], database)
    serve_agents(runtime, host="127.0.0.1", port=0, ready=lambda url: print(url, flush=True))


# -- the subscribers --------------------------------------------------------------------------------------


class Subscriber(asyncio.Protocol):
    """Follows one thread; knows the last event that it was told, and whether one was missing."""

    def __init__(self, host: str, thread_id: str) -> None:
        self._ask = ASK.format(thread_id, host).encode()
        self._rest = b""
        self.seq = 0
        self.events = self.deltas = self.wrong = 0
        self.replayed = asyncio.Event()
        self.ended = asyncio.Event()

    def connection_made(self, transport) -> None:
        transport.write(self._ask)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        whole = data.rfind(b"\n\n") + 1
        # The sizes of chunks stand between, as lines of their own: neither pattern sees them.
        told, self._rest = data[:whole].replace(b"\r\n", b"\n"), data[whole:]
        for seq, kind in EVENT.findall(told):
            self.wrong += int(seq) != self.seq + 1
            self.seq = int(seq)
            self.events += 1
            if kind == b"thread_completed":
                self.ended.set()
        self.deltas += told.count(b"\nevent: text_delta\n")
        if b"\nevent: replayed\n" in told:
            self.replayed.set()


async def measure(count: int, threads: int, turns: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f}; {count} subscribers on {threads} threads"
    )
    table = Table()
    for column in ("", "each", "told", "server CPU"):
        table.add_column(column, justify="right" if column else "left")
    async with served() as (url, pid):
        ids = [await asyncio.to_thread(post, f"{url}/v1/threads", "begin") for _ in range(threads)]
        await at_rest(url, ids)
        for kind in ("go", "talk"):
            await turn(url, pid, ids, kind, [])  # the first turns measure a cold interpreter
        alone = {kind: [await turn(url, pid, ids, kind, []) for _ in range(turns)] for kind in ("go", "talk")}
        empty = memory(pid)
        begun = cpu(pid)
        listeners = await subscribe(url, [ids[number % threads] for number in range(count)])
        replayed = sum(one.seq for one in listeners)
        table.add_row("memory per subscriber", f"{(memory(pid) - empty) / count / 1024:.1f} kB", "", "")
        opening = cpu(pid) - begun
        table.add_row(
            "to open, with the past", f"{opening / count * 1e6:,.0f} µs", f"{replayed:,}", f"{opening:.2f} s"
        )
        for title, stuck in (("", 0), (", with 20 that read nothing", 20)):
            host = urlsplit(url)
            sockets = [stuck_reader(host.hostname, host.port, ids[number]) for number in range(stuck)]
            for kind, word in (("go", "event"), ("talk", "delta")):
                costs, told = [], 0
                for number in range(turns):
                    before = [one.deltas if kind == "talk" else one.events for one in listeners]
                    spent = await turn(url, pid, ids, kind, listeners)
                    told = sum(one.deltas if kind == "talk" else one.events for one in listeners) - sum(
                        before
                    )
                    costs.append((spent - alone[kind][number], told))
                each = statistics.median(cost / told for cost, told in costs) * 1e6
                table.add_row(f"{word} told{title}", f"{each:.1f} µs", f"{told:,}", f"{costs[-1][0]:.2f} s")
            for one in sockets:
                one.close()
        table.add_row("memory at the end", f"{(memory(pid) - empty) / count / 1024:.1f} kB", "", "")
    heads = Counter(one.seq for one in listeners)
    wrong = sum(one.wrong for one in listeners)
    console.print(table)
    console.print(f"events missing, double or out of order: {wrong}; last event told: {dict(heads)}")
    if wrong or len(heads) != 1:
        raise SystemExit("bench: not everybody was told everything")


@contextlib.asynccontextmanager
async def served():
    folder = HERE.parents[1] / ".bench"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = (sys.executable, str(HERE), "--serve", f"sqlite:///{place}/tenuto.db")
        environment = {k: v for k, v in os.environ.items() if not k.endswith(("_SECRET", "_TOKEN"))}
        child = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=environment
        )
        try:
            url = (await child.stdout.readline()).decode().strip()
            if not url:
                raise SystemExit("bench: the server did not start")
            yield url, child.pid
        finally:
            if child.returncode is None:
                child.send_signal(signal.SIGTERM)
            await child.wait()


async def subscribe(url: str, thread_ids: list[str]) -> list[Subscriber]:
    loop, place = asyncio.get_running_loop(), urlsplit(url)
    listeners = []
    for thread_id in thread_ids:
        _, one = await loop.create_connection(
            lambda thread_id=thread_id: Subscriber(place.netloc, thread_id), place.hostname, place.port
        )
        listeners.append(one)
    await asyncio.gather(*(one.replayed.wait() for one in listeners))
    return listeners


def stuck_reader(host: str, port: int, thread_id: str) -> socket.socket:
    """A subscriber that asks and never reads, with little room for what it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, port))
    client.sendall(ASK.format(thread_id, host).encode())
    return client


async def turn(url: str, pid: int, ids: list[str], message: str, listeners: list[Subscriber]) -> float:
    """The CPU seconds of the server for one turn of every thread, until all listeners heard its end."""
    for one in listeners:
        one.ended.clear()
    begun = cpu(pid)
    for thread_id in ids:
        await asyncio.to_thread(post, f"{url}/v1/threads/{thread_id}/messages", message)
    await asyncio.gather(*(one.ended.wait() for one in listeners))
    spent = cpu(pid)
    await at_rest(url, ids)
    return (spent if listeners else cpu(pid)) - begun


async def at_rest(url: str, ids: list[str]) -> None:
    for thread_id in ids:
        answer = {"status": "running"}
        while answer["status"] == "running":
            await asyncio.sleep(0.01)
            answer = await asyncio.to_thread(get, f"{url}/v1/threads/{thread_id}")


def post(url: str, message: str) -> str:
    body = json.dumps({"text" if url.endswith("/messages") else "message": message}).encode()
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answer:
        return json.load(answer)["id"]


def get(url: str):
    with urlopen(url, timeout=60) as answer:
        return json.load(answer)


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> int:
    """The server's own bytes in memory; read after a moment in which what was in the air has landed."""
    time.sleep(0.5)
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))


if __name__ == "__main__":
    main()
