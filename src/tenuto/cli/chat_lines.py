"""`tenuto chat --jsonl`: a conversation between programs, one JSON object a line (`tenuto.cli.lines`).

Lines are carried out one after the other, each when the thread rests after the one before. Only `cancel`
does not wait for its turn: it is for the turn that runs, or that the lines before it are about to begin.
"""

import asyncio
import contextlib

from tenuto.approvals import Decision, More
from tenuto.cli.conversation import Conversation
from tenuto.cli.lines import (
    MAX_LINES_AHEAD,
    CancelLine,
    DecisionLine,
    ExtensionLine,
    Line,
    LineWriter,
    MessageLine,
    read_lines,
    summary,
)
from tenuto.errors import InvalidInput, TenutoError
from tenuto.events import ThreadId
from tenuto.stream import Replayed

Numbered = tuple[int, Line]


class ChatLines:
    """Writes everything that happens; a turn that fails ends itself and nothing else."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._told: ThreadId | None = None
        self._open = 0  # lines that were read, up to the end of their turns
        self._begun = asyncio.Event()  # the turn of the first of them runs, or there is none
        self._begun.set()
        self._out = LineWriter()

    async def run(self, message: str | None) -> None:
        """Until standard input ends and the last turn rests."""
        await self._tell_thread()
        # What is not for the turn that runs waits here; reading stops while it is full.
        waiting: asyncio.Queue[Numbered | None] = asyncio.Queue(MAX_LINES_AHEAD)
        if message is not None:
            await self._put(waiting, 0, MessageLine(message))
        reading = asyncio.create_task(self._read(waiting))
        try:
            while (numbered := await waiting.get()) is not None:
                self._begun.clear()
                await self._carry_out(*numbered, turn=True)
                self._open -= 1
                if not self._open:
                    self._begun.set()
            await reading
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def once(self, message: str | None) -> None:
        """One message, given or the first line of input, and its turn. Raises `InvalidInput`."""
        line: Line | InvalidInput | None = None if message is None else MessageLine(message)
        number = 0
        if line is None:
            async with contextlib.aclosing(read_lines()) as lines:
                async for number, line in lines:  # noqa: B007 - both are needed behind the loop
                    break
        if line is None:
            raise InvalidInput("there is nothing to say: standard input is empty")
        if isinstance(line, InvalidInput):
            raise line
        await self._tell_thread()
        await self._carry_out(number, line, turn=True)

    async def _read(self, waiting: asyncio.Queue[Numbered | None]) -> None:
        try:
            async with contextlib.aclosing(read_lines()) as lines:
                async for number, line in lines:
                    if isinstance(line, InvalidInput):
                        await self._out.write(_error(line, number))
                    elif isinstance(line, CancelLine) and await self._turn_runs():
                        await self._carry_out(number, line)
                    else:
                        await self._put(waiting, number, line)
        except OSError:
            await waiting.put(None)
            raise
        await waiting.put(None)

    async def _put(self, waiting: asyncio.Queue[Numbered | None], number: int, line: Line) -> None:
        if not self._open:
            self._begun.clear()
        self._open += 1
        await waiting.put((number, line))

    async def _turn_runs(self) -> bool:
        """Waits for the turn that a line before this one is about to begin, if there is one."""
        await self._begun.wait()
        return self._open > 0

    async def _carry_out(self, number: int, line: Line, *, turn: bool = False) -> None:
        """Do what it says; with `turn`, up to the end of the turn that this begins."""
        try:
            await self._do(line)
            if turn:
                await self._tell_thread()
                self._begun.set()
                async with contextlib.aclosing(self._conversation.turn()) as items:
                    async for item in items:
                        if not isinstance(item, Replayed):
                            await self._out.item(item)
                await self._rested()
        except TenutoError as error:
            await self._out.write(_error(error, number))

    async def _do(self, line: Line) -> None:
        talk = self._conversation
        if isinstance(line, MessageLine):
            await talk.say(line.message)
            return
        if talk.thread_id is None:
            raise InvalidInput("there is no thread yet: begin with a message, or with --thread")
        match line:
            case DecisionLine():
                await self._decide(line, talk.thread_id)
            case ExtensionLine(extend=more):
                given = More(steps=more.steps, tokens=more.tokens, cost=more.cost, seconds=more.seconds)
                await talk.runtime.extend(talk.thread_id, by=talk.by, **given)
            case CancelLine(cancel=reason):
                await talk.runtime.cancel(talk.thread_id, by=talk.by, reason=reason)

    async def _decide(self, line: DecisionLine, thread_id: ThreadId) -> None:
        runtime = self._conversation.runtime
        row = await runtime.interrupt(line.resolve)
        if row.thread_id != thread_id:
            raise InvalidInput(f"interrupt {row.id} is of thread {row.thread_id}, not of this one")
        decision = Decision(comment=line.comment, answer=line.answer, digest=line.digest, channel="chat")
        if (arguments := bytes(line.arguments).decode()) not in ("", "null"):
            decision["arguments"] = arguments
        await runtime.resolve(row.id, line.verb, by=self._conversation.by, **decision)

    async def _tell_thread(self) -> None:
        thread_id = self._conversation.thread_id
        if thread_id is not None and thread_id != self._told:
            self._told = thread_id
            await self._out.write({"type": "thread", "thread": thread_id})

    async def _rested(self) -> None:
        assert self._conversation.thread_id is not None
        state = await self._conversation.runtime.state(self._conversation.thread_id)
        await self._out.write({"type": "rested", "seq": self._conversation.seq} | summary(state))


def _error(error: TenutoError, number: int) -> dict[str, object]:
    return {"type": "error", "error": str(error), "line": number}
