"""Advancing a thread in this process, and showing it while it runs."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from tenuto.agent import Agent
from tenuto.cli.ask import ask
from tenuto.cli.conversation import Conversation
from tenuto.cli.find import AnyRuntime, all_events, find_thread, opened
from tenuto.cli.lines import summary
from tenuto.cli.target import Target
from tenuto.cli.terminal import (
    complain,
    console,
    is_interactive,
    moment,
    now_ms,
    print_json,
    printing_aside,
    safe,
    user,
)
from tenuto.cli.view import View, asked
from tenuto.errors import ConfigurationError, UnknownAgent
from tenuto.events import (
    TERMINAL,
    AnyEvent,
    CallStarted,
    Entry,
    InterruptRaised,
    ModelFailed,
    ModelReplied,
)
from tenuto.messages import (
    AttemptFailed,
    CallDelta,
    Live,
    ReasoningDelta,
    ReplySoFar,
    StatusLine,
    TextDelta,
    ToolProgress,
)
from tenuto.rows import ThreadRow
from tenuto.runtime import Runtime
from tenuto.stream import Replayed
from tenuto.thread import ThreadState

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Task:
    """What to run: a `message` to a new thread or to the one whose id begins with `thread`. `agent` is the
    name of the one to start, `hint` what a command needs beside the thread to find it again.
    """

    message: str | None
    thread: str | None
    agent: str
    hint: str
    as_json: bool = False


def one_agent(agents: list[Agent]) -> str:
    """The name of the only one. Raises `ConfigurationError`."""
    if len(agents) > 1:
        names = ", ".join(agent.name for agent in agents)
        raise ConfigurationError(f"which agent? There are {names}; name one with --agent MODULE:AGENT")
    return agents[0].name


async def run(target: Target, agents: list[Agent], task: Task) -> int:
    """Start a thread or go on with one until it ends or waits for a person who is not here; the exit code.

    At a server it runs there, and is shown here.
    """
    async with opened(target, agents, must_exist=task.thread is not None) as runtime:
        talk = await talk_about(runtime, task, "cli")
        screen = None if task.as_json else await screen_of(talk)
        if task.message is not None:
            await talk.say(task.message)
        go_on = f"tenuto run --thread {talk.thread_id}{task.hint}"
        with printing_aside(task.as_json), telling_how_to_go_on(go_on):
            await _converse(talk, screen)
        state = await runtime.state(str(talk.thread_id))
        if task.as_json:
            print_json(summary(state))
        else:
            await conclude(runtime, state, task.hint)
    if state.ended == "failed":
        complain(f"thread {state.id} failed: {state.error}")
    return 1 if state.ended not in (None, "completed") else 0


@contextlib.contextmanager
def telling_how_to_go_on(command: str) -> Iterator[None]:
    """After Ctrl-C: the runtime hands the thread over, and whoever pressed it is told what to do next."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        complain(f"stopped; nothing is lost. Go on with: {command}")
        raise


async def talk_about(runtime: AnyRuntime, task: Task, channel: str) -> Conversation:
    """A new conversation, or one about the thread that `task` names, from its end on.

    Raises `UnknownAgent` for a thread that could not be run here.
    """
    if task.thread is None:
        return Conversation(runtime, user(), agent=task.agent, channel=channel)
    row = await find_thread(runtime, task.thread)
    if isinstance(runtime, Runtime) and row.agent not in runtime.agents:
        raise UnknownAgent(f"thread {row.id} is of agent {row.agent!r}; name that with --agent MODULE:AGENT")
    return Conversation(runtime, user(), row.id, row.head_seq, channel=channel)


async def _converse(talk: Conversation, screen: "Screen | None") -> None:
    left: set[str] = set()  # what the person here did not want to decide now
    while True:
        row = await watch(talk, screen)
        if screen is None or not is_interactive():
            return
        if row.status == "sleeping":
            say_until_when(screen.out, row, "leaves it asleep")
            await talk.sleep(row)
        elif not await ask(talk.runtime, row.id, left, screen.out, talk.by):
            return


def say_until_when(out: "Console", row: ThreadRow, ctrl_c: str) -> None:
    """Of a thread that sleeps; nothing when it is about to wake."""
    if (row.ready_at_ms or 0) > now_ms():
        out.print(f"sleeps until {moment(row.ready_at_ms or 0)}; Ctrl-C {ctrl_c}", style="dim")


