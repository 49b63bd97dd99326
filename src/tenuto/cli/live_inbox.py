"""`tenuto inbox` at a terminal: a list that lives, and decisions with a key, each with the digest shown."""

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.live import Live

from tenuto.agent import Agent
from tenuto.cli.agents import check_models, load_agents, named_agents
from tenuto.cli.conversation import Conversation
from tenuto.cli.find import AnyRuntime, opened
from tenuto.cli.inbox_view import Choice, InboxView
from tenuto.cli.keys import Keyboard
from tenuto.cli.look import doubtful, unserved
from tenuto.cli.target import Target
from tenuto.cli.tell import who_goes_on, worker_for
from tenuto.cli.terminal import complain, console, log_to, moment, pretty
from tenuto.client import Client
from tenuto.errors import AlreadyDecided, TenutoError
from tenuto.rows import InterruptRow

LOOK_SECONDS: Final = 0.5
LOOK_AT_SERVER_SECONDS: Final = 2.0
MOST_ROWS: Final = 500


async def live_inbox(target: Target, agents: list[Agent], by: str, note: str = "") -> None:
    """Until the person leaves it. `agents` are known here: threads without a worker run here, too."""
    async with opened(target, agents) as runtime:
        inbox = LiveInbox(runtime, agents, by, note or await _beside(runtime))
        try:
            await inbox.run()
            if inbox.running:
                running = ", ".join(inbox.running)
                console().print(f"still running here: {running}; Ctrl-C hands over", style="dim")
                await asyncio.wait(inbox.running.values())
        except asyncio.CancelledError:
            if inbox.running:
                complain("stopped; nothing is lost, and the next worker goes on")
            raise
        finally:
            await inbox.hand_over()


async def _beside(runtime: AnyRuntime) -> str:
    """What no list shows, in one line: calls that may have happened, threads that nobody takes."""
    return "; ".join([*map(doubtful, await runtime.in_doubt()), *filter(None, [await unserved(runtime)])])


def known_agents(option: str | None) -> tuple[list[Agent], str]:
    """The agents that can be had here; what keeps others away is a note, for decisions need none."""
    try:
        return load_agents(named_agents(option)), ""
    except TenutoError as error:
        return [], str(error)


