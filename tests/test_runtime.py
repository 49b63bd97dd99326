"""The verbs: what they write, what they refuse, and that a refusal writes nothing."""

import asyncio
import math
import uuid
from pathlib import Path
from typing import Any

import pytest

from tenuto import (
    Agent,
    AlreadyDecided,
    ConfigurationError,
    Conflict,
    InterruptNotFound,
    InvalidInput,
    Runtime,
    Settings,
    Stale,
    ThreadNotFound,
    UnknownAgent,
    tool,
)
from tenuto.events import Entry, InterruptResolved, MessageReceived
from tenuto.limits import (
    MAX_COMMENT_CHARACTERS,
    MAX_MESSAGE_CHARACTERS,
    MAX_METADATA_BYTES,
    MAX_NAME_CHARACTERS,
)
from tenuto.models.scripted import ScriptedModel, call

NOBODY = "5e9a1d5e-0000-4000-8000-000000000000"


@tool(effect="read")
async def get_order(order_id: str) -> dict[str, str]:
    return {"id": order_id, "state": "damaged"}


REFUNDS: list[tuple[str, str]] = []


@tool(effect="once", approval=True)
async def refund_order(order_id: str, reason: str) -> dict[str, str]:
    REFUNDS.append((order_id, reason))
    return {"refunded": order_id}


def _ops(**options: Any) -> Agent:
    return Agent("ops", instructions="Be exact.", tools=[get_order, refund_order], max_steps=6, **options)


def _runtime(answers: Any, **options: Any) -> Runtime:
    model = ScriptedModel(answers)
    return Runtime([_ops()], options.pop("database", "sqlite://:memory:"), model=model, **options)


REFUND = [
    call("get_order", order_id="17"),
    call("refund_order", order_id="17", reason="damaged"),
    "Refunded.",
]


async def test_the_example() -> None:
    REFUNDS.clear()
    async with _runtime(REFUND) as runtime:
        thread = await runtime.start("ops", "Refund order 17, it arrived damaged.")
        state = await runtime.wait(thread)
        assert (state.status, REFUNDS) == ("awaiting_approval", [])
        await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert (await runtime.wait(thread)).answer == "Refunded."
        assert REFUNDS == [("17", "damaged")]
        assert (await runtime.verify(thread)).ok


async def test_start_is_idempotent_under_an_id_of_ones_own() -> None:
    chosen = uuid.uuid4()
    async with _runtime(["one", "two"]) as runtime:
        started = await asyncio.gather(
            *(runtime.start("ops", "go", thread_id=str(chosen).upper()) for _ in range(5))
        )
        assert set(started) == {str(chosen)}
        assert (await runtime.wait(started[0])).answer == "one"
        assert await runtime.start("ops", "go", thread_id=str(chosen)) == started[0]
        assert (await runtime.wait(started[0])).answer == "one"
        assert len(await runtime.threads()) == 1


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("ops", ""), {}),
        (("ops", " \n"), {}),
        (("ops", None), {}),
        (("ops", "x" * (MAX_MESSAGE_CHARACTERS + 1)), {}),
        (("ops", "a\ud800"), {}),
        (("ops", "go"), {"by": None}),
        (("ops", "go"), {"by": "\udc00"}),
        (("ops", "go"), {"by": "x" * (MAX_NAME_CHARACTERS + 1)}),
        (("ops", "go"), {"thread_id": "17"}),
        (("ops", "go"), {"thread_id": 17}),
        (("ops", "go"), {"metadata": {"a": object()}}),
        (("ops", "go"), {"metadata": {"a": "\ud800"}}),
        (("ops", "go"), {"metadata": {"a": "x" * MAX_METADATA_BYTES}}),
    ],
)
async def test_start_refuses_what_it_cannot_keep(arguments: Any, options: Any) -> None:
    async with _runtime([]) as runtime:
        with pytest.raises(InvalidInput):
            await runtime.start(*arguments, **options)
        assert await runtime.threads() == []


async def test_start_refuses_an_agent_that_it_does_not_know() -> None:
    async with _runtime([]) as runtime:
        with pytest.raises(UnknownAgent, match="ops"):
            await runtime.start("opps", "go")


