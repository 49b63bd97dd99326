"""A user's folder, with agents that are honest, agents that are not, and runtimes that are not."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

# What a user has: an agent whose tools are honest, and others whose are not.
SHOP = """
import os
import re
import shlex
from tenuto import Agent, DidNotHappen, ask_person, tool

@tool(effect="once", approval=True)
async def pay(amount: int) -> str:
    return "paid"

@tool(effect="idempotent")
def store(name: str) -> str:
    return "stored"

@tool(effect="idempotent", name="store")
def careless(name: str) -> str:
    return f"receipt {os.getpid()}"

@tool(effect="once", name="pay", verify=lambda arguments, key: DidNotHappen())
async def denied(amount: int) -> str:
    return "paid"

@tool(effect="idempotent")
async def note(text: str) -> str:
    return "noted"

@tool(effect="once")
async def ship(order: int) -> str:
    return "shipped"

@tool(effect="read")
async def leave() -> str:
    os._exit(7)

async def quietly() -> str:
    os._exit(0)

agent = Agent("shop", tools=[pay, store, note, ship, ask_person])
careless_agent = Agent("shop", tools=[careless])
denied_agent = Agent("shop", tools=[denied])
leaving_agent = Agent("shop", tools=[leave])
quietly_leaving_agent = Agent("shop", tools=[tool(effect="read", name="leave")(quietly)])
number = 17
fakes = {"pay": lambda amount: "faked"}
wrong_fakes = {"buy": print}
other_fakes = {"pay": lambda price: "faked"}

def script():
    raise RuntimeError("no script today")
"""

# A runtime that is not what it should be; the agent's module is loaded into each child.
BROKEN = """
import asyncio
import msgspec
from tenuto.context import Rendering
from tenuto.loop import act, run
from tenuto.messages import ToolMessage
from tenuto.store.sqlite_write import Transaction
from shop import agent

async def intent_after_effect(holder, step):
    for call in step.run:
        holder.start(call.id, act._run(holder, call))
    await asyncio.sleep(0.05)
    if starts := [act._intent(holder, call) for call in step.run if call.call.effect != "read"]:
        await holder.append(*starts)

def without_epoch(right):
    def append(self, thread_id, events, key, epoch, head_seq):
        if epoch is not None and (head := self._head(thread_id, key)) is not None:
            epoch = head.epoch
        return right(self, thread_id, events, key, epoch, head_seq)
    return append

def undecided(right):
    return lambda self, of: msgspec.structs.replace(right(self, of), outcome=None)

def without_results(right):
    def update(self, *facts):
        return [message for message in right(self, *facts) if not isinstance(message, ToolMessage)]
    return update
"""
MUTATIONS = {
    "intent": "run.act = intent_after_effect\n",
    "epoch": "Transaction.append = without_epoch(Transaction.append)\n",
    "decision": "Transaction._interrupt = undecided(Transaction._interrupt)\n",
    "history": "Rendering.update = without_results(Rendering.update)\n",
}


class Shop:
    """A folder with a user's modules, in which `tenuto crashtest` is run."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folders = place / "folders"
        self.folders.mkdir()
        (place / "shop.py").write_text(SHOP)
        for name, line in MUTATIONS.items():
            (place / f"{name}.py").write_text(BROKEN + line)
        self.environment = os.environ | {"TMPDIR": str(self.folders), "PYTHONPATH": str(ROOT / "src")}

    def script(self, *replies: Any, **more: Any) -> str:
        (self.place / "script.json").write_text(json.dumps({"replies": replies} | more))
        return "script.json"

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tenuto", "crashtest", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.place,
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run it to its end; what it printed, or said on stderr when it fails."""
        with self.popen(*arguments) as process:
            output, errors = process.communicate(timeout=100)
        assert process.returncode == code, output + errors
        assert "Traceback" not in errors
        return output if code == 0 else errors

    def runs(self, *arguments: str, code: int = 0) -> dict[str, dict[str, Any]]:
        """What the report says of each run."""
        self(*arguments, "--report", "report", code=code)
        report = json.loads((self.place / "report" / "report.json").read_text())
        return {f"{run['case']['how']} {run['case']['point']}".strip(): run for run in report["runs"]}
