"""Deciding from a shell what waits for a person, and saying who goes on with the thread."""

from collections.abc import Callable
from dataclasses import dataclass

from tenuto.agent import Agent
from tenuto.approvals import Decision
from tenuto.cli.agents import check_models
from tenuto.cli.find import AnyRuntime, all_events, find_interrupt, opened
from tenuto.cli.lines import plain, summary
from tenuto.cli.target import Target
from tenuto.cli.tell import run_until_rest, who_goes_on, worker_for
from tenuto.cli.terminal import console, moment, print_json
from tenuto.client import Client
from tenuto.errors import AlreadyDecided, TenutoError, UnknownAgent
from tenuto.events import InterruptResolved
from tenuto.rows import InterruptRow, already_decided
from tenuto.runtime import Runtime


@dataclass(frozen=True)
class Order:
    """What to decide, and where. `agents` imports the agents that are known here, perhaps none."""

    id: str
    verb: str
    by: str
    decision: Decision
    target: Target
    wait: bool
    as_json: bool
    agents: Callable[[], list[Agent]]


async def decide(order: Order) -> None:
    """Decide once, then leave the thread to a server or live worker, or run it here until its next pause.

    Raises `AlreadyDecided` with who, what and when. Agents are imported only to run or to edit, and before
    the decision: when that fails, nothing was decided.
    """
    async with opened(order.target) as runtime:
        row = await find_interrupt(runtime, order.id)
        if row.outcome is not None:
            raise _worded(already_decided(row))
        if isinstance(runtime, Client):
            return await _leave(runtime, row, order, f"the server goes on with thread {row.thread_id}")
        worker = await worker_for(runtime, row.agent)
        if order.verb != "edit" and (worker or not order.wait):
            return await _leave(runtime, row, order, who_goes_on(worker, row.thread_id))
    agents = order.agents()
    known = any(agent.name == row.agent for agent in agents)
    if order.verb == "edit" and not known:
        raise UnknownAgent(
            f"new arguments are checked by agent {row.agent!r}; name it with --agent MODULE:AGENT"
        )
    if known and order.wait and worker is None:
        check_models(agent for agent in agents if agent.name == row.agent)
    async with opened(order.target, agents) as runtime:
        assert isinstance(runtime, Runtime)
        worker = await worker_for(runtime, row.agent)
        if worker or not order.wait or not known:
            why = "" if known else f"agent {row.agent!r} is not known here: "
            return await _leave(runtime, row, order, who_goes_on(worker, row.thread_id, why))
        await _resolve(runtime, row, order)
        await run_until_rest(runtime, row.thread_id, f"{row.id} decided", order.target, order.as_json)
        if order.as_json:
            await _print(runtime, row)
        return None


async def _leave(runtime: AnyRuntime, row: InterruptRow, order: Order, who: str) -> None:
    await _resolve(runtime, row, order)
    if order.as_json:
        await _print(runtime, row)
    else:
        console().print(f"{row.id} decided; {who}")


async def _print(runtime: AnyRuntime, row: InterruptRow) -> None:
    """Where the thread stands, with the event that records the decision, as HTTP has it, for programs."""
    recorded = [
        plain(entry)
        async for entry in all_events(runtime, row.thread_id, row.raised_seq)
        if isinstance(entry.event, InterruptResolved) and entry.event.id == row.id
    ]
    print_json(summary(await runtime.state(row.thread_id)) | {"resolution": recorded[0]})


async def _resolve(runtime: AnyRuntime, row: InterruptRow, order: Order) -> None:
    try:
        await runtime.resolve(row.id, order.verb, by=order.by, **order.decision)
    except AlreadyDecided as error:
        raise _worded(error) from error


def _worded(error: AlreadyDecided) -> TenutoError:
    return AlreadyDecided(f"{error}, {moment(error.at_ms)}" if error.at_ms else str(error), **error.facts)