async def test_text_comes_back_as_it_went_in() -> None:
    said = "\u0000 zwölf 🧾 \u202e \r\n\t𝔘" + "x" * 1000
    async with _runtime([said]) as runtime:
        thread = await runtime.start("ops", said, by="Ana 🦊", metadata={"größe": ["ß", None, 1.5]})
        state = await runtime.wait(thread)
        assert state.answer == said
        assert state.metadata == {"größe": ["ß", None, 1.5]}
        (event,) = [e.event for e in await runtime.events(thread) if isinstance(e.event, MessageReceived)]
        assert (event.text, event.by) == (said, "Ana 🦊")
        at_the_limit = "€" * MAX_MESSAGE_CHARACTERS
        await runtime.send(thread, at_the_limit)
        said_last = [e.event for e in await runtime.events(thread) if isinstance(e.event, MessageReceived)][
            -1
        ]
        assert said_last.text == at_the_limit


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"by": None}, InvalidInput),
        ({"channel": 5}, InvalidInput),
        ({"channel": "x" * (MAX_NAME_CHARACTERS + 1)}, InvalidInput),
    ],
)
async def test_send_refuses_what_it_could_not_read_again(more: Any, error: type[Exception]) -> None:
    async with _runtime(["one", "two"]) as runtime:
        thread = await runtime.start("ops", "go")
        before = await runtime.wait(thread)
        with pytest.raises(error):
            await runtime.send(thread, "more", **more)
        with pytest.raises(InvalidInput):
            await runtime.send(thread, " ")
        assert (await runtime.state(thread)).head_seq == before.head_seq


@pytest.mark.parametrize(
    "more",
    [
        {"steps": -1},
        {"steps": 1.5},
        {"steps": "1"},
        {"cost": math.nan},
        {"cost": math.inf},
        {"seconds": -0.1},
        {"tokens": 10**30},
        {"stepps": 1},
        {"by": None},
    ],
)
async def test_extend_refuses_what_it_could_not_read_again(more: Any) -> None:
    async with Runtime(
        [Agent("ops", tools=[get_order], max_steps=1)],
        "sqlite://:memory:",
        model=ScriptedModel([call("get_order", order_id="1"), "done"]),
    ) as runtime:
        thread = await runtime.start("ops", "go")
        before = await runtime.wait(thread)
        assert before.status == "halted"
        with pytest.raises(InvalidInput):
            await runtime.extend(thread, **more)
        assert (await runtime.state(thread)).head_seq == before.head_seq
        await runtime.extend(thread, steps=1)
        assert (await runtime.wait(thread)).answer == "done"
        with pytest.raises(Conflict):
            await runtime.extend(thread, steps=1)


async def test_what_is_not_there_is_not_found() -> None:
    async with _runtime([]) as runtime:
        for verb in (
            runtime.send(NOBODY, "hello"),
            runtime.cancel(NOBODY),
            runtime.extend(NOBODY, steps=1),
            runtime.state(NOBODY),
            runtime.wait(NOBODY, 1),
            runtime.events(NOBODY),
            runtime.verify(NOBODY),
            runtime.drive(NOBODY),
            runtime.follow(NOBODY).__anext__(),
        ):
            with pytest.raises(ThreadNotFound):
                await verb
        with pytest.raises(InterruptNotFound):
            await runtime.resolve(NOBODY, "approve", by="ana")


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("aprove", {}),
        ("", {}),
        ("happened", {}),
        ("answer", {"answer": "yes"}),
        ("edit", {}),
        ("edit", {"arguments": {"order_id": "17"}}),
        ("edit", {"arguments": {"order_id": object()}}),
        ("edit", {"arguments": "{"}),
        ("approve", {"arguments": {"order_id": "17", "reason": "x"}}),
        ("approve", {"by": ""}),
        ("approve", {"by": " "}),
        ("approve", {"by": None}),
        ("reject", {"comment": "x" * (MAX_COMMENT_CHARACTERS + 1)}),
        ("reject", {"comment": None}),
        ("reject", {"comment": "\ud800"}),
        ("approve", {"channel": 3}),
    ],
)
async def test_a_decision_that_is_not_one_decides_nothing(verb: str, more: Any) -> None:
    async with _runtime(REFUND) as runtime:
        thread = await runtime.start("ops", "go")
        state = await runtime.wait(thread)
        with pytest.raises(InvalidInput):
            await runtime.resolve(state.interrupts[0].id, verb, **({"by": "ana"} | more))
        with pytest.raises(Stale):
            await runtime.resolve(state.interrupts[0].id, "approve", by="ana", digest="another")
        assert (await runtime.state(thread)).head_seq == state.head_seq
        (row,) = await runtime.interrupts()
        assert (row.outcome, row.digest) == (None, state.interrupts[0].digest)


