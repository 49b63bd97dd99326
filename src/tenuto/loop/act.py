"""Run tools: record the intent, dispatch, report the outcome. The crash windows are here.

`call_started` is committed before any effect other than `read`. From then on a call without a result is
in doubt, whatever became of its worker: so an outcome that is not known for certain is reported as a
doubt and never as a plain failure.
"""

import asyncio
import functools
import math
import threading

import msgspec

from tenuto import limits
from tenuto.errors import LeaseLost, NotDone
from tenuto.events import Call, CallFinished, CallStarted, Event
from tenuto.loop.holder import Holder
from tenuto.messages import StatusLine
from tenuto.steps import RunCalls
from tenuto.thread import CallState
from tenuto.tools import DidNotHappen, Happened, Progress, Tool, ToolContext, Until, error_text, result_text
from tenuto.tools.tool import call_digest


async def act(holder: Holder, step: RunCalls) -> None:
    """Start the calls that fit beside those that run already. Returns once they are dispatched."""
    room = limits.MAX_CONCURRENT_CALLS - len(holder.running)
    if room <= 0:
        await holder.rest(holder.now_ms() + limits.FULL_REST_MS)
        return
    verify = step.verify[:room]
    run = step.run[: room - len(verify)]
    holder.check_lease()
    if starts := [_intent(holder, call) for call in run if call.call.effect != "read"]:
        await holder.append(*starts)
    for call in run:
        # A cancel or a takeover may have come in while the intent was committed.
        holder.check_lease()
        if holder.state.cancel is None:
            # As it is now: what another holder records must not lend this attempt its number and deadline.
            holder.start(call.id, _run(holder, msgspec.structs.replace(call)))
    for call in verify:
        holder.start(call.id, _verify(holder, call))


async def start_reads(holder: Holder, calls: tuple[Call, ...]) -> tuple[Event, ...]:
    """Dispatch the ungated reads of a reply before it is committed: they have no effect, so nothing is lost.

    Returns what those have to record that ended at once, to go into the reply's own commit.
    """
    reads = [call for call in calls if call.effect == "read" and not call.gated and not call.error]
    for call in reads[: limits.MAX_CONCURRENT_CALLS]:
        holder.start(call.id, _run(holder, CallState(call, "planned", call.exact, call.digest)))
    if reads:
        await asyncio.sleep(0)
    return holder.take_finished()


def _intent(holder: Holder, call: CallState) -> CallStarted:
    return CallStarted(
        call.id,
        attempt=call.attempt + 1,
        key=idempotency_key(holder.thread_id, call),
        deadline_ms=holder.now_ms() + call.call.timeout_ms,
        worker=holder.around.owner,
        why=holder.doubts.get(call.id, ""),
    )


def idempotency_key(thread_id: str, call: CallState) -> str:
    """The same for every attempt of one call, and for no other call anywhere."""
    return f"{thread_id}:{call.id}"


async def _run(holder: Holder, call: CallState) -> None:
    """One attempt of one call. Never raises but for cancellation, which leaves the call in doubt."""
    try:
        holder.check_lease()
    except LeaseLost:
        # Something has stood in the loop's way since this was dispatched, and another worker may be at it.
        holder.lose()
        return
    started = holder.around.clock.monotonic()
    stop = threading.Event()
    seconds = call.call.timeout_ms / 1000 or math.inf
    within = asyncio.timeout(None if seconds == math.inf else seconds)
    late = f"it did not end within {seconds:g} s"
    # A function can refuse to be cancelled. Then nobody waits for it any longer, and nobody listens to it.
    report = functools.partial(_report, holder, call, started)
    left_alone = asyncio.get_running_loop().call_later(seconds + limits.STOP_SECONDS, report, None, late)
    value: object = None
    error, certain = "", False
    try:
        tool = _tool(holder, call)
        async with within:
            work = tool.run(call.arguments, _context(holder, call, stop))
            value = await (seen.tool(call, work) if (seen := holder.around.observe) else work)
    except asyncio.CancelledError:
        stop.set()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        error = "it raised CancelledError"
    except TimeoutError as failure:
        stop.set()
        error = late if within.expired() else error_text(failure)
    except BaseException as failure:  # noqa: BLE001 - whatever a tool raises; a Ctrl-C cancels, here as anywhere
        error, certain = error_text(failure), isinstance(failure, NotDone)
    finally:
        left_alone.cancel()
    _report(holder, call, started, value, error, certain)


