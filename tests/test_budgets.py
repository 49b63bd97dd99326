"""Budgets: what one turn touches, what a step costs as a thread grows, what a waiting thread holds."""

import asyncio
import gc
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import tenuto
from tenuto import Agent, Runtime, ThreadState, tool
from tenuto.loop import Holder
from tenuto.messages import CallRequest, Reply, Request
from tenuto.models.scripted import ScriptedModel, call
from tenuto.runtime import Settings

OURS = str(Path(tenuto.__file__).parent)
MAX_FILES_PER_TURN = 20
MAX_FRAMES_ABOVE_THE_MODEL = 6
MAX_GROWTH = 1.3
MAX_COMMITS_PER_STEP = {"look": 2, "poke": 3}
MAX_BYTES_PER_STEP = 1_500


class PlainModel:
    """Asks for one call, then answers; looks at the stack above itself."""

    name = "plain"

    def __init__(self) -> None:
        self.frames: list[list[str]] = []

    async def reply(self, request: Request, emit: Any = None) -> Reply:
        frames, frame = [], sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                frames.append(frame.f_code.co_qualname)
            frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
        self.frames.append(frames)
        if len(self.frames) % 2:
            return Reply(calls=(CallRequest("look", '{"n":1}'),))
        return Reply(text="done")


@tool(effect="read")
async def look(n: int) -> str:
    return str(n)


@tool(effect="once")
async def poke(n: int) -> str:
    return str(n)


@tool(effect="once", approval=True)
async def pay(n: int) -> str:
    return str(n)


