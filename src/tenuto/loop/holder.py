"""One worker's hold on one thread: state, lease, running calls, and the only append of the loop."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from tenuto import limits
from tenuto.agent import Agent
from tenuto.clock import Clock
from tenuto.context import Rendering
from tenuto.errors import AlreadyDecided, LeaseLost, ModelError, Stale, StoreError, Undecodable
from tenuto.events import TERMINAL, CallId, Entry, Event, ThreadId
from tenuto.messages import Live, Model
from tenuto.observe import Observe
from tenuto.rows import Claim, ThreadStatus
from tenuto.steps import Local, Verdict
from tenuto.store.base import Store
from tenuto.thread import ThreadState, apply, fold

T = TypeVar("T")
logger = logging.getLogger("tenuto.loop")


@dataclass(frozen=True)
class Surroundings:
    """What all threads of a worker share. `blobs` maps what this process stored already to its digest."""

    store: Store
    clock: Clock
    owner: str
    model_of: Callable[[Agent], Model]
    watch: Callable[[ThreadId], Callable[[Live], None]]
    blobs: dict[str, str]
    lease_seconds: float = limits.LEASE_SECONDS
    observe: Observe | None = None


class Holder:
    """Made for a claim, gone with its release. Not shared between tasks: `advance` alone drives it, the
    worker only calls `hear`, `renewed` and `lose`, and finished calls only `finish`.
    """

    def __init__(self, around: Surroundings, agent: Agent, claim: Claim, claimed_at: float) -> None:
        self.around = around
        self.store = around.store
        self.agent = agent
        self.claim = claim
        self.thread_id = claim.thread_id
        self.state = ThreadState(id=claim.thread_id)
        self.rendering = Rendering()
        self.running: dict[CallId, asyncio.Task[None]] = {}
        self.doubts: dict[CallId, str] = {}
        self.verdicts: dict[CallId, Verdict] = {}
        self.task: asyncio.Task[None] | None = None
        self.lost = False
        self.released = False
        self.wake_at_ms: int | None = None
        self._asking: asyncio.Task[Any] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._finished: list[Event] = []
        self._wake = asyncio.Event()
        self._head_heard = claim.head_seq
        self._appends = 0
        self._lease_ends = claimed_at + around.lease_seconds
        self._patience = limits.STORE_PATIENCE_SECONDS

    # -- called from outside the loop ----------------------------------------------------------------

    def hear(self, head_seq: int) -> None:
        """The log has grown, by somebody else."""
        if head_seq > self._head_heard:
            self._head_heard = head_seq
            self._wake.set()
            if self._asking is not None and (self._looking is None or self._looking.done()):
                self._looking = asyncio.create_task(self._look())

    def renewed(self, asked_at: float, head_seq: int) -> None:
        """The lease was extended by a request made at `asked_at` (monotonic seconds)."""
        self._lease_ends = asked_at + self.around.lease_seconds
        self.hear(head_seq)

    def lose(self) -> None:
        """Another worker may have the thread: stop everything, record nothing more."""
        self.lost = True
        for task in self.running.values():
            task.cancel()
        if self.task is not None:
            self.task.cancel()

    def hurry(self) -> None:
        """Wait no longer for a store that is away."""
        self._patience = 0.0

    def finish(
        self, call_id: CallId, events: tuple[Event, ...], doubt: str = "", verdict: Verdict | None = None
    ) -> None:
        """A call ended here: with events to record, or in doubt. After `stop` nobody listens any more."""
        if self.running.pop(call_id, None) is None:
            return
        self._finished += events
        if doubt:
            self.doubts[call_id] = doubt
        if verdict:
            self.verdicts[call_id] = verdict
        self._wake.set()

    # -- the loop's own ------------------------------------------------------------------------------

    @property
    def local(self) -> Local:
        """What `next_step` needs to know of this worker."""
        return Local(frozenset(self.running), self.doubts, self.verdicts)

    @property
    def has_news(self) -> bool:
        """Whether somebody else appended what is not in the state yet."""
        return self._head_heard > self.state.head_seq

    def now_ms(self) -> int:
        """The store's clock."""
        return self.store.now_ms()

    def check_lease(self) -> None:
        """Raise `LeaseLost` unless the lease is ours for certain, by our own monotonic clock."""
        if self.lost or self.around.clock.monotonic() >= self._lease_ends:
            raise LeaseLost(f"the lease on thread {self.thread_id} ended before it was renewed")

    async def load(self) -> None:
        """Read the log and fold it. Raises `Undecodable` where nobody could append to it."""
        if self.claim.head_seq < 1:
            raise Undecodable(f"its row does not say where the log of thread {self.thread_id} ends")
        self.state = fold(await self._read(0), self.thread_id)

    async def _read(self, after: int) -> list[Entry]:
        return await again(lambda: self.store.read(self.thread_id, after), self._patience)

    async def absorb(self) -> None:
        """Take in what others appended and record the calls that ended.

        None is left when this returns: one that has ended and is in neither `running` nor the log would
        look as if it were in doubt, and be run again.
        """
        if self._head_heard > self.state.head_seq:
            for entry in await self._read(self.state.head_seq):
                apply(self.state, entry)
            self._head_heard = max(self._head_heard, self.state.head_seq)
        while self._finished:
            events = self.take_finished()
            try:
                await self.append(*events)
            except StoreError:
                # Known here, whatever the store did: `record_ended` tries once more.
                self._finished[:0] = events
                raise

    async def record_ended(self) -> None:
        """Record the calls that ended, of those in the log: a reply's own append may have been cut short."""
        for entry in await self._read(self.state.head_seq):
            apply(self.state, entry)
        in_log = {call.id for call in self.state.open}
        self._finished = [event for event in self._finished if getattr(event, "call_id", "") in in_log]
        await self.absorb()

    async def append(self, *events: Event, conditional: bool = False) -> bool:
        """Append and apply. Waits for a store that is away: the epoch keeps out what comes too late, and what
        happened here would else be in doubt. `conditional`: only if nobody else appended since our state.

        False when the log had moved on so that these events no longer fit; then nothing was written, and
        the loop decides again from what it reads. Raises `LeaseLost`, `StoreError`.
        """
        self._appends += 1
        append_id = f"{self.claim.epoch}.{self._appends}"
        head_seq = self.state.head_seq if conditional else None
        asked_at = self.around.clock.monotonic()
        try:
            done = await again(
                lambda: self.store.append(
                    self.thread_id, events, append_id=append_id, epoch=self.claim.epoch, head_seq=head_seq
                ),
                self._patience,
            )
            if asked_at < self._lease_ends <= self.around.clock.monotonic():
                await self._keep_lease()
        except (Stale, AlreadyDecided):
            self._head_heard = self.state.head_seq + 1
            return False
        if done.first_seq == self.state.head_seq + 1:
            for seq, event in enumerate(events, done.first_seq):
                apply(self.state, Entry(seq, done.at_ms, event))  # type: ignore[arg-type]  # Event is the union's root
        else:
            self._head_heard = max(self._head_heard, done.head_seq)
            for entry in await self._read(self.state.head_seq):
                apply(self.state, entry)
        # The store gives the thread back with a terminal event that has seen everything.
        self.released = conditional and isinstance(events[-1], TERMINAL)
        if self.released and self.state.ended is None:
            # A cancel with a message behind it: the new turn is news to whoever claims next.
            self._head_heard = self.state.head_seq + 1
        return True

    async def _keep_lease(self) -> None:
        """A lease that ended while the store was away goes on, if nobody has taken the thread since. Raises
        `LeaseLost`.
        """
        asked_at = self.around.clock.monotonic()
        heads: dict[ThreadId, int] | None = None
        with contextlib.suppress(StoreError):
            heads = await self.store.renew(
                self.around.owner, [self.claim], lease_seconds=self.around.lease_seconds
            )
        if heads is None:
            return
        if self.thread_id not in heads:
            raise LeaseLost(f"another worker has thread {self.thread_id} now")
        self.renewed(asked_at, heads[self.thread_id])

    def start(self, call_id: CallId, work: Coroutine[Any, Any, None]) -> None:
        """Run a call beside the loop; it reports by `finish`."""
        self.doubts.pop(call_id, None)
        self.verdicts.pop(call_id, None)
        self.running[call_id] = asyncio.create_task(work)

    async def stop(self, call_ids: frozenset[CallId]) -> None:
        """Cancel running calls and stop listening to them; what they had done is in doubt from here."""
        tasks = [task for call_id in call_ids if (task := self.running.pop(call_id, None))]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=limits.STOP_SECONDS)

    async def rest(self, until_ms: int | None = None) -> None:
        """Wait for a call to end, for news, or for a time."""
        timeout = None if until_ms is None else max(0.0, (until_ms - self.now_ms()) / 1000)
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def ask(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await the model, on this task, while listening; None when a cancel of the thread broke it off."""
        task = self._asking = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if task is None or not task.cancelling():
                raise ModelError("the model raised CancelledError") from None
            if self.state.cancel is None or self.lost or task.uncancel():
                raise
            return None
        finally:
            self._asking = None
            if self._looking is not None:
                await self._looking
                self._looking = None

    async def _look(self) -> None:
        """Take in what others appended during a model call, and break it off if that is a cancel."""
        heard = None
        while heard != self._head_heard:
            heard = self._head_heard
            await self.absorb()
        if self._asking is not None and self.state.cancel is not None:
            self._asking.cancel()

    def take_finished(self) -> tuple[Event, ...]:
        """What the calls that ended here have to record, for an append that has more to say."""
        events, self._finished = tuple(self._finished), []
        return events

    async def release(self, until_ms: int | None) -> None:
        """Give the thread back, unless something came in meanwhile: then `released` stays False."""
        status: ThreadStatus = self.state.status  # type: ignore[assignment]  # the same words, by test
        seen_seq = self.state.head_seq
        self.released = await self.store.release(
            self.claim, seen_seq=seen_seq, wake_at_ms=until_ms, status=status
        )
        self.wake_at_ms = until_ms
        if not self.released:
            self._head_heard = seen_seq + 1


async def again(work: Callable[[], Awaitable[T]], patience: float = 0.0) -> T:
    """Try an append again whose commit is unknown, or that a store could not take in this moment; its append
    id makes that safe.

    Raises what `work` raises: at once for a refusal, after `STORE_ATTEMPTS` for a store that stays down, and
    after `patience` seconds for one that is away.
    """
    now = asyncio.get_running_loop().time
    until, attempt = now() + patience, 0
    while True:
        try:
            return await work()
        except StoreError as error:
            away = error.facts.get("passing") or (patience and error.facts.get("silent"))
            attempt += 1
            if not (away or error.facts.get("unknown")):
                raise
            if attempt >= limits.STORE_ATTEMPTS and not (away and now() < until):
                raise
            await asyncio.sleep(min(0.1 * 4 ** min(attempt - 1, 9), limits.STORE_RETRY_LONGEST_SECONDS))
