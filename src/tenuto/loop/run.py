"""The loop: ask what to do next, do it, again, until the thread rests."""

from typing import assert_never

from tenuto.events import AgentChanged, Event, InterruptResolved
from tenuto.loop.act import act
from tenuto.loop.decide import decide
from tenuto.loop.holder import Holder
from tenuto.steps import AskPerson, CallModel, Finish, RunCalls, Settle, StopCalls, Wait, deadly, next_step
from tenuto.tools.tool import replan


async def advance(holder: Holder, *, poisoned: bool = False) -> None:
    """Load a thread and advance it until it waits for something that is not in this process, then release it.

    `poisoned`: those who advanced it before died of it, so that a person is asked before anything is run.
    Raises `LeaseLost` when another worker took over and `StoreError` when the store stays down; whatever was
    not recorded by then is in doubt or done again by the next holder, as the rules say.
    """
    await holder.load()
    if poisoned:
        await _ask_first(holder)
    await _adopt(holder)
    while not holder.released:
        await holder.absorb()
        match next_step(holder.state, holder.now_ms(), holder.local):
            case CallModel():
                await decide(holder)
            case RunCalls() as step:
                await act(holder, step)
            case StopCalls(call_ids):
                await holder.stop(call_ids)
            case AskPerson(events) | Settle(events):
                await holder.append(*events)
            case Finish(event):
                await holder.append(event, conditional=True)
            case Wait(until_ms):
                if holder.running:
                    await holder.rest(until_ms)
                else:
                    await holder.release(until_ms)
            case unreachable:
                assert_never(unreachable)


async def _adopt(holder: Holder) -> None:
    """Let a changed agent take over: an old approval never runs new code's call."""
    state, agent = holder.state, holder.agent
    while state.agent and state.fingerprint != agent.fingerprint:
        events: list[Event] = []
        changed = []
        for call in state.open:
            if call.phase not in ("planned", "asked", "allowed"):
                continue
            planned = replan(agent.by_name, call.call)
            if planned == call.call:
                continue
            changed.append(planned)
            if call.interrupt is not None:
                events.append(
                    InterruptResolved(
                        call.interrupt, "withdrawn", by="runtime", comment="the agent was changed"
                    )
                )
        events.append(AgentChanged(agent.fingerprint, agent.limits, agent.policy, tuple(changed)))
        # A decision that came in meanwhile makes this refuse; then look again.
        if not await holder.append(*events, conditional=True):
            await holder.absorb()


async def _ask_first(holder: Holder) -> None:
    """Ask a person whether a thread that kills its workers shall go on; until then nothing of it is run."""
    state = holder.state
    if state.ended is None and state.cancel is None and not state.doubted:
        await holder.append(deadly(state, holder.claim.deaths))
