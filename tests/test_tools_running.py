"""Running tools: threads, contexts, verify, the built-in tools, and what a call costs."""

import asyncio
import contextvars
import functools
import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from tenuto.errors import NotDone
from tenuto.tools import (
    DidNotHappen,
    Happened,
    ToolContext,
    Unknown,
    Until,
    ask_person,
    running,
    running_tool_threads,
    tool,
    wait_until,
)

NOW = 1_700_000_000_000


async def no_thread_is_left() -> None:
    async with asyncio.timeout(5):
        while running_tool_threads():  # noqa: ASYNC110 - a thread ends when it ends
            await asyncio.sleep(0)


# -- running -----------------------------------------------------------------------------------------

who: contextvars.ContextVar[str] = contextvars.ContextVar("who")


async def test_async_functions_run_on_the_loop_and_sync_ones_beside_it() -> None:
    @tool(effect="read")
    async def on_loop() -> object:
        return threading.get_ident(), who.get()

    @tool(effect="read")
    def beside() -> object:
        return threading.get_ident(), who.get(), running_tool_threads()

    who.set("ana")
    here = threading.get_ident()
    assert await on_loop.run("{}", ToolContext()) == (here, "ana")
    thread, name, count = cast(Any, await beside.run("{}", ToolContext()))
    assert (thread != here, name, count) == (True, "ana", 1)
    await no_thread_is_left()


async def test_a_function_that_is_async_without_looking_so_is_awaited() -> None:
    async def real(a: int) -> int:
        return a + 1

    @functools.wraps(real)
    def wrapper(a: int) -> Any:
        return real(a)

    assert await tool(effect="read")(wrapper).run('{"a":1}', ToolContext()) == 2
    assert await tool(effect="read")(functools.partial(real)).run('{"a":1}', ToolContext()) == 2


@pytest.mark.parametrize(
    "failure", [ValueError("no"), NotDone("nothing"), SystemExit(3), KeyboardInterrupt()]
)
async def test_what_a_function_raises_is_raised(failure: BaseException) -> None:
    @tool(effect="once")
    def fail() -> None:
        raise failure

    with pytest.raises(type(failure)) as caught:
        await fail.run("{}", ToolContext())
    assert caught.value is failure
    await no_thread_is_left()


async def test_stop_iteration_does_not_hang_the_call() -> None:
    @tool(effect="read")
    def fail() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await fail.run("{}", ToolContext())


async def test_arguments_that_do_not_fit_any_more_are_not_run() -> None:
    @tool(effect="once")
    def look(n: int) -> None:
        raise AssertionError("it ran")

    with pytest.raises(NotDone, match="n: required"):
        await look.run("{}", ToolContext())


async def test_hung_calls_keep_their_places_and_others_wait_within_their_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "_places", running._Places(2))
    let_go = threading.Event()

    @tool(effect="once")
    def hang(n: int) -> int:
        let_go.wait(10)
        return n

    tasks = [asyncio.create_task(hang.run(f'{{"n":{n}}}', ToolContext())) for n in range(4)]
    await asyncio.sleep(0)
    assert running_tool_threads() == 2
    with pytest.raises(NotDone, match="all 2 tool threads were busy"):
        await hang.run('{"n":9}', ToolContext(now_ms=NOW, deadline_ms=NOW + 20))
    tasks[0].cancel()  # its thread goes on, and keeps its place
    tasks[2].cancel()  # it was waiting
    await asyncio.wait([tasks[0], tasks[2]])
    assert running_tool_threads() == 2
    let_go.set()
    assert await asyncio.gather(tasks[1], tasks[3]) == [1, 3]
    await no_thread_is_left()


async def test_a_place_that_arrives_with_a_cancellation_is_passed_on() -> None:
    places = running._Places(1)
    await places.take()
    first, second = asyncio.create_task(places.take()), asyncio.create_task(places.take())
    await asyncio.sleep(0)
    places.give_back()
    first.cancel()  # in the same turn of the loop: both are on their way
    await asyncio.wait([first, second])
    assert (first.cancelled(), second.cancelled(), places.taken) == (True, False, 1)
    places.give_back()
    assert places.taken == 0


def test_a_waiter_on_a_closed_loop_is_passed_over() -> None:
    places = running._Places(1)

    async def leave_waiting() -> None:
        await places.take()
        places._waiting.append((asyncio.get_running_loop(), asyncio.get_running_loop().create_future()))

    asyncio.run(leave_waiting())
    places.give_back()
    assert places.taken == 0


