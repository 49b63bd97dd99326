"""One and the same program against a runtime and against a server: what it gets is the same."""

import inspect
import re
import typing
import uuid
from typing import Any

import msgspec
import pytest
from tests.client.conftest import TOKEN

from tenuto import (
    AlreadyDecided,
    Client,
    Conflict,
    InterruptNotFound,
    InvalidInput,
    Runtime,
    Stale,
    StoreError,
    TenutoError,
    ThreadNotFound,
    ThreadState,
    UnknownAgent,
)
from tenuto.client.bodies import row_of
from tenuto.doubt import InDoubt
from tenuto.events import (
    CallId,
    Entry,
    InterruptId,
    InterruptResolved,
    MessageReceived,
    ThreadCompleted,
    ThreadId,
)
from tenuto.rows import InterruptRow, StoredEvent, ThreadRow, WorkerRow
from tenuto.server import shapes
from tenuto.stream import Replayed

NOBODY = "0e6f3b0a-5d0c-4f6e-9a52-3c1d7b8e4f21"
VERBS = "start send resolve cancel extend wait state events stored follow interrupt interrupts thread threads"
VERBS += " workers fleet in_doubt verify"

AnyRuntime = Runtime | Client


async def story(runtime: AnyRuntime) -> dict[str, Any]:
    """Everything that a program does with threads; what it saw."""
    seen: dict[str, Any] = {}
    thread = await runtime.start("ops", "refund", by="Zoë", metadata={"order": "17 – ü 日本", "n": 2.5})
    seen["paused"] = state = await runtime.wait(thread, 20)
    assert isinstance(state, ThreadState)
    (row,) = await runtime.interrupts(thread_id=thread)
    assert isinstance(row, InterruptRow)
    seen["pending"] = row, await runtime.interrupt(row.id), await runtime.interrupts(agent="frugal")
    seen["edited"] = await runtime.resolve(
        row.id,
        "edit",
        by="Zoë",
        comment="the other one — «16»",
        arguments={"order_id": "16", "reason": "brøken 🪔"},
        digest=row.digest,
    )
    assert isinstance(seen["edited"], InterruptResolved)
    seen["refunded"] = await runtime.wait(thread)
    seen["said"] = await runtime.send(thread, "hello", by="Zoë")
    items = [item async for item in runtime.follow(thread, seen["said"] - 1, rest=True)]
    seen["followed"] = [item for item in items if isinstance(item, Entry)]
    assert sum(isinstance(item, Replayed) for item in items) == 1
    seen["events"] = await runtime.events(thread)
    seen["page"] = await runtime.events(thread, 3, 2)
    assert isinstance(seen["events"][-1].event, ThreadCompleted)
    seen["thread"] = await runtime.thread(thread)
    assert isinstance(seen["thread"], ThreadRow)
    seen["decided"] = await runtime.interrupts(pending=False), await runtime.interrupts(pending=None)
    seen["stored"] = await runtime.stored(thread, 1, 3)
    assert all(isinstance(event, StoredEvent) for event in seen["stored"])
    seen["verified"] = await runtime.verify(thread)
    assert seen["verified"].ok

    seen["asleep"] = await runtime.wait(await runtime.start("ops", "sleep", by="Zoë"), 20)
    await runtime.cancel(seen["asleep"].id, by="Zoë", reason="no time")
    seen["cancelled"] = await runtime.wait(seen["asleep"].id, 20)
    seen["halted"] = await runtime.wait(await runtime.start("frugal", "costly", by="Zoë"), 20)
    await runtime.extend(seen["halted"].id, by="Zoë", tokens=1000, seconds=0.5)
    seen["extended"] = await runtime.wait(seen["halted"].id, 20)
    seen["threads"] = await runtime.threads()
    assert [row.id for row in seen["threads"]][-1] == thread
    seen["some"] = (
        await runtime.threads(limit=1, status="completed"),
        await runtime.threads(agent="frugal"),
        await runtime.threads(metadata={"order": "17 – ü 日本"}),
        await runtime.threads(before=(seen["threads"][0].created_at_ms, seen["threads"][0].id)),
    )
    seen["workers"] = [worker.agents for worker in await runtime.workers()]
    assert all(isinstance(worker, WorkerRow) for worker in await runtime.workers())
    return seen


