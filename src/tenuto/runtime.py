"""The composition root: agents, a store and a worker; the API that CLI, server and programs call.

Every verb that changes something is one append: when it returns, the fact is in the log, fsynced. Nothing
here decides what a thread does next; that is the worker's, through the events.
"""

import hashlib
import os
import secrets
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from tenuto import limits
from tenuto.agent import Agent
from tenuto.approvals import Decision, More, decide, limits_given
from tenuto.chain import ChainReport, verify_thread
from tenuto.clock import Clock, SystemClock
from tenuto.doubt import InDoubt, calls_in_doubt
from tenuto.errors import ConfigurationError, Conflict, InvalidInput, Undecodable, UnknownAgent
from tenuto.events import (
    CancelRequested,
    Entry,
    Event,
    InterruptId,
    InterruptResolved,
    LimitsExtended,
    MessageReceived,
    ThreadId,
    ThreadStarted,
    encode,
)
from tenuto.loop.holder import Surroundings, again
from tenuto.messages import Live, Model
from tenuto.observe import Observe
from tenuto.rows import Fleet, InterruptRow, StoredEvent, ThreadRow, WorkerRow, already_decided
from tenuto.store import Store, open_store
from tenuto.stream import Hub, Replayed
from tenuto.thread import ThreadState, fold
from tenuto.tools.text import long_text, message_text, short_text, uuid_text
from tenuto.worker import Worker


@dataclass(frozen=True)
class Settings:
    """How a runtime behaves. `worker` False: threads advance only by `drive` or in another process.
    `concurrency`: how many it takes at a time; `agent_limits`: of these agents no more than that.
    """

    worker: bool = True
    concurrency: int = limits.WORKER_CONCURRENCY
    agent_limits: Mapping[str, int] = field(default_factory=dict)
    lease_seconds: float = limits.LEASE_SECONDS
    grace_seconds: float = limits.STOP_GRACE_SECONDS