def test_a_hung_call_does_not_keep_the_process_alive() -> None:
    program = (
        "import asyncio, threading\nfrom tenuto.tools import tool, ToolContext\n"
        "@tool(effect='read')\ndef hang() -> None: threading.Event().wait()\n"
        "async def main():\n"
        "    try:\n        await asyncio.wait_for(hang.run('{}', ToolContext()), 0.05)\n"
        "    except TimeoutError: print('out of time')\n"
        "asyncio.run(main())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (ran.stdout, ran.stderr) == ("out of time\n", "")


async def test_the_context_is_filled_in() -> None:
    seen: list[tuple[str, float | None]] = []

    @tool(effect="idempotent")
    def work(n: int, context: ToolContext | None = None) -> str:
        assert context is not None
        context.progress("half", 0.5)
        context.progress("more\ud800" + "x" * 5000, 7)
        context.progress("odd", math.nan)
        context.progress("worse", cast(Any, "no"))
        return f"{context.idempotency_key} {context.attempt} {context.cancelled}"

    stop = threading.Event()
    stop.set()
    context = ToolContext(
        idempotency_key="k",
        attempt=2,
        stop=stop,
        emit_progress=lambda message, fraction: seen.append((message, fraction)),
    )
    assert await work.run('{"n":1}', context) == "k 2 True"
    assert seen == [("half", 0.5), ("more\ufffd" + "x" * 995, 1.0), ("odd", None)]
    ToolContext(emit_progress=cast(Any, lambda message, fraction: 1 / 0)).progress("unheard")
    ToolContext().progress("unheard")


# -- verify ------------------------------------------------------------------------------------------


def says(verdict: Any) -> Callable[..., Any]:
    return lambda arguments, idempotency_key: verdict


async def found(arguments: dict[str, Any], idempotency_key: str) -> object:
    return Happened({**arguments, "key": idempotency_key})


def broken(arguments: dict[str, Any], idempotency_key: str) -> object:
    raise ConnectionError("down")


async def slow(arguments: dict[str, Any], idempotency_key: str) -> object:
    await asyncio.sleep(10)
    return DidNotHappen()


@pytest.mark.parametrize(
    ("verify", "verdict"),
    [
        (found, Happened({"n": 1, "key": "k"})),
        (says(Happened("yes")), Happened("yes")),
        (says(DidNotHappen()), DidNotHappen()),
        (says(Unknown("who knows")), Unknown("who knows")),
        (says(None), Unknown("verify returned NoneType, not Happened(…), DidNotHappen() or Unknown()")),
        (says(DidNotHappen), Unknown("verify returned type, not Happened(…), DidNotHappen() or Unknown()")),
        (slow, Unknown("TimeoutError")),
    ],
)
async def test_verify_says_what_became_of_a_call(verify: Callable[..., Any], verdict: object) -> None:
    @tool(effect="once", verify=verify, timeout=0.05)
    async def act(n: int) -> None: ...

    found = await act.verify('{"n":1}', "k")
    if isinstance(verdict, Unknown) and verdict.reason == "TimeoutError":
        assert isinstance(found, Unknown)
        assert found.reason.startswith("TimeoutError")
    else:
        assert found == verdict


async def test_a_verify_that_fails_knows_nothing() -> None:
    @tool(effect="once", verify=broken)
    async def act(n: int) -> None: ...

    verdict = await act.verify('{"n":1}', "k")
    assert isinstance(verdict, Unknown)
    assert verdict.reason.startswith("ConnectionError: down (test_tools_running.py:")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_verify_that_ends_processes_knows_nothing(error: BaseException, is_async: bool) -> None:
    def verify(arguments: dict[str, Any], idempotency_key: str) -> object:
        raise error

    async def later(arguments: dict[str, Any], idempotency_key: str) -> object:
        raise error

    @tool(effect="once", verify=later if is_async else verify)
    async def act(n: int) -> None: ...

    verdict = await act.verify('{"n":1}', "k")
    assert isinstance(verdict, Unknown)
    assert verdict.reason.startswith(type(error).__name__)


async def test_a_verify_can_be_cancelled() -> None:
    @tool(effect="once", verify=slow)
    async def act(n: int) -> None: ...

    asked = asyncio.create_task(act.verify('{"n":1}', "k"))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_what_may_be_verified() -> None:
    @tool(effect="once", verify=broken)
    async def act(n: int) -> None: ...

    assert act.verifiable
    assert await wait_until.verify("{}", "k") == Unknown("the tool has no verify")


# -- built in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "at_ms"),
    [
        ({"seconds": 1.5}, NOW + 1500),
        ({"seconds": 0}, NOW),
        ({"until": "2023-11-14T23:13:20+01:00"}, NOW),  # 1,700,000,000 s is 22:13:20 UTC
        ({"until": "2023-11-14T22:13:20.250Z"}, NOW + 250),
        ({"seconds": 366 * 86_400}, NOW + 366 * 86_400_000),
    ],
)
async def test_wait_until_a_time(arguments: dict[str, Any], at_ms: int) -> None:
    canonical = wait_until.validate(json.dumps(arguments))
    assert await wait_until.run(canonical, ToolContext(now_ms=NOW)) == Until(at_ms)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "exactly one"),
        ({"seconds": 1, "until": "2023-11-14T22:13:20Z"}, "exactly one"),
        ({"seconds": -1}, "negative"),
        ({"until": "2023-11-14T22:13:20"}, "offset"),
        ({"seconds": 366 * 86_400 + 1}, "more than 366 days"),
        ({"until": "9999-01-01T00:00:00Z"}, "more than 366 days"),
    ],
)
async def test_wait_until_refuses(arguments: dict[str, Any], words: str) -> None:
    canonical = wait_until.validate(json.dumps(arguments))
    with pytest.raises(ValueError, match=words):
        await wait_until.run(canonical, ToolContext(now_ms=NOW))


async def test_ask_person() -> None:
    assert (ask_person.name, ask_person.effect) == ("ask_person", "read")
    assert list(ask_person.schema.parameters["properties"]) == ["question"]
    assert ask_person.ask('{"question":"Which one?"}') == "Which one?"
    assert ask_person.ask('{"question":" "}') == "The agent asks for your input."
    assert wait_until.ask('{"question":"Which one?"}') is None
    with pytest.raises(NotDone):
        await ask_person.run('{"question":"Which one?"}', ToolContext())


def test_a_simple_call_is_cheap() -> None:
    """Thirty times what it takes on an ordinary machine: this finds a change of order, not of percents."""

    @tool(effect="read")
    async def look(order_id: str, limit: int = 3) -> str:
        return order_id

    canonical = look.validate('{"order_id": "17"}')
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(200):
            look.validate('{"order_id": "17"}')
            with pytest.raises(StopIteration):
                look.run(canonical, ToolContext()).send(None)
        best = min(best, (time.perf_counter() - started) / 200)
    assert best < 500e-6
