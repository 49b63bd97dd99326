"""A fleet on PostgreSQL: does it grow with its workers, and how soon does it go on?

    python bench/fleet.py [--quick]

The server is one of its own on this disk, with fsync. Each worker is a process with the model a function in
it; the process that measures starts, sends and decides, and runs nothing. Linux: CPU is read in /proc.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.scale import cpu_ms, cpu_of_server
from bench.step import RESULT

LONG_STEPS = 400
LEASE_SECONDS = 1.0
IDLE_SECONDS = 0.1
SPAN = "SELECT (max(at) - min(at)) / 1000.0 FROM events WHERE type IN ('model_replied', 'thread_completed')"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer of all")
    parser.add_argument("--worker", nargs=2, metavar=("URL", "HOW"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asyncio.run(work(*options.worker))
        return
    from tenuto.errors import ConfigurationError
    from tenuto.testing.postgres import PostgresServer

    try:
        for part in (growth, latencies, recovery):
            with PostgresServer(fsync="on", max_wal_size="4GB") as server:
                asyncio.run(part(server, options.quick))
    except ConfigurationError as error:
        print(f"a fleet: not measured, {error}")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


# -- a worker ----------------------------------------------------------------------------------------------


class Model:
    """Says `lookup` so many times, then `danger`, then that it is done; prints when it was asked what.
    `stuck`: the question after the last `lookup` is never answered.
    """

    name = "scripted"

    def __init__(self, lookups: int, dangers: int = 0, *, told: bool = True, stuck: bool = False) -> None:
        self.lookups, self.dangers, self.told, self.stuck = lookups, dangers, told, stuck

    async def reply(self, request: Any, emit: Any = None) -> Any:
        asked_at, cpu = time.monotonic(), time.process_time()
        from tenuto.messages import CallRequest, Reply, ToolMessage, UserMessage

        results = sum(isinstance(message, ToolMessage) for message in request.messages)
        said = sum(isinstance(message, UserMessage) for message in request.messages)
        if self.told and results >= self.lookups:
            print(json.dumps({"results": results, "said": said, "at": asked_at, "cpu": cpu}), flush=True)
        if self.stuck and results == self.lookups:
            await asyncio.Event().wait()
        if results < self.lookups + self.dangers:
            tool = "lookup" if results < self.lookups else "danger"
            call = CallRequest(tool, f'{{"i":{results}}}', provider_id=f"call_{results}")
            return Reply(calls=(call,), model="scripted", finish="tool_calls")
        return Reply(text="done", model="scripted", finish="stop")


ran: list[int] = []


def agents(stuck: bool = False) -> list[Any]:
    from tenuto import Agent, tool

    @tool(effect="read")
    async def lookup(i: int) -> str:
        """Look something up."""
        ran.append(i)
        return RESULT

    @tool(effect="once", approval=True)
    async def danger(i: int) -> str:
        """A guarded action."""
        return "sent"

    models = {
        "crowd": Model(10, told=False),
        "pings": Model(0),
        "long": Model(LONG_STEPS, 1_000),
        "stuck": Model(LONG_STEPS, stuck=stuck),
    }
    return [
        Agent(name, "Look things up.", [lookup, danger], model=model, max_steps=0)
        for name, model in models.items()
    ]


async def work(url: str, how: str) -> None:
    """Until stdin ends. `how`: "claims", or "stuck", or the id of a thread that is to be driven, alone."""
    from tenuto import Runtime, Settings

    claims = how in ("claims", "stuck")
    settings = Settings(worker=claims, lease_seconds=LEASE_SECONDS if how == "stuck" else 10.0)
    mine = agents(stuck=how == "stuck")
    print("loaded", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    async with Runtime(mine, database=url, settings=settings) as runtime:
        if not claims:
            await runtime.thread(how)  # the connection is there
            begun, cpu = time.monotonic(), time.process_time()
            assert await runtime.drive(how)
            print(json.dumps({"begun": begun, "cpu": cpu, "ran": len(ran)}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def worker(url: str, how: str = "claims") -> AsyncIterator[Any]:
    """The process, loaded; a line on its stdin lets it begin."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--worker", url, how, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert await process.stdout.readline() == b"loaded\n"
    try:
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def told(process: Any, **wanted: object) -> dict[str, Any]:
    """The next line of the worker that has these values."""
    while line := await process.stdout.readline():
        said: dict[str, Any] = json.loads(line)
        if all(said.get(name) == value for name, value in wanted.items()):
            return said
    raise SystemExit("bench: a worker ended early")


