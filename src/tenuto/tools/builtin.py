"""Tools that an agent can be given as they are: wait for a time, ask a person."""

import dataclasses
from datetime import UTC, datetime, timedelta

from tenuto.errors import NotDone
from tenuto.limits import MAX_WAIT_UNTIL_DAYS
from tenuto.tools.declare import tool
from tenuto.tools.running import ToolContext
from tenuto.tools.tool import Until

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@tool(effect="read")
async def wait_until(
    context: ToolContext, until: datetime | None = None, seconds: float | None = None
) -> Until:
    """Wait until a moment, or for a number of seconds, before going on. Give exactly one of the two.

    Args:
        until: The moment, ISO 8601 with an offset from UTC, such as 2030-03-01T09:00:00+01:00.
        seconds: How long to wait, in seconds.
    """
    if (until is None) == (seconds is None):
        raise ValueError("give exactly one of until and seconds")
    if until is not None:
        if until.tzinfo is None:
            raise ValueError("until has no offset from UTC; write it as 2030-03-01T09:00:00+01:00")
        at_ms = (until - _EPOCH) // timedelta(milliseconds=1)
    else:
        at_ms = context.now_ms + round((seconds or 0) * 1000)
    if seconds is not None and seconds < 0:
        raise ValueError("seconds cannot be negative")
    if at_ms > context.now_ms + MAX_WAIT_UNTIL_DAYS * 86_400_000:
        raise ValueError(f"that is more than {MAX_WAIT_UNTIL_DAYS} days away, the longest wait there is")
    return Until(at_ms)


@tool(effect="read", name="ask_person")
async def _ask_person(question: str) -> str:
    """Ask a person a question and wait for the answer. Use it when only a person can know or decide.

    Args:
        question: The question, with all that a person needs to answer it.
    """
    raise NotDone(f"a person has to answer this: {question}")


ask_person = dataclasses.replace(_ask_person, asks=True)
