"""What is said of facts in the log of the process: who, what, how long; never what was said.

Threads that start and end, pauses and decisions at INFO, failures at WARNING, each reply and call at DEBUG.
"""

import logging

from tenuto.events import (
    CallFinished,
    CancelRequested,
    Event,
    InterruptRaised,
    InterruptResolved,
    LimitsExtended,
    ModelReplied,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadId,
    ThreadStarted,
)
from tenuto.observe.hold import Hold
from tenuto.rows import InterruptRow

logger = logging.getLogger("tenuto.events")
_LEVELS: dict[type, int] = {
    ThreadFailed: logging.WARNING,
    ModelReplied: logging.DEBUG,
    CallFinished: logging.DEBUG,
}


def recorded(
    event: Event, thread_id: ThreadId, agent: str, hold: Hold | None, row: InterruptRow | None
) -> None:
    """One line about an event that was appended; `row` is that of a decided interrupt."""
    level = _LEVELS.get(type(event), logging.INFO)
    if isinstance(event, CallFinished) and not event.ok:
        level = logging.INFO
    if not logger.isEnabledFor(level):
        return
    message = str(event.__struct_config__.tag).replace("_", " ")
    fields: dict[str, object] = {}
    match event:
        case ThreadCompleted():
            pass
        case ThreadStarted(by=by) | ThreadCancelled(by=by) | CancelRequested(by=by) | LimitsExtended(by=by):
            fields = {"by": by}
        case ThreadFailed(error=error):
            message += f": {error}"
        case ThreadHalted(limit=limit):
            message += f": the limit of {limit} is reached"
        case InterruptRaised(id=id, kind=kind, name=name):
            message = f"{kind} raised" + (f" for {name}" if name else "")
            fields = {"interrupt_id": id, "call_id": event.call_id}
        case InterruptResolved(id=id, outcome=outcome, by=by):
            message = f"{row.kind if row else 'interrupt'} {outcome}" + (f" by {by}" if by else "")
            fields = {"interrupt_id": id, "outcome": outcome, "by": by, "channel": event.channel}
            fields |= {"call_id": row.call_id, "thread_id": row.thread_id, "agent": row.agent} if row else {}
        case ModelReplied(duration_ms=duration_ms):
            message = f"model replied with {len(event.calls)} calls"
            fields = {"duration_ms": duration_ms, "model": event.model, "finish": event.finish}
        case CallFinished(ok=ok, duration_ms=duration_ms):
            name = hold.tool(event.call_id)[0] if hold is not None else ""
            message = f"call of {name} {'succeeded' if ok else 'failed'}"
            fields = {"call_id": event.call_id, "duration_ms": duration_ms, "by": event.by}
        case _:
            return
    known: dict[str, object] = {"thread_id": thread_id, "agent": agent} | fields
    logger.log(level, message, extra={name: value for name, value in known.items() if value})