async def refusals(runtime: AnyRuntime) -> dict[str, Any]:
    """What goes wrong, and with which words."""
    own = str(uuid.uuid4())
    assert await runtime.start("ops", "refund", thread_id=own) == own
    assert await runtime.start("ops", "refund", thread_id=own) == own
    await runtime.wait(own, 20)
    assert [entry.seq for entry in await runtime.events(own) if isinstance(entry.event, MessageReceived)] == [
        2
    ]
    (row,) = await runtime.interrupts(thread_id=own)
    tries: dict[str, tuple[type[TenutoError], Any]] = {
        "no thread": (ThreadNotFound, lambda: runtime.state(NOBODY)),
        "no such id": (ThreadNotFound, lambda: runtime.thread("../secret?x")),
        "send to none": (ThreadNotFound, lambda: runtime.send(NOBODY, "hello")),
        "wait for none": (ThreadNotFound, lambda: runtime.wait(NOBODY, 5)),
        "follow none": (ThreadNotFound, lambda: anext(runtime.follow(NOBODY))),
        "verify none": (ThreadNotFound, lambda: runtime.verify(NOBODY)),
        "no interrupt": (InterruptNotFound, lambda: runtime.interrupt(NOBODY)),
        "resolve none": (InterruptNotFound, lambda: runtime.resolve(NOBODY, "approve", by="ana")),
        "no agent": (UnknownAgent, lambda: runtime.start("nobody", "hello")),
        "blank": (InvalidInput, lambda: runtime.send(own, " ")),
        "surrogate": (InvalidInput, lambda: runtime.send(own, "\ud800")),
        "bytes": (InvalidInput, lambda: runtime.send(own, b"hello")),  # type: ignore[arg-type]  # no text
        "surrogates asked for": (InvalidInput, lambda: runtime.threads(agent="\ud800")),
        "of a surrogate": (InvalidInput, lambda: runtime.in_doubt("\ud800")),
        "no metadata": (InvalidInput, lambda: runtime.start("ops", "x", metadata={"x": object()})),
        "empty id": (InvalidInput, lambda: runtime.start("ops", "x", thread_id="")),
        "no uuid": (InvalidInput, lambda: runtime.start("ops", "x", thread_id="mine")),
        "other start": (Conflict, lambda: runtime.start("ops", "other", thread_id=own)),
        "wrong verb": (InvalidInput, lambda: runtime.resolve(row.id, "answer", by="ana", answer="x")),
        "not JSON": (InvalidInput, lambda: runtime.resolve(row.id, "edit", by="ana", arguments="{")),
        "no object": (InvalidInput, lambda: runtime.resolve(row.id, "edit", by="ana", arguments="[1]")),
        "misfit": (
            InvalidInput,
            lambda: runtime.resolve(row.id, "edit", by="ana", arguments={"order_id": 1}),
        ),
        "stale": (Stale, lambda: runtime.resolve(row.id, "approve", by="ana", digest="0" * 64)),
        "too much": (InvalidInput, lambda: runtime.extend(own, tokens=-1)),
    }
    for name, (kind, attempt) in tries.items():
        with pytest.raises(kind) as raised:
            await attempt()
        assert type(raised.value) is kind, name
    with pytest.raises(TypeError):
        await runtime.resolve(row.id, "approve", by="ana", digset="x")  # type: ignore[call-arg]  # a misspelt check
    await runtime.resolve(row.id, "reject", by="ana", comment="no")
    with pytest.raises(AlreadyDecided) as late:
        await runtime.resolve(row.id, "approve", by="bo")
    assert (late.value.interrupt_id, late.value.outcome) == (row.id, "rejected")
    assert late.value.at_ms == (await runtime.interrupt(row.id)).resolved_at_ms
    await runtime.wait(own, 20)
    with pytest.raises(Conflict) as ended:
        await runtime.cancel(own)
    return {"late": late.value.by, "ended": str(ended.value)}


def told(seen: Any) -> Any:
    """The same without what differs between any two runs: ids, hashes, salts, times, and who was trusted."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found.group(), f"id {len(numbers)}")

    def plain(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {plain(k): plain(entry, k) for k, entry in value.items() if k != "duration_ms"}
        if isinstance(value, list | tuple):
            return [plain(entry, name) for entry in value]
        if name == "seconds":
            return "how long it took"
        if isinstance(value, int) and (name.endswith("_ms") or name in ("at", "pid")) and value:
            return "a time"
        if isinstance(value, str):
            text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", number, value)
            if name in ("hash", "head_hash", "body_hash", "salt", "body", "key", "worker"):
                return f"some {name}"
            return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)", "a time", text)
        return value

    return plain(msgspec.to_builtins(seen))


@pytest.fixture
async def pair(serving):
    """A runtime, and a client of another one's server."""
    from tenuto.server import Access

    async with serving(Access(TOKEN)) as there, serving() as here, Client(there.url, token=TOKEN) as client:
        yield here.runtime, client


def as_claimed(value: Any) -> Any:
    """A server adds to a name by whose token it was said, and has a channel of its own."""
    if isinstance(value, dict):
        return {key: as_claimed(entry) for key, entry in value.items() if key != "channel"}
    if isinstance(value, list):
        return [as_claimed(entry) for entry in value]
    return value.removesuffix(" via approver") if isinstance(value, str) else value


async def test_a_program_sees_the_same_embedded_and_remote(pair):
    here, there = [as_claimed(told(await story(runtime))) for runtime in pair]
    assert here.keys() == there.keys()
    for name in here:
        assert there[name] == here[name], name


async def test_what_goes_wrong_is_the_same_embedded_and_remote(pair):
    here, there = [as_claimed(told(await refusals(runtime))) for runtime in pair]
    assert there == here


