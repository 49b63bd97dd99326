"""Opening the database or server that is meant, and finding in it what the beginning of an id names."""

import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

from tenuto.agent import Agent
from tenuto.cli.target import Target
from tenuto.client import Client
from tenuto.errors import Conflict, InterruptNotFound, InvalidInput, NotFound, ThreadNotFound, Undecodable
from tenuto.events import Entry
from tenuto.limits import MAX_PAGE_ROWS
from tenuto.rows import InterruptRow, StoredEvent, ThreadRow
from tenuto.runtime import Runtime, Settings
from tenuto.store import open_store

WHOLE_ID: Final = 36
_SHOWN_MATCHES = 5


AnyRuntime = Runtime | Client
"""What commands work on: the verbs are the same. Only a `Runtime` can `drive` a thread."""


def opened(target: Target, agents: Iterable[Agent] = (), *, must_exist: bool = True) -> AnyRuntime:
    """A server's client to enter, or a runtime that advances only the threads it is given.

    Raises `NotFound` for a missing file.
    """
    if target.url:
        return Client(target.url, token=os.environ.get("TENUTO_TOKEN", ""))
    store = open_store(target.database)
    path = getattr(store, "path", None)  # a server has none, and says itself when it is not there
    if must_exist and path is not None and not Path(path).exists():
        raise NotFound(f"there is no database {path}; name one with --database or TENUTO_DATABASE")
    return Runtime(agents, store, settings=Settings(worker=False))


async def find_thread(runtime: AnyRuntime, beginning: str) -> ThreadRow:
    """The one thread whose id begins so. Raises `ThreadNotFound`, `Conflict` when there are several."""
    if len(beginning) == WHOLE_ID:
        return await runtime.thread(beginning)
    found = [row async for row in all_threads(runtime) if row.id.startswith(beginning)]
    if not found:
        raise ThreadNotFound(f"there is no thread {beginning}")
    if len(found) > 1:
        raise Conflict(_several("threads", beginning, [row.id for row in found]))
    return found[0]


async def find_interrupt(runtime: AnyRuntime, beginning: str) -> InterruptRow:
    """The one interrupt whose id begins so, pending ones first. Raises `InterruptNotFound`, `Conflict`."""
    if len(beginning) == WHOLE_ID:
        return await runtime.interrupt(beginning)
    for pending in (True, False):
        found = [row async for row in all_interrupts(runtime, pending) if row.id.startswith(beginning)]
        if len(found) > 1:
            raise Conflict(_several("interrupts", beginning, [row.id for row in found]))
        if found:
            return found[0]
    raise InterruptNotFound(f"there is no interrupt {beginning}")


def check_reached(row: ThreadRow, seq: int) -> None:
    """Raises `InvalidInput` for a place that the thread has not reached."""
    if seq > row.head_seq:
        raise InvalidInput(f"there is no event {seq}; the last of thread {row.id} is {row.head_seq}")


async def all_threads(runtime: AnyRuntime) -> AsyncIterator[ThreadRow]:
    """Every thread, newest first, a page at a time."""
    page = await runtime.threads(limit=MAX_PAGE_ROWS)
    while page:
        for row in page:
            yield row
        last = page[-1]
        page = await runtime.threads(limit=MAX_PAGE_ROWS, before=(last.created_at_ms, last.id))


async def all_events(runtime: AnyRuntime, thread_id: str, after: int = 0) -> AsyncIterator[Entry]:
    """Every event with seq > after, a page at a time."""
    while page := await runtime.events(thread_id, after):
        for entry in page:
            yield entry
        after = page[-1].seq


async def all_stored(
    runtime: AnyRuntime, thread_id: str, after: int = 0
) -> AsyncIterator[Entry | tuple[StoredEvent, Undecodable]]:
    """The same, and in its place what is stored of an event that cannot be read, and why not."""
    while True:
        try:
            async for entry in all_events(runtime, thread_id, after):
                yield entry
                after = entry.seq
            return
        except Undecodable as error:
            if error.seq <= after:
                raise  # a server that does not say which one it is
            (stored,) = await runtime.stored(thread_id, error.seq - 1, 1)
            yield stored, error
            after = error.seq


async def all_interrupts(runtime: AnyRuntime, pending: bool) -> AsyncIterator[InterruptRow]:
    """Every pending or every decided interrupt, oldest first, a page at a time."""
    page = await runtime.interrupts(pending=pending, limit=MAX_PAGE_ROWS)
    while page:
        for row in page:
            yield row
        page = await runtime.interrupts(pending=pending, limit=MAX_PAGE_ROWS, after=page[-1].id)


def _several(what: str, beginning: str, ids: list[str]) -> str:
    more = ", …" if len(ids) > _SHOWN_MATCHES else ""
    return f"{len(ids)} {what} begin with {beginning}: {', '.join(ids[:_SHOWN_MATCHES])}{more}"
