"""`tenuto fleet`: who works, on which machine, and what waits for them or for people, at a glance."""

import asyncio
from typing import Any, Final

from tenuto.cli.find import AnyRuntime, opened
from tenuto.cli.look import new_table
from tenuto.cli.target import Target
from tenuto.cli.terminal import console, moment, print_json, safe, span
from tenuto.errors import StoreError
from tenuto.limits import POLL_SECONDS
from tenuto.rows import Fleet, WorkerRow

PEOPLE: Final = ("approval", "question", "review")


async def fleet(target: Target, as_json: bool, watch: bool) -> None:
    """Once; or at a terminal, with `watch`, again and again until Ctrl-C."""
    async with opened(target) as runtime:
        if watch and console().is_terminal:
            await _watch(runtime)
            return
        now = await runtime.fleet()
    if as_json:
        print_json(now)
    else:
        console().print(shown(now), soft_wrap=False)


async def _watch(runtime: AnyRuntime) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    last: Any = None
    with Live(console=console(), auto_refresh=False) as screen:
        while True:
            try:
                last = now = shown(await runtime.fleet())
            except StoreError as error:
                # A database that comes back is what is being waited for; until then, what was seen last.
                now = Group(last or "", Text(safe(str(error)), style="red"))
            screen.update(now, refresh=True)
            await asyncio.sleep(POLL_SECONDS)


def shown(now: Fleet) -> Any:
    """The fleet for people."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    takers = [row for row in now.workers if row.agents]
    if takers or any(row.leases for row in now.workers):
        parts.append(_workers(now))
    if not takers:
        parts.append(Text("no worker takes threads; start one: tenuto worker MODULE:AGENT", style="yellow"))
    parts += [Text(line) for line in _waits(now)]
    return Group(*parts)


def _workers(now: Fleet) -> Any:
    table = new_table("worker", "host", "pid", "agents", "holds", "since", "seen")
    for row in now.workers:
        agents = ", ".join(row.agents) or "those it is given"
        table.add_row(
            *map(safe, (row.owner, row.host or "here", str(row.pid), agents)),
            *(str(row.leases), moment(row.started_at_ms), _seen(row, now.at_ms)),
        )
    return table


def _seen(row: WorkerRow, at_ms: int) -> str:
    return "now" if row.seen_at_ms is None else f"{span(at_ms - row.seen_at_ms)} ago"


def _waits(now: Fleet) -> list[str]:
    def told(what: str, one: str, many: str) -> str:
        count, since_ms = now.waiting[what]
        return f"{count} {one if count == 1 else many}, the first for {span(now.at_ms - since_ms)}"

    lines = []
    if "runnable" in now.waiting:
        lines.append(told("runnable", "thread waits for a worker", "threads wait for a worker"))
    if "abandoned" in now.waiting:
        count = now.waiting["abandoned"][0]
        lines.append(f"{count} of them had a worker, whose lease ended")
    lines += [
        told(kind, f"{kind} waits for a person", f"{kind}s wait for a person")
        for kind in PEOPLE
        if kind in now.waiting
    ]
    return lines or ["nothing waits"]