async def watch(talk: Conversation, screen: "Screen | None") -> ThreadRow:
    """Let the thread advance until it rests, wherever it runs, and show what happens; its row then."""
    while True:
        try:
            async with contextlib.aclosing(talk.turn()) as items:
                async for item in items:
                    if screen is not None:
                        screen.show(item)
        finally:
            if screen is not None:
                screen.end_line()
        row = await talk.row()
        if row.status != "running":  # else somebody moved it on meanwhile
            return row


async def screen_of(talk: Conversation) -> "Screen":
    """A screen that knows what happened in the thread before."""
    screen = Screen(console())
    if talk.thread_id is not None:
        await learn(screen.view, talk.runtime, talk.thread_id, talk.seq)
    return screen


async def learn(view: View, runtime: AnyRuntime, thread_id: str, upto: int) -> None:
    """Let `view` know what the events up to this one say, which later ones refer to."""
    async for entry in all_events(runtime, thread_id):
        if entry.seq > upto:
            break
        view.learn(entry.event)


class Screen:
    """Shows one thread while it runs: text as it arrives, calls and results briefly."""

    def __init__(self, out: "Console") -> None:
        self.out = out
        self.view = View(brief=True)
        self._streamed = ""  # of the reply that arrives
        self._line_open = False

    def show(self, item: Entry | Replayed | Live) -> None:
        """Print what there is to see of it."""
        match item:
            case TextDelta(text):
                self.out.file.write(safe(text))
                self.out.file.flush()
                self._streamed += text
                self._line_open = True
            case ReplySoFar(text):
                if not text.startswith(self._streamed):
                    self.end_line()
                if missed := text[len(self._streamed) :]:
                    self.show(TextDelta(missed))
            case AttemptFailed(error, wait_seconds):
                self.end_line()
                self.out.print(f"{safe(error, 300)}; again in {wait_seconds:.1f} s", style="yellow")
            case ToolProgress(message=message, fraction=fraction):
                share = "" if fraction is None else f" {fraction:.0%}"
                self.out.print(f"… {safe(message, 200)}{share}", style="dim")
            case Entry(event=event):
                self._event(event)
            case ReasoningDelta() | CallDelta() | StatusLine() | Replayed():
                pass

    def _event(self, event: AnyEvent) -> None:
        self.view.learn(event)
        if isinstance(event, (*TERMINAL, InterruptRaised)) or (
            isinstance(event, CallStarted) and not event.until_ms
        ):
            return  # what is said at the end, or only of interest in a log
        if isinstance(event, ModelReplied) and event.text == self._streamed:
            event = structs.replace(event, text="")  # it is on the screen already
        if isinstance(event, ModelReplied | ModelFailed):
            self.end_line()
        else:
            self.break_line()
        for style, text in self.view.lines(event):
            self.out.print(text, style=style)

    def break_line(self) -> None:
        """What comes next begins on a line of its own; the reply that arrives may go on behind it."""
        if self._line_open:
            self.out.file.write("\n")
            self.out.file.flush()
        self._line_open = False

    def end_line(self) -> None:
        """What comes next begins on a line of its own and belongs to no reply that was shown."""
        self.break_line()
        self._streamed = ""


async def conclude(runtime: AnyRuntime, state: ThreadState, hint: str) -> None:
    """Say where the thread stands, and how to go on."""
    out, go_on = console(), f"tenuto run --thread {state.id}{hint}"
    match state.status:
        case "completed":
            out.print(f"thread {state.id} completed", style="dim")
        case "halted":
            out.print(f"thread {state.id} halted: the limit of {state.limit} is reached", style="yellow")
            out.print(f'tell it to go on: {go_on} "…"', style="dim")
        case "cancelled":
            out.print(f"thread {state.id} was cancelled", style="yellow")
        case "sleeping":
            row = await runtime.thread(state.id)
            out.print(f"thread {state.id} sleeps until {moment(row.ready_at_ms or now_ms())}", style="bold")
            out.print(f"go on then: {go_on}", style="dim")
        case "failed":
            out.print(f'try again: {go_on} "…"', style="dim")
        case _:
            out.print(f"thread {state.id} waits for a person:", style="bold")
            for raised in state.interrupts:
                out.print(f"{raised.kind} {raised.id}", style="magenta")
                for style, text in asked(raised.kind, raised.name, raised.arguments, raised.prompt):
                    out.print(text, style=style)
                decide = f"tenuto inbox {HOW[raised.kind].format(raised.id[:8])}{hint}"
                out.print(f"decide: {decide}", style="dim")
            out.print(f"go on here: {go_on}", style="dim")


HOW = {"approval": "approve {}", "question": 'answer {} "…"', "review": "review {} happened"}
