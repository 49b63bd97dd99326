"""`tenuto chat` at a terminal: say something, watch the turn, decide what it asks, say the next thing."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Final

from tenuto.agent import Agent
from tenuto.cli.ask import ask, forget_typed, read_line
from tenuto.cli.chat_lines import ChatLines
from tenuto.cli.conversation import Conversation
from tenuto.cli.find import opened
from tenuto.cli.history import History, history_file
from tenuto.cli.run import Task, conclude, say_until_when, talk_about
from tenuto.cli.screen import FormattedScreen, screen_for
from tenuto.cli.target import Target
from tenuto.cli.terminal import (
    Ended,
    complain,
    console,
    is_interactive,
    losing_no_output,
    printing_aside,
    safe,
)
from tenuto.errors import TenutoError
from tenuto.events import Entry, ModelFailed, ThreadFailed, ThreadHalted
from tenuto.rows import ThreadRow

PROMPT: Final = "> "
EARLIER_EVENTS: Final = 12
HELP: Final = """\
/thread  which thread this is, and how to go on with it
/inbox   decide what waits for a person in this thread
/help    this
/quit    leave, as Ctrl-D does; the thread stays
Ctrl-C stops a turn. Begin with a space to say something that begins with a slash."""


EXIT_CODES: Final = {"completed": 0, "failed": 1, "halted": 1, "cancelled": 1}
WAITS: Final = 3


async def chat(target: Target, agents: list[Agent], task: Task, *, jsonl: bool, once: bool) -> int:
    """Talk until the person or the program has said all; the exit code, with `once` by the turn's outcome."""
    async with opened(target, agents, must_exist=task.thread is not None) as runtime:
        talk = await talk_about(runtime, task, "chat")
        try:
            if jsonl:
                lines = ChatLines(talk)
                with printing_aside():
                    await (lines.once(task.message) if once else lines.run(task.message))
            else:
                person = Chat(talk, task.hint)
                await (person.once(task.message or "") if once else person.run(task.message))
        except (KeyboardInterrupt, asyncio.CancelledError):
            if talk.thread_id is not None and (jsonl or once):
                complain(f"stopped; nothing is lost. Go on with: {go_on_with(talk.thread_id, task.hint)}")
            raise
        if not once:
            return 0
        status = "failed" if talk.thread_id is None else (await talk.row()).status
        return EXIT_CODES.get(status, WAITS)


def go_on_with(thread_id: str, hint: str) -> str:
    """The command that goes on with a thread."""
    return f"tenuto chat --thread {thread_id}{hint}"