# -- what is measured --------------------------------------------------------------------------------------


async def growth(server: Any, quick: bool) -> None:
    """Threads of ten steps, there before the workers begin."""
    from tenuto import Runtime, Settings
    from tenuto.testing.postgres import execute

    threads = 100 if quick else 600
    for count in (1, 1, 2, 3):  # once without the clock
        async with Runtime(agents(), database=server.url, settings=Settings(worker=False)) as client:
            ids = await asyncio.gather(*(client.start("crowd", "go") for _ in range(threads)))
            workers = [worker(server.url) for _ in range(count)]
            processes = [await each.__aenter__() for each in workers]
            spent = [cpu_ms(process.pid) for process in processes]
            database = cpu_of_server(server)
            for process in processes:
                process.stdin.write(b"\n")
            for thread in ids:
                assert (await client.wait(thread, 600)).status == "completed"
            of_workers = sum(map(cpu_ms, (process.pid for process in processes))) - sum(spent)
            database = cpu_of_server(server) - database
            for each in workers:
                await each.__aexit__(None, None, None)
        ((seconds,),) = await asyncio.to_thread(execute, server.url, SPAN)
        await asyncio.to_thread(execute, server.url, "DELETE FROM events; DELETE FROM threads")
        steps = threads * 10
        print(
            f"{count} worker{'s' * (count > 1)}: {steps / float(seconds):,.0f} steps/s; "
            f"CPU per step {of_workers / steps:.2f} ms of the workers, "
            f"{database / steps:.2f} ms of the database; "
            f"{(of_workers + database) / float(seconds) / 1000:.1f} of {os.cpu_count()} cores busy"
        )


async def latencies(server: Any, quick: bool) -> None:
    from tenuto import Runtime, Settings

    times = 20 if quick else 200
    settings = Settings(worker=False)
    async with (
        worker(server.url) as process,
        Runtime(agents(), database=server.url, settings=settings) as client,
    ):
        process.stdin.write(b"\n")
        thread = await client.start("pings", "go")
        woken = []
        for number in range(times):
            await client.wait(thread)
            await asyncio.sleep(IDLE_SECONDS)
            begun = time.monotonic()
            await client.send(thread, "ping")
            woken.append((await told(process, said=number + 2))["at"] - begun)
        print(f"from a message to the model's question, worker idle: {quantiles(woken)}")
        thread = await client.start("long", "go")
        approved = []
        for number in range(times // 2):
            await client.wait(thread)
            await asyncio.sleep(IDLE_SECONDS)
            (interrupt,) = await client.interrupts(thread_id=thread)
            begun = time.monotonic()
            await client.resolve(interrupt.id, "approve", by="bench", digest=interrupt.digest)
            approved.append((await told(process, results=LONG_STEPS + number + 1))["at"] - begun)
        print(f"from an approval, after {LONG_STEPS} steps, to the model's question: {quantiles(approved)}")


def quantiles(seconds: list[float]) -> str:
    ordered = [f"{each * 1000:.1f}" for each in sorted(seconds)]
    median, high = ordered[len(ordered) // 2], ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
    return f"p50 {median} ms, p99 {high} ms, at most {ordered[-1]} ms ({len(ordered)} times)"


async def recovery(server: Any, quick: bool) -> None:
    """A worker dies while it asks its model after many steps; another goes on when the lease has ended."""
    from tenuto import Runtime, Settings

    taken, cpu, again = [], [], 0
    async with Runtime(agents(), database=server.url, settings=Settings(worker=False)) as client:
        for _ in range(3 if quick else 10):
            thread = await client.start("stuck", "go")
            async with worker(server.url, "stuck") as process:
                process.stdin.write(b"\n")
                await told(process, results=LONG_STEPS)
                process.kill()
            await asyncio.sleep(LEASE_SECONDS * 1.5)
            async with worker(server.url, thread) as process:
                process.stdin.write(b"\n")
                asked = await told(process, results=LONG_STEPS)
                drove = await told(process, ran=0)
            taken.append(asked["at"] - drove["begun"])
            cpu.append(asked["cpu"] - drove["cpu"])
            again += drove["ran"]
    print(
        f"from another worker's claim of a dead one's thread, after {LONG_STEPS} steps, to its question: "
        f"{quantiles(taken)}, CPU {sorted(cpu)[len(cpu) // 2] * 1000:.1f} ms; {again} tools were run again"
    )


if __name__ == "__main__":
    main()
