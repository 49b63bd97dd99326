"""Telling a thread something from a shell: a message, stop, more. And saying who goes on with it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenuto.agent import Agent
from tenuto.cli.agents import check_models
from tenuto.cli.find import AnyRuntime, find_thread, opened
from tenuto.cli.run import Screen, run_here, telling_how_to_go_on
from tenuto.cli.target import Target
from tenuto.cli.terminal import console, print_json, printing_aside, safe
from tenuto.client import Client
from tenuto.events import ThreadId
from tenuto.rows import ThreadRow, WorkerRow
from tenuto.runtime import Runtime

NO_WORKER = "goes on when a worker starts, such as: tenuto serve"


@dataclass(frozen=True)
class Word:
    """What to tell which thread. `tell` does it and returns what was done, in a few words; `agents` imports
    the agents that are known here, perhaps none.
    """

    thread: str
    tell: Callable[[AnyRuntime, str], Awaitable[str]]
    target: Target
    wait: bool
    as_json: bool
    agents: Callable[[], list[Agent]]


async def tell(word: Word) -> None:
    """Tell it once, then leave the thread to a server or a live worker, or run it here until it rests.

    Agents are imported only to run it, and before it is told: when that fails, nothing was done.
    """
    async with opened(word.target) as runtime:
        row = await find_thread(runtime, word.thread)
        if isinstance(runtime, Client):
            return await _leave(runtime, word, row, f"the server goes on with thread {row.id}")
        worker = await worker_for(runtime, row.agent)
        if worker or not word.wait:
            return await _leave(runtime, word, row, who_goes_on(worker, row.id))
    agents = word.agents()
    known = [agent for agent in agents if agent.name == row.agent]
    check_models(known)
    async with opened(word.target, agents) as runtime:
        assert isinstance(runtime, Runtime)
        if not known:
            why = f"agent {row.agent!r} is not known here: "
            return await _leave(runtime, word, row, who_goes_on(None, row.id, why))
        told = await word.tell(runtime, row.id)
        await run_until_rest(runtime, row.id, told, word.target, word.as_json)
        if word.as_json:
            print_json(await runtime.thread(row.id))
    return None


async def run_until_rest(
    runtime: Runtime, thread_id: ThreadId, told: str, target: Target, as_json: bool
) -> None:
    """Run a thread here after it was told something; with `as_json` nothing is shown of it."""
    head_seq = (await runtime.thread(thread_id)).head_seq
    screen = None if as_json else Screen(console())
    if screen:
        screen.out.print(f"{told}; this command runs thread {thread_id} until it rests", style="bold")
    go_on = f"tenuto run --thread {thread_id}{target.hint}"
    with printing_aside(as_json), telling_how_to_go_on(go_on):
        after = await run_here(runtime, thread_id, head_seq, screen)
    if screen:
        screen.out.print(f"thread {after.id} is {after.status}", style="dim")


async def _leave(runtime: AnyRuntime, word: Word, row: ThreadRow, who: str) -> None:
    told = await word.tell(runtime, row.id)
    if word.as_json:
        print_json(await runtime.thread(row.id))
    else:
        console().print(f"{told}; {who}")


async def worker_for(runtime: AnyRuntime, agent: str) -> WorkerRow | None:
    """A live worker that takes this agent's threads."""
    return next((worker for worker in await runtime.workers() if agent in worker.agents), None)


def who_goes_on(worker: WorkerRow | None, thread_id: str, why: str = "") -> str:
    """What becomes of a thread that is not run here."""
    if worker is not None:
        return f"worker {safe(worker.owner)} (process {worker.pid}) goes on with thread {thread_id}"
    return f"{safe(why)}thread {thread_id} {NO_WORKER}"