class Chat:
    """A person at a terminal; without one each line of input is a message, and nothing is asked."""

    def __init__(self, conversation: Conversation, hint: str) -> None:
        self.conversation = conversation
        self._hint = hint
        self._out = console()
        self._screen = screen_for(self._out)
        self._interactive = is_interactive()
        self._left: set[str] = set()  # what the person here did not want to decide now

    async def run(self, message: str | None) -> None:
        """Until the person leaves. Raises KeyboardInterrupt after Ctrl-C at the prompt."""
        history = History(history_file()) if self._interactive else None
        try:
            if self.conversation.thread_id is not None and self._interactive:
                await self._show_earlier()
            if message is not None:
                await self._say(message)
            while (line := read_line(PROMPT if self._interactive else "")) is not None:
                if history is not None:
                    history.add(line)
                if line.startswith("/") and self._interactive:
                    if line.strip() == "/quit":
                        break
                    await self._command(line.strip())
                elif line.strip():
                    await self._say(line.strip())
        finally:
            if self.conversation.thread_id is not None:
                self._out.print(
                    f"go on with: {go_on_with(self.conversation.thread_id, self._hint)}", style="dim"
                )

    async def once(self, message: str) -> None:
        """One turn, with what it asks, and how it ended."""
        thread_id = await self.conversation.say(message)
        await self._go_on()
        await conclude(
            self.conversation.runtime, await self.conversation.runtime.state(thread_id), self._hint
        )

    async def _command(self, line: str) -> None:
        thread_id = self.conversation.thread_id
        match line:
            case "/help":
                self._out.print(HELP)
            case "/thread" | "/inbox" if thread_id is None:
                self._out.print("no thread yet: say something", style="dim")
            case "/thread":
                row = await self.conversation.row()
                self._out.print(f"{self._screen.view.head(row)}, {row.head_seq} events")
                self._out.print(f"go on with: {go_on_with(row.id, self._hint)}", style="dim")
            case "/inbox":
                self._left.clear()
                if not await self.conversation.runtime.interrupts(thread_id=thread_id):
                    self._out.print("nothing waits for a person in this thread")
                else:
                    await self._go_on(ask_first=True)
            case _:
                complain(f"there is no {line.split(maxsplit=1)[0]}; /help says what there is")

    async def _say(self, message: str) -> None:
        try:
            thread_id = await self.conversation.say(message)
            await self._go_on()
            if not self._interactive and (await self.conversation.row()).status.startswith("awaiting"):
                runtime = self.conversation.runtime
                await conclude(runtime, await runtime.state(thread_id), self._hint)
        except TenutoError as error:
            self._screen.end_line()
            complain(str(error))

    async def _go_on(self, *, ask_first: bool = False) -> None:
        """Turns, and what they ask, until nothing can be decided here and now."""
        while True:
            if not ask_first:
                await self._turn()
            ask_first = False
            thread_id = self.conversation.thread_id
            assert thread_id is not None
            if not self._interactive:
                return
            try:
                decided = await ask(
                    self.conversation.runtime, thread_id, self._left, self._out, self.conversation.by
                )
            except Ended:
                raise
            except KeyboardInterrupt:
                rows = await self.conversation.runtime.interrupts(thread_id=thread_id)
                self._left |= {row.id for row in rows}
                decided = False
            if not decided:
                if self._left:
                    self._out.print("what waits for a person is still there: /inbox", style="dim")
                return

    async def _turn(self) -> None:
        with losing_no_output(), ctrl_c_stops(self.conversation, self._stopping):
            while True:
                row = await self._watched()
                if row.status == "sleeping" and self._interactive:
                    say_until_when(self._out, row, "stops it")
                    await self.conversation.sleep(row)
                elif row.status != "running":  # else something was said to it meanwhile
                    return

    def _stopping(self) -> None:
        forget_typed()
        self._screen.break_line()

    async def _watched(self) -> ThreadRow:
        """Show a turn until the thread rests, and say how it ended unless it is plain to see."""
        ended = told = None
        if isinstance(self._screen, FormattedScreen):
            self._screen.waiting()
        try:
            async with contextlib.aclosing(self.conversation.turn()) as items:
                async for item in items:
                    if isinstance(item, Entry):
                        told, ended = ended, item.event
                    self._screen.show(item)
        finally:
            self._screen.end_line()
        row = await self.conversation.row()
        match row.status:
            case "failed":
                # A model that could not be asked has said so already.
                why = ended.error if isinstance(ended, ThreadFailed) else ""
                said = f": {safe(why)}" if why and not isinstance(told, ModelFailed) else ""
                self._out.print(f"failed{said}; say something to go on", style="red")
            case "halted":
                limit = ended.limit if isinstance(ended, ThreadHalted) else ""
                self._out.print(
                    f"halted: the limit of {limit} is reached; say something to go on", style="yellow"
                )
            case "cancelled":
                self._out.print("stopped", style="yellow")
            case _:
                pass
        return row

    async def _show_earlier(self) -> None:
        """The last of what was said before, for whoever comes back."""
        row = await self.conversation.row()
        first = max(0, row.head_seq - EARLIER_EVENTS)
        self._out.print(self._screen.view.head(row), style="bold")
        if first:
            self._out.print(f"… all of it: tenuto show {row.id[:8]}", style="dim")
        for entry in await self.conversation.runtime.events(row.id, first):
            self._screen.show(entry)
            self.conversation.seq = entry.seq
        self._screen.end_line()
        self._out.print()


@contextlib.contextmanager
def ctrl_c_stops(conversation: Conversation, tidy: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C asks the thread to stop; once more, or SIGTERM, and this command ends at once, the thread handed
    over and the terminal as it was. Raises KeyboardInterrupt.
    """
    loop, whole = asyncio.get_running_loop(), asyncio.current_task()
    stopping: list[asyncio.Task[None]] = []
    left = False

    def leave() -> None:
        nonlocal left
        left = True
        if whole is not None:
            whole.cancel()

    def act() -> None:
        if not stopping:
            tidy()
            complain("stopping; Ctrl-C again leaves at once")
            stopping.append(loop.create_task(_stop(conversation)))
        else:
            leave()

    handlers = {
        number: signal.signal(number, lambda *_, do=do: loop.call_soon_threadsafe(do))
        for number, do in ((signal.SIGINT, act), (signal.SIGTERM, leave))
    }
    try:
        yield
    except asyncio.CancelledError:
        if left:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for task in stopping:
            task.cancel()


async def _stop(conversation: Conversation) -> None:
    try:
        await conversation.stop()
    except TenutoError as error:
        complain(str(error))
