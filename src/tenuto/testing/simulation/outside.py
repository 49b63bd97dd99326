"""What stands outside: tools that write a ledger, and a provider whose replies the seed makes up.

The tools are well behaved: each effect goes out with its idempotency key and its deadline, and whoever does
it refuses what is too late. Without that, no runtime could tell what a frozen process does when it wakes.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from tenuto.agent import Agent
from tenuto.errors import ModelError, NotDone
from tenuto.messages import AssistantMessage, CallRequest, Delta, Reply, Request, SystemMessage
from tenuto.testing.simulation.schedule import DELAYS
from tenuto.thread import ThreadState
from tenuto.tools import DidNotHappen, Happened, Tool, ToolContext, Unknown, ask_person, tool, wait_until

if TYPE_CHECKING:
    from tenuto.testing.simulation.process import Process

# Shorter than a lease, and longer.
TIMEOUT_SECONDS = 4.0
LONG_SECONDS = 12.0
EXPIRES_SECONDS = 15.0
MOST_STEPS = 4


class Done(NamedTuple):
    """One effect in the outside world."""

    key: str
    n: int
    attempt: int
    process: str


class Ledger:
    """What has truly happened, by call. An idempotent effect with a known key happens no second time."""

    def __init__(self) -> None:
        self.done: dict[tuple[str, str], list[Done]] = defaultdict(list)

    def write(self, context: ToolContext, n: int, idempotent: bool, process: str) -> None:
        place = self.done[context.thread_id, context.call_id]
        entry = Done(context.idempotency_key, n, context.attempt, process)
        if not (idempotent and any(done.key == entry.key for done in place)):
            place.append(entry)


def here() -> "Process":
    """The process whose turn it is."""
    return cast("Process", cast(Any, asyncio.get_running_loop()).owner)


def make_tool(name: str, effect: Any, version: str = "", **options: Any) -> Tool:
    """A tool whose body does what the seed says. `n` is hardly ever the same twice."""

    async def body(n: int, context: ToolContext) -> str:
        return await _run(made, n, context)

    options = {"timeout": TIMEOUT_SECONDS, "expires_after": EXPIRES_SECONDS} | options
    made = tool(effect=effect, name=name, version=version, **options)(body)
    return made


async def _run(made: Tool, n: int, context: ToolContext) -> str:
    process = here()
    world = process.world
    world.auditor.dispatched(process, made, n, context)
    outcome = world.draw_outside("not done", "raises before", "raises after", "hangs before", "hangs after")
    world.note(process.name, made.name, context.call_id, n, context.attempt, outcome)
    slow = made.timeout_ms > TIMEOUT_SECONDS * 1000
    await asyncio.sleep(world.random.choice((*DELAYS, 7.0, 7.0) if slow else DELAYS))
    await process.gate(f"before the effect of {made.name}", 5.0)
    if outcome == "not done":
        raise NotDone("refused")
    if outcome == "raises before":
        raise RuntimeError("no connection")
    if outcome == "hangs before":
        await asyncio.sleep(TIMEOUT_SECONDS * 2)
    if made.effect != "read":
        if max(process.now_ms(), world.latest_ms) >= context.deadline_ms:
            raise NotDone("too late")
        told = context.thread_id not in process.leases
        world.auditor.check(not told, "fencing", f"{made.name} goes on though its lease is known to be lost")
        world.figures.effects += 1
        world.ledger.write(context, n, made.effect == "idempotent", process.name)
        world.note(process.name, "EFFECT", made.name, context.thread_id, context.call_id, context.attempt)
    await process.gate(f"after the effect of {made.name}", 5.0)
    if outcome == "raises after":
        raise RuntimeError("connection lost")
    if outcome == "hangs after":
        await asyncio.sleep(TIMEOUT_SECONDS * 2)
    return f"{made.name} {n}"


async def verify(arguments: dict[str, Any], key: str) -> Any:
    """Asks the ledger, if the seed lets it."""
    process = here()
    world = process.world
    thread_id, _, call_id = key.partition(":")
    world.auditor.verifying(process, thread_id, call_id)
    await process.gate("before verify", 3.0)
    outcome = world.draw_outside("raises", "hangs", "unknown")
    if outcome == "raises":
        raise RuntimeError("nobody answers")
    if outcome == "hangs":
        await asyncio.sleep(TIMEOUT_SECONDS * 2)
    if outcome == "unknown":
        return Unknown("no trace")
    happened = bool(world.ledger.done[thread_id, call_id])
    if not happened:
        world.auditor.cleared(process, thread_id, call_id)
    await process.gate("after verify", 3.0)
    return Happened(f"{key} is there") if happened else DidNotHappen()


def instruct(state: ThreadState) -> str:
    """The provider learns from this which thread it serves."""
    return state.id


TOOLS = (
    make_tool("look", "read"),
    make_tool("look_asked", "read", approval=True),
    make_tool("put", "idempotent", timeout=LONG_SECONDS),
    make_tool("put_asked", "idempotent", approval=True),
    make_tool("pay", "once", approval=True),
    make_tool("pay_checked", "once", approval=True, verify=verify),
    make_tool("poke", "once", timeout=LONG_SECONDS),
    make_tool("poke_checked", "once", timeout=LONG_SECONDS, verify=verify),
    wait_until,
    ask_person,
)
# The same after a deployment: what was approved under the old version is another call now.
NEW_TOOLS = (
    *(one for one in TOOLS if one.name not in ("pay", "pay_checked", "look_asked")),
    make_tool("pay", "once", version="2", approval=True),
    make_tool("pay_checked", "once", version="2", approval=True, verify=verify),
)
AGENTS: dict[tuple[int, Any], Agent] = {
    (version, on_message): Agent(
        "ops",
        instruct,
        tools,
        max_steps=MOST_STEPS,
        on_message_while_waiting=on_message,
        question_expires_after=20.0,
    )
    for version, tools in enumerate((TOOLS, NEW_TOOLS))
    for on_message in ("queue", "withdraw")
}
NAMES = ("look", "look_asked", "put", "put_asked", *("pay", "pay_checked", "poke", "poke_checked") * 2)


class Provider:
    """A `Model`. In the calm it only answers, so that every thread comes to an end."""

    name = "provider"

    async def reply(self, request: Request, emit: Callable[[Delta], None] | None = None) -> Reply:
        process = here()
        world, random = process.world, process.world.random
        first = request.messages[0]
        assert isinstance(first, SystemMessage)
        world.auditor.requested(first.text, request.messages)
        if random.random() < 0.15:
            world.people.slip_in(first.text)
        await asyncio.sleep(random.choice(DELAYS))
        await process.gate("before the reply", 3.0)
        if random.random() < world.faults.model_errors:
            raise ModelError("overloaded", retryable=True)
        replies = sum(isinstance(message, AssistantMessage) for message in request.messages)
        await process.gate("after the reply", 3.0)
        # Drawn in any case, so that a seed goes on alike.
        if random.random() < 0.15 + replies / 8 or world.calm:
            return Reply(text=f"answer {replies}", finish="stop")
        calls = tuple(self._call(random) for _ in range(random.choice((1, 2, 3, 3))))
        return Reply(calls=calls, finish="length" if random.random() < 0.03 else "tool_calls")

    def _call(self, random: Any) -> CallRequest:
        chance = random.random()
        if chance < 0.04:
            return CallRequest("pay", random.choice((None, "", "{", '{"n": "x"}', "[1]")))
        if chance < 0.06:
            return CallRequest("nonsense", "{}")
        if chance < 0.10:
            return CallRequest("wait_until", f'{{"seconds": {random.choice((1, 5, 20))}}}')
        if chance < 0.14:
            return CallRequest("ask_person", '{"question": "Which?"}')
        return CallRequest(
            random.choice(NAMES), msgspec.json.encode({"n": random.randint(1, 10**6)}).decode()
        )
