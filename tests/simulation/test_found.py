"""What the simulation found, each as a test of its own."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tenuto import Agent, Runtime, Settings, ToolContext, limits, tool
from tenuto.clock import FakeClock
from tenuto.errors import StoreError
from tenuto.events import CallStarted, Entry, Event, MessageReceived, ModelReplied, ThreadId, ThreadStarted
from tenuto.messages import Request
from tenuto.models.scripted import ScriptedModel, call
from tenuto.rows import Appended, Change
from tenuto.store.sqlite import SQLiteStore


async def test_a_worker_that_claims_its_own_lapsed_thread_lets_go_of_it_first() -> None:
    """The wall clock jumps past the lease while a call runs, and the same worker is the next to claim."""
    entered: asyncio.Queue[None] = asyncio.Queue()
    go = asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        entered.put_nowait(None)
        await go.wait()
        return "seen"

    clock = FakeClock()
    agent = Agent("ops", tools=[look])
    model = ScriptedModel([call("look"), "done"])
    store = SQLiteStore(":memory:", clock=clock)
    settings = Settings(grace_seconds=0.1)
    async with Runtime([agent], store, model=model, settings=settings) as runtime, asyncio.timeout(10):
        thread = await runtime.start("ops", "look")
        await entered.get()
        first = runtime.worker._holders[thread]
        # Recorded, so that the second holder runs it again; then the lease is over by the store's clock.
        while (await runtime.store.thread(thread)).head_seq < 3:  # noqa: ASYNC110 - a row has no event
            await asyncio.sleep(0)
        clock.at_ms += 60_000
        runtime.worker._wake.set()
        await entered.get()
        assert first.lost
        assert first.task is not None
        await asyncio.wait([first.task])
        # The first one's end has not taken the second one out of the worker's sight.
        assert runtime.worker._holders[thread] is not first
        go.set()
        assert (await runtime.wait(thread)).answer == "done"


class _Reluctant(SQLiteStore):
    """Keeps a reply with calls waiting for ever, and refuses to read news once when told to."""

    def __init__(self) -> None:
        super().__init__(":memory:")
        self.keeps_replies = False
        self.refuses_news = False
        self.kept = asyncio.Event()

    async def append(self, thread_id: ThreadId, events: Sequence[Event], **more: Any) -> Appended:
        if self.keeps_replies and isinstance(events[0], ModelReplied):
            self.kept.set()
            await asyncio.Event().wait()
        return await super().append(thread_id, events, **more)

    async def read(self, thread_id: ThreadId, after: int = 0, limit: int | None = None) -> list[Entry]:
        if self.refuses_news and after:
            self.refuses_news = False
            raise StoreError("database is locked")
        return await super().read(thread_id, after, limit)


async def test_a_hand_over_records_no_result_whose_reply_is_not_in_the_log() -> None:
    """A read has ended before the append of its reply, which the end of the worker cuts short."""

    store = _Reluctant()
    store.keeps_replies = True
    ended = asyncio.Event()

    @tool(effect="read")
    async def look() -> str:
        await store.kept.wait()
        ended.set()
        return "seen"

    agent = Agent("ops", tools=[look])
    async with (
        Runtime([agent], store, model=ScriptedModel([call("look")])) as runtime,
        asyncio.timeout(10),
    ):
        thread = await runtime.start("ops", "look")
        await ended.wait()
        await runtime.worker.stop(0.0)
        kinds = [type(entry.event) for entry in await runtime.events(thread)]
        assert kinds == [ThreadStarted, MessageReceived]


async def test_a_store_that_fails_during_a_model_call_is_not_the_models_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "RETRY_LATER_SECONDS", 0.05)
    store = _Reluctant()

    async def answer(request: Request) -> str:
        if len(request.messages) == 1:
            store.refuses_news = True
            await runtime.send(thread, "and another thing")
            while store.refuses_news:  # noqa: ASYNC110 - set by a read, which has no event
                await asyncio.sleep(0)
        return f"{len(request.messages)} read"

    runtime = Runtime([Agent("ops")], store, model=ScriptedModel(answer))
    thread = ThreadId(str(uuid.uuid4()))
    async with runtime, asyncio.timeout(10):
        await runtime.start("ops", "one thing", thread_id=thread)
        state = await runtime.wait(thread)
        assert (state.status, state.answer) == ("completed", "2 read")


class _Overtaken(SQLiteStore):
    """By the time that a start is acknowledged, the clock has jumped and another worker has tried again."""

    async def append(self, thread_id: ThreadId, events: Sequence[Event], **more: Any) -> Appended:
        done = await super().append(thread_id, events, **more)
        if isinstance(start := events[0], CallStarted) and start.attempt == 1:
            assert isinstance(self._clock, FakeClock)
            self._clock.at_ms += 120_000
            claim = await self.take("other", thread_id, lease_seconds=60)
            assert claim is not None
            again = msgspec.structs.replace(start, attempt=2, deadline_ms=self.now_ms() + 60_000)
            news = await super().append(thread_id, (again,), append_id="again", epoch=claim.epoch)
            self._announce([Change(thread_id, news.head_seq, True)])
        return done


async def test_an_overtaken_attempt_runs_with_its_own_number_and_deadline() -> None:
    """So that whoever does the effect can refuse it as too late."""
    contexts: asyncio.Queue[ToolContext] = asyncio.Queue()

    @tool(effect="idempotent", timeout=60)
    async def put(context: ToolContext) -> str:
        contexts.put_nowait(context)
        return "put"

    clock = FakeClock()
    runtime = Runtime(
        [Agent("ops", tools=[put])],
        _Overtaken(":memory:", clock=clock),
        model=ScriptedModel([call("put")]),
        clock=clock,
        settings=Settings(grace_seconds=0.1),
    )
    first_deadline_ms = clock.now_ms() + 60_000
    async with runtime, asyncio.timeout(10):
        await runtime.start("ops", "put it")
        context = await contexts.get()
        assert (context.attempt, context.deadline_ms) == (1, first_deadline_ms)
