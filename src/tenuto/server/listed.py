"""Pages of lists, as far as they are in the caller's scope."""

from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from tenuto import limits
from tenuto.server.access import Caller
from tenuto.server.callers import check_agent


class _OfAgent(Protocol):
    @property
    def agent(self) -> str: ...


Row = TypeVar("Row", bound=_OfAgent)
Place = TypeVar("Place")


class Listed(NamedTuple, Generic[Row, Place]):
    """What is asked for: `fetch` gives up to so many rows of one agent (None: of all) behind a place."""

    fetch: Callable[[str | None, Place | None, int], Awaitable[list[Row]]]
    place_of: Callable[[Row], Place]
    agent: str | None
    limit: int


class Page(NamedTuple, Generic[Row, Place]):
    """`next` is the place behind which the next page begins; None when this is the last."""

    rows: list[Row]
    next: Place | None


async def in_scope(caller: Caller, asked: Listed[Row, Place], start: Place | None) -> Page[Row, Place]:
    """The page behind `start`. Raises `Problem` 403 when an agent is asked for that is not in scope.

    The store knows all agents or one. For a caller with several, rows of others are read and left out, up to
    MAX_SCANNED_ROWS: a page can be short, even empty, and still not be the last.
    """
    agent = asked.agent
    if agent is not None:
        check_agent(caller, agent)
    elif len(caller.agents) == 1:
        agent = caller.agents[0]
    if agent is not None or not caller.agents:
        rows = await asked.fetch(agent, start, asked.limit + 1)
        page = rows[: asked.limit]
        return Page(page, asked.place_of(page[-1]) if len(rows) > asked.limit else None)
    found: list[Row] = []
    place, scanned = start, 0
    while scanned < limits.MAX_SCANNED_ROWS:
        rows = await asked.fetch(None, place, limits.MAX_PAGE_ROWS)
        for row in rows:
            if caller.sees(row.agent):
                if len(found) == asked.limit:
                    return Page(found, asked.place_of(found[-1]))
                found.append(row)
        if len(rows) < limits.MAX_PAGE_ROWS:
            return Page(found, None)
        place, scanned = asked.place_of(rows[-1]), scanned + len(rows)
    return Page(found, place)
