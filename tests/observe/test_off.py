"""Looking on is off unless somebody asks for it, and then costs nothing: no import, no call, no byte."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.test_budgets import OURS, PlainModel, look, watching

from tenuto import Agent, Runtime
from tenuto.observe import Observe

PROGRAM = """
import asyncio, sys
from tenuto import Agent, Runtime
from tenuto.messages import Reply
from tenuto.observe import Observe

class Model:
    name = "plain"
    async def reply(self, request, emit=None):
        return Reply(text="done")

async def main():
    agent = Agent("ops", model=Model())
    async with Runtime([agent], "sqlite://:memory:", observe={observe}) as runtime:
        assert (await runtime.wait(await runtime.start("ops", "go"))).answer == "done"

asyncio.run(main())
heavy = ("opentelemetry", "prometheus_client", "tenuto.observe.metrics", "tenuto.observe.traces")
print([name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize(
    ("observe", "imported"),
    [
        ("None", "[]"),
        ("Observe()", "[]"),
        ("Observe(metrics=True)", "['prometheus_client', 'tenuto.observe.metrics']"),
        ("Observe(traces=True)", "['opentelemetry', 'tenuto.observe.traces']"),
    ],
)
def test_only_what_is_asked_for_is_imported(observe: str, imported: str) -> None:
    program = PROGRAM.replace("{observe}", observe)
    path = {"PYTHONPATH": str(Path(OURS).parent)}
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, env=path
    )
    assert (done.stdout.strip(), done.stderr) == (imported, "")


async def _entered(place: Path, observe: Observe | None) -> set[str]:
    """Our files that one turn enters, after another has warmed everything up."""
    entered: set[str] = set()
    recording = threading.Event()
    with watching(entered, recording):
        agent = Agent("ops", "Be exact.", [look])
        database = f"sqlite:///{place}/t.db"
        async with Runtime([agent], database, model=PlainModel(), observe=observe) as runtime:
            await runtime.wait(await runtime.start("ops", "warm up"))
            recording.set()
            await runtime.wait(await runtime.start("ops", "go"))
            recording.clear()
    return {file for file in entered if file.startswith("/observe/")}


async def test_a_turn_that_nobody_looks_at_enters_none_of_this(tmp_path: Path) -> None:
    assert await _entered(tmp_path, None) == set()
    # The measure would see it.
    assert "/observe/observing.py" in await _entered(tmp_path, Observe())


async def test_without_traces_no_event_says_in_which_it_was_written(tmp_path: Path) -> None:
    observe = Observe(metrics=True)
    database = f"sqlite:///{tmp_path}/t.db"
    agent = Agent("ops", tools=[look])
    async with Runtime([agent], database, model=PlainModel(), observe=observe) as runtime:
        state = await runtime.wait(await runtime.start("ops", "go"))
        stored = await runtime.store.stored(state.id)
    assert len(stored) == 6
    assert not [event for event in stored if b"trace" in (event.body or b"")]
