"""`tenuto follow`: what happened in a thread, and from there on what happens."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tenuto.cli.find import AnyRuntime, check_reached, find_thread, opened
from tenuto.cli.lines import LineWriter, summary
from tenuto.cli.run import learn
from tenuto.cli.target import Target
from tenuto.cli.terminal import complain, console, safe
from tenuto.cli.view import View
from tenuto.events import Entry
from tenuto.messages import AttemptFailed, Live, ReplySoFar, StatusLine, TextDelta, ToolProgress
from tenuto.rows import ThreadRow
from tenuto.stream import Replayed

if TYPE_CHECKING:
    from rich.console import Console

    from tenuto.cli.region import Region


async def follow(target: Target, thread: str, after: int, jsonl: bool, rest: bool) -> None:
    """Replay, then live, until it is interrupted, or with `rest` until the thread rests.

    Raises `InvalidInput` for a place that the thread has not reached.
    """
    async with opened(target) as runtime:
        row = await find_thread(runtime, thread)
        check_reached(row, after)
        seq, out = after, LineWriter()
        told = None if jsonl else await _told(runtime, row, after)
        try:
            async with contextlib.aclosing(runtime.follow(row.id, after, rest=rest)) as items:
                async for item in items:
                    if told is None:
                        await out.item(item)
                    else:
                        told.show(item)
                    seq = item.seq if isinstance(item, Entry) else seq
        except (KeyboardInterrupt, asyncio.CancelledError):
            if told is not None:
                told.close()
            complain(f"left after event {seq}; go on with: tenuto follow {row.id} --after {seq}{target.hint}")
            raise
        if told is None:
            await out.write({"type": "rested", "seq": seq} | summary(await runtime.state(row.id)))
        else:
            told.close()
            told.out.print(f"thread {row.id} is {(await runtime.thread(row.id)).status}", style="bold")


async def _told(runtime: AnyRuntime, row: ThreadRow, after: int) -> "_Told":
    told = _Told(console())
    if not after:
        told.out.print(told.view.head(row), style="bold")
    else:
        await learn(told.view, runtime, row.id, after)
    return told


class _Told:
    """Events in full; what is only seen while it arrives is at the end of a terminal, and not in a pipe."""

    def __init__(self, out: "Console") -> None:
        self.out = out
        self.view = View(brief=False)
        self._region: Region | None = None
        if out.is_terminal and not out.is_dumb_terminal:
            from tenuto.cli import region

            self._region = region.Region(out)
        self._text = ""

    def show(self, item: Entry | Replayed | Live) -> None:
        match item:
            case Entry():
                self.close()
                for line in self.view.entry(item):
                    self.out.print(line)
            case Replayed(seq):
                self.close()
                self.out.print(
                    f"—— up to event {seq} this is the past; from here on it happens now", style="dim"
                )
            case TextDelta(text):
                self._text += text
                self._draw(self._text)
            case ReplySoFar(text):
                self._text = text
                self._draw(self._text)
            case ToolProgress(message=message) | StatusLine(text=message):
                self._draw(f"… {message}")
            case AttemptFailed(error):
                self._text = ""
                self._draw(error)
            case _:
                pass

    def close(self) -> None:
        """Take back what an event has superseded."""
        self._text = ""
        if self._region is not None:
            self._region.clear()

    def _draw(self, text: str) -> None:
        if self._region is not None:
            from rich.text import Text

            self._region.show(Text(safe(text), "dim"))
