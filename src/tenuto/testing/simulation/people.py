"""What people, operators and the weather do: first whatever the seed says, then all that it takes to end."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from tenuto.errors import AlreadyDecided, Conflict, InvalidInput, TenutoError, UnknownAgent
from tenuto.events import Entry
from tenuto.rows import InterruptRow
from tenuto.testing.simulation.process import InjectedError, Process, at_once
from tenuto.testing.simulation.schedule import Loop

if TYPE_CHECKING:
    from tenuto.testing.simulation.world import World

DEEDS = (
    ("decide", 12.0),
    ("send", 1.5),
    ("cancel", 0.4),
    ("extend", 0.7),
    ("drive", 0.7),
    ("follow", 0.4),
    ("restart", 1.0),
    ("deploy", 0.4),
    ("jump", 0.8),
    ("freeze", 0.5),
    ("kill", 0.5),
)
STEPS = 45
APPROVAL_VERBS = (*("approve",) * 4, "reject", "edit", "edit")


class People:
    """Everybody who acts from outside. What a process acknowledged to them has to be in the log."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.random = world.random
        self.threads: list[str] = []
        self._said = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def stir(self) -> None:
        """The wild part."""
        for _ in range(self.random.choice((1, 2, 2, 3))):
            self.world.start_process()
        await asyncio.sleep(0.1)
        for number in range(self.random.choice((1, 1, 2, 3))):
            self.threads.append(self.world.thread_id(number))
            self._start(self.threads[-1])
        names, weights = zip(*DEEDS, strict=True)
        for _ in range(STEPS):
            await asyncio.sleep(self.random.choice((0.0, 0.05, 0.3, 1.0, 2.0, 4.0)))
            getattr(self, f"_{self.random.choices(names, weights)[0]}")()
            if not self._alive():
                self.world.start_process()

    async def settle(self, seconds: float) -> bool:
        """The calm: everybody answers everything, truthfully, until all threads have ended and rest."""
        world = self.world
        for process in world.processes:
            process.leaving.set()
        world.start_process()
        for _ in range(int(seconds)):
            await asyncio.sleep(1.0)
            for thread_id in self.threads:
                if thread_id not in world.auditor.threads:
                    self._start(thread_id)
                elif world.look(thread_id).status in ("halted", "failed"):
                    self._extend(thread_id)
            for row in self._pending():
                self._decide_one(row)
            if not self.left():
                return True
        return False

    def left(self) -> list[str]:
        """What is not at its end yet."""
        rows = [self.world.look(one) for one in self.threads if one in self.world.auditor.threads]
        left = [f"{row.id} is {row.status}" for row in rows if row.status not in ("completed", "cancelled")]
        left += [f"{row.id} is held" for row in rows if row.lease_owner or row.ready_at_ms is not None]
        # Somebody may still be frozen with a decision or a message in hand.
        left += ["an act" for task in self._tasks if not (task.done() or cast(Loop, task.get_loop()).dead)]
        return left + ["a start"] * (len(self.threads) - len(rows))

    # -- deeds ---------------------------------------------------------------------------------------

    def _alive(self) -> list[Process]:
        return [process for process in self.world.processes if not process.loop.dead]

    def _by(self, what: str, act: Any) -> None:
        """Let one process carry out `act(process)`; its refusals are noted, its death is survived."""
        alive = self._alive()
        if not alive:
            return
        process = self.random.choice(alive)

        async def carry_out() -> None:
            try:
                await act(process)
            except InjectedError as error:
                self.world.note(process.name, what, error)
            except (Conflict, InvalidInput, UnknownAgent) as error:
                self.world.figures.conflicts += isinstance(error, AlreadyDecided)
                self.world.note(process.name, what, type(error).__name__, error)
            except TenutoError as error:
                self.world.auditor.check(False, "nothing fails by itself", f"{what}: {error!r}")
            else:
                self.world.note(process.name, what, "acknowledged")

        self._tasks.append(process.loop.create_task(carry_out()))

    def _text(self) -> str:
        self._said += 1
        return f"message {self._said}"

    def _started(self) -> str | None:
        started = [thread_id for thread_id in self.threads if thread_id in self.world.auditor.threads]
        return self.random.choice(started) if started else None

    def _start(self, thread_id: str) -> None:
        text = f"start {thread_id}"

        async def act(process: Process) -> None:
            await process.runtime.start("ops", text, thread_id=thread_id)
            self._holds(thread_id in self.world.auditor.threads, f"the thread {thread_id}")

        self._by("start", act)

    def slip_in(self, thread_id: str) -> None:
        """Somebody acts just while the model is being asked."""
        if not self.world.calm:
            self._cancel(thread_id) if self.random.random() < 0.1 else self._send(thread_id)

    def _send(self, thread_id: str | None = None) -> None:
        if (thread_id := thread_id or self._started()) is None:
            return
        text = self._text()

        async def act(process: Process) -> None:
            seq = await process.runtime.send(thread_id, text)
            self._holds(self.world.auditor.threads[thread_id].said.get(text) == seq, text)

        self._by("send", act)

    def _holds(self, is_there: bool, what: str) -> None:
        self.world.auditor.check(is_there, "1 acknowledged", f"{what} is not in the log")

    def _cancel(self, thread_id: str | None = None) -> None:
        if thread_id := thread_id or self._started():
            self._by("cancel", lambda process: process.runtime.cancel(thread_id, by="ana"))

    def _extend(self, thread_id: str | None = None) -> None:
        if thread_id := thread_id or self._started():
            self._by("extend", lambda process: process.runtime.extend(thread_id, by="ana", steps=2))

    def _drive(self) -> None:
        if thread_id := self._started():
            self._by("drive", lambda process: process.runtime.drive(thread_id))

    def _follow(self) -> None:
        if not (thread_id := self._started()):
            return

        async def act(process: Process) -> None:
            followed = [
                one async for one in process.runtime.follow(thread_id, rest=True) if isinstance(one, Entry)
            ]
            seen = self.world.auditor.threads[thread_id].entries[: len(followed)]
            self.world.auditor.check(followed == seen, "1 log", f"a follower saw {followed}")

        self._by("follow", act)

    # -- decisions -----------------------------------------------------------------------------------

    def _pending(self) -> list[InterruptRow]:
        rows: list[InterruptRow] = at_once(self.world.store.interrupts())
        return rows

    def _decide(self) -> None:
        if not (rows := self._pending()):
            return
        row = self.random.choice(rows)
        for _ in range(self.random.choice((1, 1, 2))):
            self._decide_one(row)

    def _decide_one(self, row: InterruptRow) -> None:
        verb = self._verb(row)
        if verb is None:
            return
        decision: dict[str, Any] = {"digest": row.digest or None}
        wrong = False
        if verb == "answer":
            decision["answer"] = f"answer {self._text()}"
        elif verb == "edit":
            decision["arguments"] = {"n": self.random.randint(1, 10**6)}
            if self.random.random() < 0.2:
                decision["arguments"], wrong = {"n": "many"}, True
        if row.digest and self.random.random() < 0.1 and not self.world.calm:
            decision["digest"], wrong = "0" * 32, True
        by, check = self._text(), self.world.auditor.check
        thread = self.world.auditor.threads[row.thread_id]

        async def act(process: Process) -> None:
            try:
                await process.runtime.resolve(row.id, verb, by=by, **decision)
            except (Conflict, InvalidInput) as error:
                decided = thread.decided.get(row.id)
                check(
                    decided is None or decided.by != by, "2 one decision", f"{by} counts, and heard {error}"
                )
                if isinstance(error, AlreadyDecided):
                    told = decided is not None and (error.outcome, error.by) == (decided.outcome, decided.by)
                    check(told, "2 one decision", f"{by} heard {error}; it is {decided}")
                raise
            self.world.figures.decisions += 1
            check(not wrong, "3 approval", f"{verb} with {decision} was accepted")
            self._holds(row.id in thread.decided and thread.decided[row.id].by == by, f"{verb} by {by}")

        self._by(f"{verb} {row.name} {row.call_id}", act)

    def _verb(self, row: InterruptRow) -> str | None:
        if row.kind == "question":
            return "answer"
        if row.kind == "approval":
            return "approve" if self.world.calm else self.random.choice(APPROVAL_VERBS)
        seen = self.world.auditor.threads[row.thread_id].calls[row.call_id]
        if self.random.random() < self.world.faults.lies:
            seen.misled = True
            return self.random.choice(("happened", "did_not_happen"))
        if not self.world.calm and self.random.random() < 0.1:
            return "drop"
        if self.world.ledger.done.get((row.thread_id, row.call_id)):
            return "happened"
        # Before the deadline it may still happen, and who knows that does not say that it did not.
        return "did_not_happen" if self.world.latest_ms >= seen.deadline_ms else None

    # -- operators and the weather -------------------------------------------------------------------

    def _restart(self) -> None:
        self.random.choice(self._alive() or [self.world.start_process()]).leaving.set()
        self.world.start_process()

    def _deploy(self) -> None:
        self.world.version = 1 - self.world.version
        self._restart()

    def _jump(self) -> None:
        if self.random.random() < self.world.faults.jumps:
            jump_ms = self.random.choice((-3000, -500, 500, 6000, 20000))
            self.world.jumped_ms += jump_ms
            self.world.figures.jumps += 1
            self.world.note("the clock jumps by", jump_ms, "ms")

    def _freeze(self) -> None:
        if self.world.faults.freezes and (alive := self._alive()):
            process = self.random.choice(alive)
            self.world.note(process.name, "frozen")
            self.world.figures.zombies += 1
            process.loop.freeze(self.random.choice((6.0, 12.0)))

    def _kill(self) -> None:
        if self.world.faults.crashes and (alive := self._alive()):
            self.random.choice(alive).crash()
        for process in self.world.processes:
            if process.loop.dead and self.random.random() < 0.5:
                self.world.bury(process)