def _report(
    holder: Holder, call: CallState, started: float, value: object, error: str, certain: bool = False
) -> None:
    if error and not certain and call.call.effect == "once":
        holder.finish(call.id, (), error)
    elif isinstance(value, Until):
        until_ms = _time(holder, value)
        holder.finish(call.id, (CallStarted(call.id, attempt=call.attempt + 1, until_ms=until_ms),))
    else:
        # Of an attempt before this one, by a worker that died, nobody knows what it did.
        unknown = bool(error) and call.call.effect == "idempotent" and call.attempt > 1
        text = f"Error: {error}" if error else result_text(value)
        text += " (An earlier attempt may have had its effect.)" if unknown else ""
        milliseconds = round((holder.around.clock.monotonic() - started) * 1000)
        event = CallFinished(call.id, not error, text, milliseconds, unknown=unknown)
        holder.finish(call.id, (event,))


def _time(holder: Holder, value: Until) -> int:
    """The time to wait for, within what can be stored and is worth waiting for; the past is now."""
    now_ms = holder.now_ms()
    latest_ms = now_ms + limits.MAX_WAIT_UNTIL_DAYS * 86_400_000
    try:
        return int(min(max(value.at_ms, now_ms), latest_ms))
    except (TypeError, ValueError):
        return now_ms


def _tool(holder: Holder, call: CallState) -> Tool:
    """The tool, if what was approved is what will run. Raises `NotDone`: nothing has happened yet."""
    tool = holder.agent.by_name.get(call.call.name)
    if tool is None:
        raise NotDone(f"there is no tool {call.call.name!r}")
    if call.call.gated and call.digest != call_digest(call.call.name, call.arguments, tool.digest):
        raise NotDone("the approval does not cover this call; it was not run")
    return tool


def _context(holder: Holder, call: CallState, stop: threading.Event) -> ToolContext:
    emit = holder.around.watch(holder.thread_id)
    emit(StatusLine(f"running {call.call.name}"))
    return ToolContext(
        thread_id=holder.thread_id,
        call_id=call.id,
        attempt=max(call.attempt, 1),
        idempotency_key=idempotency_key(holder.thread_id, call),
        deadline_ms=call.deadline_ms or holder.now_ms() + call.call.timeout_ms,
        now_ms=holder.now_ms(),
        emit_progress=Progress(call.id, emit, lambda: call.id in holder.running),
        stop=stop,
    )


async def _verify(holder: Holder, call: CallState) -> None:
    """Ask the tool what became of a call in doubt. What to do about the answer is for `next_step`."""
    tool = holder.agent.by_name.get(call.call.name)
    holder.around.watch(holder.thread_id)(StatusLine(f"asking what became of {call.call.name}"))
    verdict = None
    try:
        async with asyncio.timeout(call.call.timeout_ms / 1000 or limits.TOOL_TIMEOUT_SECONDS):
            if tool is not None:
                work = tool.verify(call.arguments, idempotency_key(holder.thread_id, call))
                verdict = await (seen.verify(call, work) if (seen := holder.around.observe) else work)
    except TimeoutError:
        pass
    match verdict:
        case Happened(result):
            holder.finish(call.id, (CallFinished(call.id, text=result_text(result)),))
        case DidNotHappen():
            holder.finish(call.id, (), doubt="verify: it did not happen", verdict="did_not_happen")
        case _:
            reason = getattr(verdict, "reason", "") or "no answer"
            holder.finish(call.id, (), doubt=f"verify could not tell: {reason}", verdict="unknown")