class LiveInbox:
    """Keys, the screen, and what goes on behind it. `running`: the threads that run here, by id."""

    def __init__(self, runtime: AnyRuntime, agents: list[Agent], by: str, note: str) -> None:
        self.running: dict[str, asyncio.Task[None]] = {}
        self._runtime = runtime
        self._agents = {agent.name: agent for agent in agents}
        self._by = by
        self._view = InboxView(note=note)
        self._out = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
        self._live: Live | None = None
        self._keyboard = Keyboard()

    async def run(self) -> None:
        """Until q. Raises CancelledError after Ctrl-C; then nothing is decided that was not confirmed."""
        await self._refresh()
        loop = asyncio.get_running_loop()
        with (
            self._keyboard,
            log_to(lambda line: loop.call_soon_threadsafe(self._say, line)),
            self._screen(),
        ):
            loop.add_signal_handler(signal.SIGWINCH, self._draw)
            loop.add_signal_handler(signal.SIGTSTP, self._suspend)
            looking = asyncio.create_task(self._look())
            try:
                while not self._view.quit:
                    self._draw()
                    if choice := self._view.press(await self._keyboard.key()):
                        self._draw()
                        await self._decide(choice)
            finally:
                loop.remove_signal_handler(signal.SIGWINCH)
                loop.remove_signal_handler(signal.SIGTSTP)
                looking.cancel()
                await asyncio.wait([looking])

    async def hand_over(self) -> None:
        """Stop what runs here; whoever is next goes on."""
        for task in self.running.values():
            task.cancel()
        if self.running:
            await asyncio.wait(self.running.values())

    async def _look(self) -> None:
        seconds = LOOK_AT_SERVER_SECONDS if isinstance(self._runtime, Client) else LOOK_SECONDS
        while True:
            await asyncio.sleep(seconds)
            try:
                await self._refresh()
            except TenutoError as error:
                self._say(str(error))
            self._draw()  # ages grow as well

    async def _refresh(self) -> None:
        self._view.refresh(await self._runtime.interrupts(pending=True, limit=MOST_ROWS))
        row = self._view.opened
        if row is not None and row.outcome is None and all(other.id != row.id for other in self._view.rows):
            now = await self._runtime.interrupt(row.id)
            if now.outcome is not None:
                self._view.decided(now)

    async def _decide(self, choice: Choice) -> None:
        """Decide what was shown, once. What is wrong with it is said, and nothing was decided."""
        row, decision = choice.row, choice.decision
        try:
            if choice.verb == "edit":
                arguments = await self._edited(row)
                if arguments is None:
                    self._draw()
                    return
                decision["arguments"] = arguments
            decision["channel"] = "inbox"
            await self._runtime.resolve(row.id, choice.verb, by=self._by, **decision)
        except AlreadyDecided as error:
            self._say(f"{error}, {moment(error.at_ms)}" if error.at_ms else str(error))
        except TenutoError as error:
            self._say(str(error))
            return
        else:
            self._view.close()
            self._say(f"{row.kind} {row.id[:8]} decided; {await self._goes_on(row)}")
        with contextlib.suppress(TenutoError):
            await self._refresh()

    async def _goes_on(self, row: InterruptRow) -> str:
        """Who goes on with the thread: a server, a live worker, or this very command."""
        if isinstance(self._runtime, Client):
            return f"the server goes on with thread {row.thread_id}"
        worker = await worker_for(self._runtime, row.agent)
        if worker is not None or row.agent not in self._agents:
            why = "" if worker else f"agent {row.agent!r} is not known here: "
            return who_goes_on(worker, row.thread_id, why)
        try:
            check_models([self._agents[row.agent]])
        except TenutoError as error:
            return who_goes_on(None, row.thread_id, f"{error}: ")
        if row.thread_id not in self.running:
            self.running[row.thread_id] = asyncio.create_task(self._run(row.thread_id))
        return f"thread {row.thread_id} runs here"

    async def _run(self, thread_id: str) -> None:
        try:
            row = await self._runtime.thread(thread_id)
            talk = Conversation(self._runtime, self._by, row.id, row.head_seq)
            async with contextlib.aclosing(talk.turn()) as items:
                async for _ in items:
                    pass
            self._say(f"thread {thread_id} is {(await talk.row()).status}")
        except TenutoError as error:
            self._say(str(error))
        finally:
            del self.running[thread_id]

    async def _edited(self, row: InterruptRow) -> str | None:
        """New arguments from $EDITOR, or None and a note why. Everything else goes on meanwhile."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
        with _arguments_file(row.arguments) as file:
            before = file.read_bytes()
            with self._lent():
                try:
                    process = await asyncio.create_subprocess_exec(*shlex.split(editor), str(file))
                    code = await process.wait()
                except (OSError, ValueError) as error:  # ValueError: a quotation without its end
                    self._view.note = f"the editor cannot be started: {error}"
                    return None
            after = file.read_bytes()
        if code or after == before:
            self._view.note = f"the editor ended with {code}" if code else "nothing was changed"
            return None
        return after.decode(errors="replace")

    def _say(self, note: str) -> None:
        self._view.note = note
        self._draw()

    def _draw(self) -> None:
        if self._live is not None:
            self._live.update(self._view, refresh=True)

    @contextlib.contextmanager
    def _screen(self) -> Iterator[None]:
        """The other screen of the terminal; what was there before comes back."""
        self._live = Live(
            self._view,
            console=self._out,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        # What a tool that runs here prints has no place on it.
        with (
            Path(os.devnull).open("w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            try:
                with self._live:
                    yield
            finally:
                self._live = None

    def _suspend(self) -> None:
        """Ctrl-Z: the shell has its terminal back as it was, until it goes on."""
        with self._lent() if self._live is not None else contextlib.nullcontext():
            os.kill(os.getpid(), signal.SIGSTOP)

    @contextlib.contextmanager
    def _lent(self) -> Iterator[None]:
        """Another program has the whole terminal meanwhile."""
        assert self._live is not None
        live, self._live = self._live, None
        live.stop()
        # Ctrl-C is for that program; ignored by us, not by it, as it would be with SIG_IGN.
        handler = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            with self._keyboard.lent():
                yield
        finally:
            signal.signal(signal.SIGINT, handler)
            live.start()
            self._live = live


@contextlib.contextmanager
def _arguments_file(arguments: str) -> Iterator[Path]:
    """A file of them for an editor, readable by its owner alone."""
    with tempfile.TemporaryDirectory(prefix="tenuto-") as place:
        file = Path(place, "arguments.json")
        file.write_text(pretty(arguments) + "\n", encoding="utf-8")
        yield file
