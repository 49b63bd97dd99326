"""Commands that only read: inbox, threads, show, verify. None of them creates a database."""

from typing import Any

import msgspec

from tenuto.chain import ChainReport
from tenuto.cli.find import (
    AnyRuntime,
    all_interrupts,
    all_stored,
    all_threads,
    check_reached,
    find_thread,
    opened,
)
from tenuto.cli.lines import plain
from tenuto.cli.target import Target
from tenuto.cli.terminal import complain, console, moment, now_ms, print_json, progress, safe, span
from tenuto.cli.transcript import Transcript
from tenuto.cli.view import View, asked_briefly, expires_in
from tenuto.client import Client
from tenuto.doubt import InDoubt
from tenuto.errors import NotFound, Undecodable
from tenuto.events import Entry, ThreadId
from tenuto.rows import ThreadRow

SHORT_ID = 8


async def inbox(target: Target, as_json: bool) -> None:
    """What waits for a person, oldest first."""
    async with opened(target) as runtime:
        rows = [row async for row in all_interrupts(runtime, pending=True)]
        doubts = await runtime.in_doubt()
        ready = "" if as_json else await unserved(runtime)
    if as_json:
        for doubt in doubts:  # beside the list, whose form programs know
            complain(doubtful(doubt))
        return print_json(rows)
    for doubt in doubts:
        console().print(safe(doubtful(doubt)), style="yellow")
    if ready:
        console().print(safe(ready), style="yellow")
    if not rows:
        return None if doubts else console().print("nothing waits for a person")
    table = new_table("id", "kind", "tool", "arguments", "thread", "age", "expires in")
    for row in rows:
        cells = (row.id[:SHORT_ID], row.kind, row.name, asked_briefly(row), row.thread_id[:SHORT_ID])
        table.add_row(*map(safe, cells), span(now_ms() - row.raised_at_ms), expires_in(row))
    return console().print(table, soft_wrap=False)


def doubtful(doubt: InDoubt) -> str:
    """What an inbox cannot list yet: a call in doubt becomes an item when a worker looks at its thread."""
    return f"thread {doubt.thread_id}, call {doubt.call_id}: {doubt.text}"


async def unserved(runtime: AnyRuntime) -> str:
    """Threads that could go on and that nobody takes."""
    # A server does not tell of those that run single threads: of those it is only seen that they are held.
    workers = await (runtime.workers() if isinstance(runtime, Client) else runtime.store.workers())
    served = {name for worker in workers for name in worker.agents}
    alive = {worker.owner for worker in workers}
    rows = await runtime.threads(status="running", limit=100)
    if isinstance(runtime, Client):
        alive |= {row.lease_owner for row in rows if row.lease_owner is not None}
    left = [row for row in rows if row.agent not in served and row.lease_owner not in alive]
    if not left:
        return ""
    count = f"{len(left)} threads are" if len(left) > 1 else "1 thread is"
    return f"{count} ready and no worker takes them. Start one: tenuto serve MODULE:AGENT"


async def threads(target: Target, filters: dict[str, Any], before: str | None, as_json: bool) -> None:
    """The newest threads, or the newest of those that started before one."""
    async with opened(target) as runtime:
        if before is not None:
            last = await find_thread(runtime, before)
            filters["before"] = last.created_at_ms, last.id
        rows = await runtime.threads(**filters)
    if as_json:
        return print_json(rows)
    if not rows:
        return console().print("no more threads" if before else "no threads")
    table = new_table("id", "agent", "status", "events", "started", "last event")
    for row in rows:
        times = moment(row.created_at_ms), moment(row.updated_at_ms)
        table.add_row(row.id, safe(row.agent), row.status, str(row.head_seq), *times)
    console().print(table, soft_wrap=False)
    if len(rows) == filters["limit"]:
        console().print(f"there may be more: --before {rows[-1].id}", style="dim")
    return None