async def test_a_server_s_own_runtime_and_its_client_say_the_same_of_one_thread(serving):
    """To the letter: ids, hashes, times, salts."""
    async with serving() as place, Client(place.url, token=TOKEN) as client:
        thread = await client.start("ops", "two at once", metadata={"größe": [1, None, {"x": "\u2028"}]})
        await client.wait(thread, 20)
        first, second = await client.interrupts(thread_id=thread)
        await client.resolve(first.id, "approve", by="ana")
        for runtime in (place.runtime, client):
            await runtime.wait(thread, 20)
        for verb, arguments in (
            ("state", (thread,)),
            ("events", (thread,)),
            ("stored", (thread,)),
            ("thread", (thread,)),
            ("threads", ()),
            ("interrupts", ()),
            ("interrupt", (first.id,)),
            ("interrupt", (second.id,)),
            ("verify", (thread,)),
            ("workers", ()),
        ):
            ours = await getattr(place.runtime, verb)(*arguments)
            assert ours
            assert await getattr(client, verb)(*arguments) == ours, verb


async def test_lists_and_logs_of_several_pages_are_whole(serving, monkeypatch):
    async with serving() as place, Client(place.url, token=TOKEN) as client:
        threads = [await client.start("ops", "two at once") for _ in range(5)]
        for thread in threads:
            await client.wait(thread, 20)
        long = await client.start("ops", "for ever")
        state = await client.wait(long, 20)
        with monkeypatch.context() as patch:
            patch.setattr("tenuto.limits.MAX_PAGE_ROWS", 3)
            assert await client.state(long) == state
            assert (await client.verify(long)).checked == state.head_seq > 9
        for name in ("MAX_LISTED_THREADS", "MAX_LISTED_INTERRUPTS"):
            monkeypatch.setattr(f"tenuto.limits.{name}", 3)
        assert [row.id for row in await client.threads()] == [long, *reversed(threads)]
        assert [row.id for row in await client.threads(limit=4)] == [long, *reversed(threads[2:])]
        rows = await client.interrupts()
        assert [row.thread_id for row in rows] == [thread for thread in threads for _ in range(2)]
        assert await client.interrupts(after=rows[3].id, limit=5) == rows[4:9]


@pytest.mark.parametrize("verb", VERBS.split())
def test_the_verbs_take_and_give_the_same(verb):
    ours, theirs = (inspect.signature(getattr(kind, verb)) for kind in (Runtime, Client))
    if verb not in ("interrupts", "threads"):  # there a runtime passes on what the store takes
        assert theirs.parameters.keys() == ours.parameters.keys()
        kinds = [[(p.kind, p.default) for p in each.parameters.values()] for each in (ours, theirs)]
        assert verb == "verify" or kinds[0] == kinds[1]
    hints = [typing.get_type_hints(getattr(kind, verb))["return"] for kind in (Runtime, Client)]
    assert hints[0] == hints[1]


def test_nothing_but_driving_is_missing():
    public = {name for name, value in vars(Runtime).items() if inspect.isfunction(value) and name[0] != "_"}
    assert public - set(vars(Client)) == {"drive"}
    assert public == {*VERBS.split(), "drive"}


THREAD, OTHER = ThreadId(NOBODY), "2b1f7c9e-0f4b-4f43-8a33-6f2f1d9a7c10"
ROWS: list[tuple[Any, type[msgspec.Struct]]] = [
    (ThreadRow(THREAD, "ops", "running", 3, 1, 2, None, None, {"n": 1}, "ab"), shapes.ThreadSummary),
    (ThreadRow(THREAD, "ops", "sleeping", 3, 1, 2, 9_000, "w1", {}, "ab"), shapes.ThreadSummary),
    (
        InterruptRow(
            *(InterruptId(OTHER), THREAD, "ops", "approval", "s1", "pay", '{"n":1.50}', "Pay?", "d"),
            *(("approve",), 4, 5_000, 6_000, "edited", "ana", "ok", 5_500),
        ),
        shapes.Interrupt,
    ),
    (
        InterruptRow(InterruptId(OTHER), THREAD, "ops", "question", "", "", "", "How?", "", (), 4, 5_000, 0),
        shapes.Interrupt,
    ),
    (InDoubt(THREAD, "ops", CallId("s1"), "pay", '{"n": 1}', 0, "w1", "pay was started"), shapes.CallInDoubt),
    (WorkerRow("w1", ("ops",), 17, 1_000), shapes.Worker),
    (WorkerRow("w1", (), 17, 1_000, "here", 2, 3_000), shapes.Worker),
]


@pytest.mark.parametrize(("row", "shape"), ROWS)
def test_a_row_comes_through_a_server_as_it_was(row: Any, shape: type[msgspec.Struct]) -> None:
    sent = msgspec.json.encode(shapes.body(shape, row))
    assert row_of(msgspec.Raw(sent), type(row)) == row
    fields = msgspec.json.decode(sent, type=dict[str, msgspec.Raw])
    without = msgspec.json.encode({name: value for name, value in fields.items() if name != "agent"})
    if "agent" in fields:
        with pytest.raises(StoreError, match="another version"):
            row_of(msgspec.Raw(without), type(row))
    with pytest.raises(StoreError, match="another version"):
        row_of(msgspec.Raw(b"[]"), type(row))