class Runtime:
    """Use as `async with Runtime([agent], database="sqlite:///tenuto.db") as runtime:`.

    `database` is a URL or a `Store`. `model` serves agents that name none. `observe` looks on.
    `TenutoError`s are raised as documented at each verb; a `StoreError` may be raised by all.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        database: str | Store = "sqlite:///tenuto.db",
        *,
        model: Model | None = None,
        clock: Clock | None = None,
        settings: Settings = Settings(),
        observe: Observe | None = None,
    ) -> None:
        self.agents: dict[str, Agent] = {}
        for agent in agents:
            if agent.name in self.agents:
                raise ConfigurationError(f"two agents are called {agent.name!r}")
            self.agents[agent.name] = agent
        for name, most in settings.agent_limits.items():
            if name not in self.agents or most < 1:
                raise ConfigurationError(f"limit {name}={most}: a limit is of an agent here, and 1 or more")
        store: Store = open_store(database) if isinstance(database, str) else database
        here = f"{store.host}-" if store.host else "w"
        self.owner = f"{here}{os.getpid()}-{secrets.token_hex(3)}"
        self.observe = observe
        self.store = observe.store(store, self.owner) if observe else store
        self.hub = Hub(self.store)
        self.settings = settings
        self._model = model
        self._models: dict[str, Model] = {}
        self._forget: Callable[[], None] = lambda: None
        self.worker = Worker(
            Surroundings(
                store=self.store,
                clock=clock or SystemClock(),
                owner=self.owner,
                model_of=self._model_of,
                watch=observe.watch(self.hub.watch) if observe else self.hub.watch,
                blobs={},
                lease_seconds=settings.lease_seconds,
                observe=observe,
            ),
            self.agents,
            self.hub,
            concurrency=settings.concurrency,
            agent_limits=settings.agent_limits,
            claiming=settings.worker and bool(self.agents),
        )

    async def __aenter__(self) -> Self:
        """Check every agent, open the database, start the worker.

        Raises `ConfigurationError`, `NewerSchema`.
        """
        for agent in self.agents.values():
            for tool in agent.tools:
                tool.check()
            if self.settings.worker:
                self._model_of(agent)
        await self.store.open()
        self._forget = self.store.on_change(self.hub.changed, lambda: self.hub.followed)
        if self.agents:
            await self.worker.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let what runs come to rest (at once after an error), hand over the rest, close the database."""
        try:
            if self.agents:
                await self.worker.stop(self.settings.grace_seconds if kind is None else 0.0)
            for model in self._models.values():
                close = getattr(model, "aclose", None)
                if close is not None:
                    await close()
        finally:
            self._forget()
            await self.store.close()

    # -- verbs ---------------------------------------------------------------------------------------

    async def start(
        self,
        agent: str,
        message: str,
        *,
        by: str = "user",
        metadata: Mapping[str, Any] | None = None,
        thread_id: str | None = None,
    ) -> ThreadId:
        """Start a thread with a first message and return its id.

        With a `thread_id` (a UUID) of your own it is idempotent: the same again returns the same thread and
        adds nothing. Raises `UnknownAgent`, `InvalidInput`; `Conflict` when that thread began otherwise.
        """
        chosen = self.agents.get(agent)
        if chosen is None:
            raise UnknownAgent(f"no agent {agent!r} here; there are: {', '.join(self.agents) or 'none'}")
        data = dict(metadata or {})
        try:
            size = len(msgspec.json.encode(data))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"metadata is not JSON: {error}") from error
        if size > limits.MAX_METADATA_BYTES:
            raise InvalidInput(f"metadata has {size} bytes; at most {limits.MAX_METADATA_BYTES}")
        events = (
            ThreadStarted(
                chosen.name, chosen.fingerprint, chosen.limits, chosen.policy, data, by=short_text("by", by)
            ),
            MessageReceived(message_text("message", message), by=by),
        )
        new_id = ThreadId(str(uuid.uuid4()) if thread_id is None else uuid_text(thread_id))
        # The same start again is the same append; another one under this id is refused by the store.
        told = hashlib.sha256(b"".join(encode(event) for event in events)).hexdigest()
        if thread_id is None:
            self.worker.expect(new_id, agent)
        await again(lambda: self.store.create(new_id, events, append_id=f"start {told}"))
        return new_id

    async def send(
        self, thread_id: str, message: str, *, by: str = "user", channel: str = "", append_id: str = ""
    ) -> int:
        """Add a message; returns its seq. Never refused for what the thread is doing: while calls are open it
        waits behind their results, and a thread that ended goes on. With an `append_id` of your own, here and
        below, it can be tried again: it is done once. Raises `ThreadNotFound`, `InvalidInput`.
        """
        event = MessageReceived(
            message_text("message", message), short_text("by", by), short_text("channel", channel)
        )
        return await self._external(thread_id, event, append_id)

    async def resolve(
        self, interrupt_id: str, verb: str, *, by: str, **decision: Unpack[Decision]
    ) -> InterruptResolved:
        """Decide a pending interrupt, once; returns the event as recorded.

        `verb`: approve, reject, edit (approval); answer (question); happened, did_not_happen, drop (review).
        Raises `InterruptNotFound`; `AlreadyDecided` (by whom, what and when; also when it expired); `Stale`
        when `digest` is not that of the pending call; `InvalidInput`, e.g. for edited arguments that the tool
        refuses. Of these, only an expiry writes anything.
        """
        row = await self.store.interrupt(InterruptId(interrupt_id))
        if row.outcome is not None:
            raise already_decided(row)
        agent = self.agents.get(row.agent)
        event = decide(row, verb, by, decision, agent.by_name if agent else {})
        append_id = decision.get("append_id") or uuid.uuid4().hex
        self.worker.expect(row.thread_id, row.agent)
        await again(lambda: self.store.resolve(event, append_id=append_id, digest=decision.get("digest")))
        return event

    async def cancel(self, thread_id: str, *, by: str = "", reason: str = "", append_id: str = "") -> None:
        """Ask for the thread to stop; whoever runs it does so within a second. Raises `ThreadNotFound`, and
        `Conflict` when it has ended already.
        """
        row = await self.store.thread(ThreadId(thread_id))
        if row.status in ("completed", "failed", "halted", "cancelled"):
            raise Conflict(f"thread {thread_id} has ended already: {row.status}")
        event = CancelRequested(short_text("by", by), long_text("reason", reason))
        await self._external(thread_id, event, append_id)

    async def extend(
        self, thread_id: str, *, by: str = "", append_id: str = "", **more: Unpack[More]
    ) -> None:
        """Give this turn more steps, tokens, cost or seconds; a halted or failed thread goes on.

        Raises `ThreadNotFound`, `InvalidInput`, `Conflict` for a completed or cancelled thread.
        """
        granted = limits_given(more)
        row = await self.store.thread(ThreadId(thread_id))
        if row.status in ("completed", "cancelled"):
            raise Conflict(f"thread {thread_id} is {row.status}; send a message to go on")
        await self._external(thread_id, LimitsExtended(granted, short_text("by", by)), append_id)

    async def wait(self, thread_id: str, timeout: float | None = None) -> ThreadState:
        """The state once the thread rests: it ended, or waits for somebody or for a time; or as it is after
        `timeout` seconds.
        """
        return await self.hub.wait(ThreadId(thread_id), timeout) or await self.state(thread_id)

    async def drive(self, thread_id: str) -> bool:
        """Advance this thread here until it rests; False when it is not ready or runs elsewhere."""
        return await self.worker.drive(ThreadId(thread_id))

    # -- looking -------------------------------------------------------------------------------------

    async def state(self, thread_id: str) -> ThreadState:
        """What is true of the thread now. Raises `ThreadNotFound`."""
        return fold(await self.store.read(ThreadId(thread_id)), ThreadId(thread_id))

    async def events(self, thread_id: str, after: int = 0, limit: int = limits.MAX_PAGE_ROWS) -> list[Entry]:
        """Events with seq > after, up to one that cannot be read. Raises `ThreadNotFound`; `Undecodable` when
        that is the first: the page after its `seq` goes on behind it.
        """
        most = min(limit, limits.MAX_PAGE_ROWS)
        try:
            return await self.store.read(ThreadId(thread_id), after, most)
        except Undecodable as error:
            if error.seq <= after + 1:
                raise
            return await self.store.read(ThreadId(thread_id), after, error.seq - after - 1)

    async def stored(
        self, thread_id: str, after: int = 0, limit: int = limits.MAX_PAGE_ROWS
    ) -> list[StoredEvent]:
        """The same as they are stored, for an export. Raises `ThreadNotFound`."""
        return await self.store.stored(ThreadId(thread_id), after, min(limit, limits.MAX_PAGE_ROWS))

    def follow(
        self, thread_id: str, after: int = 0, *, rest: bool = False
    ) -> AsyncGenerator[Entry | Replayed | Live, None]:
        """Replay, `Replayed`, then live; with `rest`, until the thread rests. Close it when done."""
        return self.hub.follow(ThreadId(thread_id), after, rest)

    async def interrupt(self, interrupt_id: str) -> InterruptRow:
        """One interrupt, pending or decided. Raises `InterruptNotFound`."""
        return await self.store.interrupt(InterruptId(interrupt_id))

    async def interrupts(self, **filters: Any) -> list[InterruptRow]:
        """The inbox: pending interrupts, oldest first; filters as in `Store.interrupts`."""
        return await self.store.interrupts(**filters)

    async def thread(self, thread_id: str) -> ThreadRow:
        """The thread at a glance. Raises `ThreadNotFound`."""
        return await self.store.thread(ThreadId(thread_id))

    async def threads(self, **filters: Any) -> list[ThreadRow]:
        """Threads, newest first; filters as in `Store.threads`."""
        return await self.store.threads(**filters)

    async def workers(self) -> list[WorkerRow]:
        """The workers that live now and claim threads, in any process on this database."""
        return [worker for worker in await self.store.workers() if worker.agents]

    async def fleet(self) -> Fleet:
        """Who works and what waits, in all processes on this database."""
        workers = tuple(await self.store.workers())
        return Fleet(self.store.now_ms(), workers, await self.store.waiting())

    async def in_doubt(self, thread_id: str | None = None) -> list[InDoubt]:
        """Calls that may have happened: started, without a result, and no live worker has their thread."""
        return await calls_in_doubt(self.store, None if thread_id is None else ThreadId(thread_id))

    async def verify(self, thread_id: str, watch: Callable[[int], None] = lambda _n: None) -> ChainReport:
        """Check the thread's hash chain; `watch` hears how far it is. Raises `ThreadNotFound`."""
        return await verify_thread(self.store, ThreadId(thread_id), watch)

    # -- inside --------------------------------------------------------------------------------------

    async def _external(self, thread_id: str, event: Event, append_id: str) -> int:
        key = append_id or uuid.uuid4().hex
        return (await again(lambda: self.store.append(ThreadId(thread_id), (event,), append_id=key))).head_seq

    def _model_of(self, agent: Agent) -> Model:
        if agent.model is not None and not isinstance(agent.model, str):
            return agent.model
        if self._model is not None:
            return self._model
        name = agent.model or ""
        if name not in self._models:
            from tenuto.models.openai import OpenAIModel

            named = {"PROVIDER_MODEL": name} if name else {}
            self._models[name] = OpenAIModel.from_environment({**os.environ, **named})
        return self._models[name]