async def show(target: Target, thread: str, after: int, form: str, follow: bool) -> None:
    """A thread's events; `follow` goes on until it is interrupted.

    Raises `InvalidInput` for a place that the thread has not reached.
    """
    async with opened(target) as runtime:
        row = await find_thread(runtime, thread)
        check_reached(row, after)
        unread: Undecodable | None = None
        if form == "json":
            found: list[dict[str, Any]] = []
            async for item in all_stored(runtime, row.id, after):
                if isinstance(item, Entry):
                    found.append(plain(item))
                else:
                    stored, unread = item
                    place = {"seq": stored.seq, "at_ms": stored.at_ms, "type": stored.type}
                    found.append(place | {"event": None, "fault": str(unread)})
            print_json(found)
            return _shown(row, unread)
        view: View | Transcript = Transcript() if form == "markdown" else View(brief=False)
        out = console()
        if not after:
            out.print(view.head(row), style="bold" if form == "text" else None)
        async for item in all_stored(runtime, row.id):
            if isinstance(item, Entry) and item.seq <= after:
                view.learn(item.event)
            elif isinstance(item, Entry):
                after = item.seq
                for line in view.entry(item):
                    out.print(line)
            elif item[0].seq > after:
                stored, unread = item
                after = stored.seq
                fault = f"{after:>4}  {moment(stored.at_ms)}  {safe(stored.type)} cannot be read"
                out.print(fault + "\n" * (form == "markdown"), style="red")
        if not follow:
            for doubt in await runtime.in_doubt(row.id):
                out.print(safe(doubtful(doubt)), style="yellow")
        else:
            async for told in runtime.follow(row.id, after):
                for line in view.entry(told) if isinstance(told, Entry) else ():
                    out.print(line)
        return _shown(row, unread)


def _shown(row: ThreadRow, unread: Undecodable | None) -> None:
    """Raises what could not be read, once the rest is shown."""
    if unread is not None:
        raise Undecodable(f"{unread}; `tenuto verify {row.id}` tells more") from unread


async def verify(target: Target, thread: str | None, *, heads: bool, as_json: bool) -> int:
    """Check one thread's hash chain, or all; the exit code."""
    reports: dict[ThreadId, ChainReport] = {}
    strays: list[str] = []
    async with opened(target) as runtime:
        if thread is not None:
            ids = [(await find_thread(runtime, thread)).id]
        else:
            ids = [row.id async for row in all_threads(runtime)]
            strays = [] if isinstance(runtime, Client) else await runtime.store.strays()
        with progress() as tell:

            def watch(checked: int) -> None:
                tell(f"thread {len(reports) + 1} of {len(ids)}: {checked} events are as they were written")

            for thread_id in ids:
                try:
                    reports[thread_id] = await runtime.verify(thread_id, watch)
                except NotFound as error:
                    # Its id is one that nobody can ask for: what cannot be read in it was replaced.
                    reports[thread_id] = ChainReport(False, reason=f"its id cannot be read: {error}")
    bad = {thread_id: report for thread_id, report in reports.items() if not report.ok}
    for thread_id, report in bad.items():
        complain(f"thread {thread_id}: event {report.first_bad_seq}: {report.reason}")
    for stray in strays:
        complain(stray)
    if as_json:
        found = [
            {"id": id, **msgspec.structs.asdict(report), "head_hash": report.head_hash.hex()}
            for id, report in reports.items()
        ]
        print_json({"threads": found, "strays": strays})
    elif not heads:
        console().print(f"{len(ids) - len(bad)} of {len(ids)} threads are as they were written")
    for thread_id, report in reports.items() if heads and not as_json else ():
        if report.ok:
            console().print(f"{thread_id} {report.checked} {report.head_hash.hex()}")
    return 1 if bad or strays else 0


def new_table(*columns: str) -> Any:
    """An empty table of these columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in ("id", "thread", "age"))
    return table