@contextmanager
def watching(entered: set[str], recording: threading.Event) -> Iterator[None]:
    """Collect our files that are entered, in this thread and in those started meanwhile."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and recording.is_set() and frame.f_code.co_filename.startswith(OURS):
            entered.add(frame.f_code.co_filename.removeprefix(OURS))

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # that is how it is undone


async def _turn(place: Path, entered: set[str]) -> PlainModel:
    """One turn, after another has warmed everything up."""
    recording, model = threading.Event(), PlainModel()
    with watching(entered, recording):
        agent = Agent("ops", "Be exact.", [look])
        async with Runtime([agent], database=f"sqlite:///{place}/t.db", model=model) as runtime:
            await runtime.wait(await runtime.start("ops", "warm up"))
            recording.set()
            state = await runtime.wait(await runtime.start("ops", "go"))
            recording.clear()
    assert state.answer == "done"
    assert len(model.frames) == 4
    return model


async def test_a_turn_enters_at_most_twenty_of_our_files(tmp_path: Path) -> None:
    entered: set[str] = set()
    await _turn(tmp_path, entered)
    assert len(entered) <= MAX_FILES_PER_TURN, "\n".join(sorted(entered))


async def test_the_model_is_near_the_top_of_the_stack(tmp_path: Path) -> None:
    model = await _turn(tmp_path, set())
    assert all(0 < len(frames) <= MAX_FRAMES_ABOVE_THE_MODEL for frames in model.frames), model.frames


def test_importing_tenuto_loads_nothing_heavy() -> None:
    heavy = ["pydantic", "openai", "httpx", "httpx2", "fastapi", "typer", "rich", "uvicorn", "starlette"]
    program = f"import sys, tenuto; tenuto.Client; print([name for name in {heavy} if name in sys.modules])"
    path = {"PYTHONPATH": str(Path(OURS).parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=path
    )
    assert done.stdout == "[]\n"


async def _cost(place: Path, steps: int, name: str) -> tuple[float, float, Counter[str]]:
    """Commits and stored bytes per step of a thread with so many steps, and its events."""
    model = ScriptedModel(
        lambda request: "done" if len(request.messages) > 2 * steps else call(name, n=1), record=False
    )
    agent = Agent("ops", "Be exact.", [look, poke], max_steps=0)
    commits = Counter[str]()
    async with Runtime([agent], database=f"sqlite:///{place}/{steps}.db", model=model) as runtime:
        await runtime.wait(await runtime.start("ops", "warm up"))
        connection: Any = runtime.store._writing  # type: ignore[attr-defined]  # the store is SQLite's
        connection.set_trace_callback(lambda statement: commits.update([statement]))
        thread = await runtime.start("ops", "go")
        state = await runtime.wait(thread)
        connection.set_trace_callback(None)
        assert state.step == steps + 1
        size, after, types = 0, 0, Counter[str]()
        while rows := await runtime.store.stored(state.id, after):
            size += sum(len(row.body or b"") for row in rows)
            types.update(row.type for row in rows)
            after = rows[-1].seq
    return commits["COMMIT"] / (steps + 1), size / (steps + 1), types


@pytest.mark.parametrize(("name", "per_step"), [("look", 2), ("poke", 3)])
async def test_a_step_costs_the_same_in_a_short_and_in_a_long_thread(
    tmp_path: Path, name: str, per_step: int
) -> None:
    short_commits, short_bytes, _ = await _cost(tmp_path, 10, name)
    long_commits, long_bytes, types = await _cost(tmp_path, 400, name)
    assert long_commits <= short_commits * MAX_GROWTH
    assert long_bytes <= short_bytes * MAX_GROWTH
    # One commit for the reply, one for the results, one for the intents; and now and then a look for work.
    assert long_commits <= MAX_COMMITS_PER_STEP[name] * 1.1
    assert long_bytes <= MAX_BYTES_PER_STEP
    assert types == {
        "thread_started": 1,
        "message_received": 1,
        "model_replied": 401,
        "call_finished": 400,
        "thread_completed": 1,
        **({"call_started": 400} if per_step == 3 else {}),
    }


def _alive(runtime: Runtime) -> list[object]:
    """What of the loop is still in memory for this runtime."""
    gc.collect()
    return [
        one
        for one in gc.get_objects()
        if (type(one) is Holder and one.store is runtime.store) or (type(one) is ThreadState and one.step)
    ]


async def test_a_waiting_thread_holds_nothing(tmp_path: Path) -> None:
    agent = Agent("ops", "Be exact.", [pay])
    model = ScriptedModel(lambda request: call("pay", n=1), record=False)
    database = f"sqlite:///{tmp_path}/t.db"
    async with Runtime([agent], database=database, model=model, settings=Settings(concurrency=5)) as runtime:
        await runtime.wait(await runtime.start("ops", "warm up"))
        tasks = len(asyncio.all_tasks())
        threads = [await runtime.start("ops", "go") for _ in range(40)]
        for thread in threads:
            state = await runtime.wait(thread)
            assert state.status == "awaiting_approval"
        del state
        await asyncio.sleep(0)
        states = {one.id for one in _alive(runtime) if isinstance(one, ThreadState)}
        assert not states.intersection(threads)
        assert not [one for one in _alive(runtime) if isinstance(one, Holder)]
        assert len(asyncio.all_tasks()) == tasks
        assert not runtime.worker._holders
        assert len(await runtime.interrupts()) == 41


async def test_an_approval_is_three_commits_away_from_the_next_question(tmp_path: Path) -> None:
    """The decision, with the lease; the call's start; its result."""
    commits, at_question = Counter[str](), [0]

    def answer(request: Request) -> Any:
        at_question.append(commits["COMMIT"])
        return "done" if len(request.messages) > 2 else call("pay", n=1)

    agent = Agent("ops", "Be exact.", [pay])
    database = f"sqlite:///{tmp_path}/t.db"
    async with Runtime([agent], database, model=ScriptedModel(answer)) as runtime:
        state = await runtime.wait(await runtime.start("ops", "go"))
        connection: Any = runtime.store._writing  # type: ignore[attr-defined]  # the store is SQLite's
        connection.set_trace_callback(lambda statement: commits.update([statement]))
        await runtime.resolve(state.interrupts[0].id, "approve", by="ana")
        assert (await runtime.wait(state.id)).answer == "done"
        connection.set_trace_callback(None)
    assert at_question[-1] == 3
