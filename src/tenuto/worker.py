"""Workers: claim threads that are ready, advance them, renew their leases, hand them over.

A worker is one asyncio task per claimed thread, one that claims and one that renews. It keeps no queue: the
lease in the store is the queue, so a worker that dies loses nothing but the time until its lease ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from tenuto import limits
from tenuto.agent import Agent
from tenuto.errors import LeaseLost, StoreError, TenutoError, Undecodable
from tenuto.events import InterruptRaised, ThreadId
from tenuto.loop import Holder, advance
from tenuto.loop.holder import Surroundings
from tenuto.rows import Change, Claim
from tenuto.steps import trouble
from tenuto.stream import Hub
from tenuto.tools import error_text

logger = logging.getLogger("tenuto.worker")


class Worker:
    """Advances threads of `agents` in this process. `claiming` False: only those given to `drive`.

    `concurrency`: how many at a time; `agent_limits`: of these agents no more than that. Neither of them
    keeps `drive` from a thread that it is given.
    """

    def __init__(
        self,
        around: Surroundings,
        agents: Mapping[str, Agent],
        hub: Hub,
        *,
        concurrency: int,
        agent_limits: Mapping[str, int],
        claiming: bool,
    ) -> None:
        self._around = around
        self._store = around.store
        self._agents = agents
        self._hub = hub
        self._concurrency = concurrency
        self._agent_limits = agent_limits
        self._claiming = claiming
        self._holders: dict[ThreadId, Holder] = {}
        self._failures: dict[ThreadId, int] = {}
        self._expected: dict[ThreadId, tuple[str, asyncio.Task[None]]] = {}
        hub.runs_here = lambda thread_id: thread_id in self._holders or thread_id in self._expected
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._full = False
        self._store_away = False
        self._forget: Callable[[], None] = lambda: None

    async def start(self) -> None:
        """Announce this worker and begin. Raises `StoreError`."""
        await self._store.register(self._around.owner, tuple(self._agents) if self._claiming else ())
        self._forget = self._store.on_change(self._changed, lambda: self._holders)
        self._tasks = [asyncio.create_task(self._renew())]
        if self._claiming:
            self._tasks.append(asyncio.create_task(self._claim()))

    async def stop(self, grace_seconds: float = limits.STOP_GRACE_SECONDS) -> None:
        """Take nothing new, let what runs come to rest within `grace_seconds`, hand over what does not.

        A thread handed over is ready for another worker at once; its running `once` calls are in doubt.
        """
        self._stopping = True
        self._wake.set()
        await asyncio.gather(*(task for _, task in self._expected.values()))
        running = [holder.task for holder in self._holders.values() if holder.task]
        if running:
            await asyncio.wait(running, timeout=grace_seconds)
        left = list(self._holders.values())
        for holder in left:
            if holder.task:
                holder.task.cancel()
        await asyncio.gather(*(h.task for h in left if h.task), return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._forget()

    async def drive(self, thread_id: ThreadId) -> bool:
        """Advance this one thread here until it rests. False when it is not ready, another has it, or its
        agent is not known here. Raises `ThreadNotFound`.
        """
        asked_at = self._around.clock.monotonic()
        if (await self._store.thread(thread_id)).agent not in self._agents:
            return False
        claim = await self._store.take(
            self._around.owner, thread_id, lease_seconds=self._around.lease_seconds
        )
        if claim is None:
            return False
        task = self._take(claim, asked_at)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        return True

    def expect(self, thread_id: ThreadId, agent: str) -> None:
        """A thread is about to become ready by the caller, in this very moment: where there is room, take it
        in the same commit, and save the round of a claim.
        """
        known = thread_id in self._expected or thread_id in self._holders
        if self._claiming and not self._stopping and not known and agent in self._room():
            self._expected[thread_id] = agent, asyncio.create_task(self._take_expected(thread_id))

    # -- inside --------------------------------------------------------------------------------------

    def _changed(self, changes: list[Change]) -> None:
        for change in changes:
            if not change.external:
                continue
            if holder := self._holders.get(change.thread_id):
                holder.hear(change.head_seq)
            elif change.thread_id not in self._expected:
                self._wake.set()

    def _room(self) -> dict[str, int]:
        """How many threads more can be taken, of each agent of which any can."""
        left = self._concurrency - len(self._holders) - len(self._expected)
        room = dict.fromkeys(self._agents, left)
        for name, most in self._agent_limits.items():
            taken = sum(holder.agent.name == name for holder in self._holders.values())
            taken += sum(agent == name for agent, _ in self._expected.values())
            room[name] = min(left, most - taken)
        return {name: most for name, most in room.items() if most > 0}

    async def _take_expected(self, thread_id: ThreadId) -> None:
        asked_at = self._around.clock.monotonic()
        claim = None
        # Whatever goes wrong here, the thread is found by the next claim.
        with contextlib.suppress(StoreError):
            claim = await self._store.take(
                self._around.owner, thread_id, lease_seconds=self._around.lease_seconds
            )
        del self._expected[thread_id]
        if claim is not None and thread_id not in self._holders:
            self._take(claim, asked_at)
        else:
            self._wake.set()

    async def _claim(self) -> None:
        while not self._stopping:
            timeout = limits.POLL_SECONDS
            self._wake.clear()
            room = self._room()
            self._full = not room
            if room and await self._store_is_there():
                free = self._concurrency - len(self._holders) - len(self._expected)
                limit = min(free, sum(room.values()))
                asked_at = self._around.clock.monotonic()
                try:
                    claimed = await self._store.claim(
                        self._around.owner, room, limit=limit, lease_seconds=self._around.lease_seconds
                    )
                except Exception as error:
                    # Whatever it is, this worker goes on: nobody else may be there to claim.
                    facts = error.facts if isinstance(error, StoreError) else {}
                    self._store_away = bool(facts.get("passing") or facts.get("silent"))
                    logger.exception("claiming failed; trying again in %s s", timeout)
                else:
                    for claim in await self._unsuspected(claimed.claims):
                        self._take(claim, asked_at)
                    if claimed.next_ready_ms is not None:
                        wait = (claimed.next_ready_ms - self._store.now_ms()) / 1000
                        timeout = min(timeout, max(wait, 0.0))
                    # What ended makes room for what was left because of a limit.
                    self._full = len(claimed.claims) == limit or bool(self._agent_limits)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._wake.wait()

    async def _store_is_there(self) -> bool:
        """Once a store that was away is back, those who waited to record something get time to do so, before
        their threads are taken over and what they know is in doubt.
        """
        if self._store_away:
            try:
                await self._store.workers()
            except StoreError as error:
                logger.warning("the store is away: %s", error)
                return False
            await asyncio.sleep(limits.RETURNED_SECONDS)
            self._store_away = False
        return True

    async def _unsuspected(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those to run now. Of threads that may be what kills workers, a worker runs one at a time, the least
        suspect first, and before that gives the others back: none is held for another's fault.
        """
        suspects = [claim for claim in claims if claim.deaths >= limits.SUSPECT_DEATHS]
        if not suspects:
            return list(claims)
        held = any(holder.claim.deaths >= limits.SUSPECT_DEATHS for holder in self._holders.values())
        chosen = None if held else min(suspects, key=lambda claim: claim.deaths)
        kept = [claim for claim in claims if claim not in suspects or claim is chosen]
        for claim in suspects:
            if claim is chosen:
                continue
            wake_at_ms = self._store.now_ms() + limits.SUSPECT_WAIT_MS * claim.deaths
            with contextlib.suppress(TenutoError):  # its lease ends by itself, or has
                released = await self._store.release(
                    claim, seen_seq=claim.head_seq, wake_at_ms=wake_at_ms, status="running"
                )
                if not released:  # somebody wrote to it
                    kept.append(claim)
        return kept

    def _take(self, claim: Claim, asked_at: float) -> asyncio.Task[None]:
        if (old := self._holders.get(claim.thread_id)) is not None:
            # Its lease ended unnoticed, as when the clock jumped, and this worker was the next in line.
            old.lose()
        holder = Holder(self._around, self._agents[claim.agent], claim, asked_at)
        self._holders[claim.thread_id] = holder
        holder.task = asyncio.create_task(self._hold(holder))
        return holder.task

    async def _hold(self, holder: Holder) -> None:
        thread_id = holder.thread_id
        try:
            work = advance(holder, poisoned=holder.claim.deaths >= limits.POISON_DEATHS)
            await (seen.turn(thread_id, holder.agent, work) if (seen := self._around.observe) else work)
            self._failures.pop(thread_id, None)
        except asyncio.CancelledError:
            if holder.lost:
                logger.warning("thread %s: lease lost, stopped", thread_id)
            else:
                await self._hand_over(holder, 0.0)
                raise
        except LeaseLost as error:
            logger.warning("%s", error)
            await holder.stop(frozenset(holder.running))
        except Undecodable as error:
            # Soon at first: while versions change, the next one to claim it may be a newer one, and what is
            # damaged may be restored.
            if error.newer:
                logger.warning("thread %s left to a newer worker: %s", thread_id, error)
            else:
                said = "thread %s cannot go on, here or elsewhere: %s; `tenuto verify %s` tells more"
                logger.warning(said, thread_id, error, thread_id)
            await self._back_off(holder, error)
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            # The last two are of a user's own code, too: a model, a renderer. Ctrl-C cancels tasks.
            logger.exception("thread %s: advancing failed", thread_id)
            await self._back_off(holder, error)
        finally:
            if self._holders.get(thread_id) is holder:
                del self._holders[thread_id]
            # What a holder heard after its release, nobody has acted on; and a timer that is near would
            # be found by the next poll only.
            soon_ms = self._store.now_ms() + limits.POLL_SECONDS * 1000
            near = holder.wake_at_ms is not None and holder.wake_at_ms <= soon_ms
            if self._full or holder.has_news or near:
                self._wake.set()
            # The holder is done with its state: whoever waits here need not read the log again.
            self._hub.rested(thread_id, holder.state if holder.released else None)

    async def _hand_over(self, holder: Holder, after_seconds: float) -> None:
        """Stop what runs and make the thread ready again `after_seconds` from now, for anybody."""
        holder.hurry()
        await holder.stop(frozenset(holder.running))
        with contextlib.suppress(TenutoError):
            await holder.record_ended()  # what ended before the stop is known, and need not be in doubt
        try:
            row = await self._store.thread(holder.thread_id)
            wake_at_ms = self._store.now_ms() + round(after_seconds * 1000)
            await self._store.release(
                holder.claim, seen_seq=row.head_seq, wake_at_ms=wake_at_ms, status="running"
            )
        except TenutoError as error:
            # The lease ends by itself.
            logger.warning("thread %s: not handed over: %s", holder.thread_id, error)

    async def _back_off(self, holder: Holder, error: BaseException) -> None:
        """A thread that cannot be advanced waits longer each time, then asks a person."""
        if len(self._failures) > limits.MAX_KNOWN_FAILURES:
            self._failures.clear()
        failures = self._failures[holder.thread_id] = self._failures.get(holder.thread_id, 0) + 1
        loaded = holder.state.head_seq > 0
        if failures >= limits.POISON_ATTEMPTS and loaded and not isinstance(error, StoreError | Undecodable):
            event: InterruptRaised = trouble(holder.state, error_text(error), failures)
            try:
                await holder.stop(frozenset(holder.running))
                await holder.append(event)
                self._failures.pop(holder.thread_id, None)
                times = [raised.expires_at_ms for raised in holder.state.interrupts if raised.expires_at_ms]
                await holder.release(min(times, default=None))
                if holder.released:
                    return
            except TenutoError:
                logger.exception("thread %s: no person could be asked", holder.thread_id)
        await self._hand_over(holder, min(2.0**failures, limits.RETRY_LATER_SECONDS))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._around.lease_seconds / 3)
            holders = dict(self._holders)
            if not holders:
                continue
            asked_at = self._around.clock.monotonic()
            claims = [holder.claim for holder in holders.values()]
            try:
                heads = await self._store.renew(
                    self._around.owner, claims, lease_seconds=self._around.lease_seconds
                )
            except Exception:
                logger.exception("renewing leases failed; trying again")
                continue
            for thread_id, holder in holders.items():
                if self._holders.get(thread_id) is not holder:
                    continue
                if thread_id in heads:
                    holder.renewed(asked_at, heads[thread_id])
                else:
                    holder.lose()