async def test_a_second_decision_hears_of_the_first() -> None:
    async with _runtime(REFUND) as runtime:
        state = await runtime.wait(await runtime.start("ops", "go"))
        recorded = await runtime.resolve(
            state.interrupts[0].id, "reject", by="ana", comment="no", channel="cli"
        )
        assert (recorded.outcome, recorded.by, recorded.comment) == ("rejected", "ana", "no")
        with pytest.raises(AlreadyDecided) as refused:
            await runtime.resolve(state.interrupts[0].id, "approve", by="bob")
        facts = refused.value
        (entry,) = [e for e in await runtime.events(state.id) if isinstance(e.event, InterruptResolved)]
        assert entry.event == recorded
        assert (facts.interrupt_id, facts.outcome, facts.by) == (recorded.id, "rejected", "ana")
        assert facts.at_ms == entry.at_ms


async def test_wait_with_a_timeout_tells_how_it_is_now() -> None:
    go = asyncio.Event()

    async def slow(_: Any) -> str:
        await go.wait()
        return "done"

    async with _runtime(slow) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await runtime.wait(thread, 0)).status == "running"
        assert (await runtime.wait(thread, 0.02)).status == "running"
        go.set()
        assert (await runtime.wait(thread, 5)).answer == "done"
        assert (await runtime.wait(thread, 0)).answer == "done"


async def test_two_runtimes_on_one_file_share_the_work(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/t.db"
    async with (
        _runtime(lambda _: "left", database=database) as left,
        _runtime(lambda _: "right", database=database) as right,
    ):
        threads = [await left.start("ops", f"task {n}") for n in range(30)]
        answers = {(await right.wait(thread, 10)).answer for thread in threads}
        assert answers <= {"left", "right"}
        assert {worker.owner for worker in await left.workers()} == {left.owner, right.owner}
        for thread in threads:
            types = [type(entry.event).__name__ for entry in await left.events(thread)]
            assert types == ["ThreadStarted", "MessageReceived", "ModelReplied", "ThreadCompleted"]


async def test_a_decision_made_elsewhere_is_picked_up_at_once(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/t.db"
    without = Settings(worker=False)
    async with (
        _runtime(REFUND, database=database) as server,
        _runtime([], database=database, settings=without) as command,
    ):
        state = await server.wait(await server.start("ops", "go"))
        loop = asyncio.get_running_loop()
        decided = loop.time()
        await command.resolve(state.interrupts[0].id, "approve", by="ana")
        async for item in server.follow(state.id, state.head_seq + 1):
            if isinstance(item, Entry):
                break
        assert loop.time() - decided < 1.0
        assert (await command.wait(state.id, 5)).answer == "Refunded."
        assert [worker.owner for worker in await command.workers()] == [server.owner]


async def test_without_a_worker_a_thread_is_driven_by_hand(tmp_path: Path) -> None:
    async with _runtime(REFUND, settings=Settings(worker=False)) as runtime:
        thread = await runtime.start("ops", "go")
        assert (await runtime.wait(thread, 0.02)).head_seq == 2
        assert await runtime.drive(thread) is True
        state = await runtime.state(thread)
        assert state.status == "awaiting_approval"
        assert await runtime.drive(thread) is False, "nothing is ready"
        await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert await runtime.drive(thread) is True
        assert (await runtime.state(thread)).answer == "Refunded."


async def test_driving_a_thread_of_an_unknown_agent_leaves_it_to_others(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/t.db"
    off = Settings(worker=False)
    async with _runtime(["done"], database=database, settings=off) as runtime:
        thread = await runtime.start("ops", "go")
        async with Runtime([Agent("other")], database, settings=off) as other:
            assert await other.drive(thread) is False
        assert (await runtime.store.thread(thread)).lease_owner is None
        assert await runtime.drive(thread) is True


async def test_what_cannot_work_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    @tool(effect="read")
    async def broken(x: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821 - on purpose
        ...

    with pytest.raises(ConfigurationError, match="two agents"):
        Runtime([_ops(), _ops()], f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(ConfigurationError, match="not supported"):
        Runtime([], "mysql://x")
    with pytest.raises(ConfigurationError):
        async with Runtime([Agent("ops", tools=[broken])], f"sqlite:///{tmp_path}/a.db"):
            pass
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - a look at an empty folder
