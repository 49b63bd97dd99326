"""Telling a thread something from a shell: a message, stop, more, a decision; and who goes on with it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tenuto.agent import Agent
from tenuto.cli.agents import check_models
from tenuto.cli.conversation import Conversation
from tenuto.cli.find import AnyRuntime, opened
from tenuto.cli.run import screen_of, telling_how_to_go_on, watch
from tenuto.cli.target import Target
from tenuto.cli.terminal import console, print_json, printing_aside, safe
from tenuto.client import Client
from tenuto.errors import UnknownAgent
from tenuto.events import ThreadId
from tenuto.rows import InterruptRow, ThreadRow, WorkerRow
from tenuto.runtime import Runtime

NO_WORKER = "goes on when a worker starts, such as: tenuto serve"


@dataclass(frozen=True)
class Word:
    """Something to tell once, and where. `find` gives the thread or interrupt that it is about; `say` does it
    and returns what was done, in a few words; `outcome` is what a program is told then. `agents` imports the
    agents that are known here, perhaps none; with `needs_agent` it is not told here without the thread's own.
    """

    target: Target
    wait: bool
    as_json: bool
    agents: Callable[[], list[Agent]]
    find: Callable[[AnyRuntime], Awaitable[ThreadRow | InterruptRow]]
    say: Callable[[AnyRuntime, Any], Awaitable[str]]
    outcome: Callable[[AnyRuntime, Any], Awaitable[object]]
    needs_agent: bool = False


async def tell(word: Word) -> None:
    """Tell it once, then leave the thread to a server or a live worker, or run it here until it rests.

    Agents are imported only where they are needed, and before it is told: when that fails, nothing was done.
    """
    async with opened(word.target) as runtime:
        row = await word.find(runtime)
        thread_id = row.id if isinstance(row, ThreadRow) else row.thread_id
        if isinstance(runtime, Client):
            return await _leave(runtime, word, row, f"the server goes on with thread {thread_id}")
        worker = await worker_for(runtime, row.agent)
        if not word.needs_agent and (worker or not word.wait):
            return await _leave(runtime, word, row, who_goes_on(worker, thread_id))
    agents = word.agents()
    known = [agent for agent in agents if agent.name == row.agent]
    if word.needs_agent and not known:
        raise UnknownAgent(
            f"new arguments are checked by agent {row.agent!r}; name it with --agent MODULE:AGENT"
        )
    if word.wait and worker is None:
        check_models(known)
    async with opened(word.target, agents) as runtime:
        assert isinstance(runtime, Runtime)
        worker = await worker_for(runtime, row.agent)
        if worker or not word.wait or not known:
            why = "" if known else f"agent {row.agent!r} is not known here: "
            return await _leave(runtime, word, row, who_goes_on(worker, thread_id, why))
        await _run_until_rest(runtime, thread_id, await word.say(runtime, row), word)
        if word.as_json:
            print_json(await word.outcome(runtime, row))
    return None


async def _run_until_rest(runtime: Runtime, thread_id: ThreadId, told: str, word: Word) -> None:
    """Run a thread here after it was told something; nothing is shown of it to a program."""
    talk = Conversation(runtime, "", thread_id, (await runtime.thread(thread_id)).head_seq)
    screen = None if word.as_json else await screen_of(talk)
    if screen:
        screen.out.print(f"{told}; this command runs thread {thread_id} until it rests", style="bold")
    go_on = f"tenuto run --thread {thread_id}{word.target.hint}"
    with printing_aside(word.as_json), telling_how_to_go_on(go_on):
        after = await watch(talk, screen)
    if screen:
        screen.out.print(f"thread {after.id} is {after.status}", style="dim")


async def _leave(runtime: AnyRuntime, word: Word, row: ThreadRow | InterruptRow, who: str) -> None:
    told = await word.say(runtime, row)
    if word.as_json:
        print_json(await word.outcome(runtime, row))
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
