"""What the runtime serves: agents whose tools are at the tool host, over HTTP.

The file that KILL_ORDER names, with "before EVENT" or "after EVENT" in it, makes this process end itself with
SIGKILL around the next append that has an event of this type: the store's own methods are wrapped, the
product is as it is. LEASE_SECONDS gives its leases another length.
"""

import functools
import inspect
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import httpx2
from tests.crash.workload import end_with_parent, is_write, retail_tools

from tenuto import Agent, DidNotHappen, Happened, ToolContext, tool
from tenuto.runtime import Runtime, Settings
from tenuto.store import Store
from tenuto.tools import Tool

# How long a call in doubt is left alone: nobody looks what became of it before its deadline.
TOOL_SECONDS = 2.0
_host = httpx2.AsyncClient(base_url=os.environ["TOOL_HOST"], timeout=None, trust_env=False)


async def ask_ledger(_arguments: dict[str, Any], key: str) -> Happened | DidNotHappen:
    """What the tool host's ledger says."""
    lines = (await _host.get("/ledger", params={"key": key})).json()
    return Happened(lines[0]["result"]) if lines else DidNotHappen()


def at_host(name: str, parameters: dict[str, Any], description: str = "", **options: Any) -> Tool:
    """A tool of these parameters (name: type) that the tool host carries out."""

    async def function(context: ToolContext, **arguments: Any) -> str:
        request = {"key": context.idempotency_key, "tool": name, "arguments": arguments}
        answer = await _host.post("/call", json=request)
        result: str = answer.json()["result"]
        return result

    by_name = inspect.Parameter.KEYWORD_ONLY
    shown = [inspect.Parameter(each, by_name, annotation=kind) for each, kind in parameters.items()]
    context = inspect.Parameter("context", by_name, annotation=ToolContext)
    function.__signature__ = inspect.Signature([*shown, context])  # type: ignore[attr-defined]  # it is looked up
    if options["effect"] != "read":
        options.setdefault("timeout", TOOL_SECONDS)
    return tool(name=name, description=description, **options)(function)


def desk() -> Agent:
    """One tool of each kind, for the named crash points."""
    order = {"order_id": str}
    return Agent(
        "desk",
        tools=[
            at_host("look", order, effect="read"),
            at_host("store", order, effect="idempotent", approval=True),
            at_host("pay", order, effect="once", approval=True),
            at_host("pay_verified", order, effect="once", approval=True, verify=ask_ledger),
        ],
    )


def fleet() -> Agent:
    """For many workers on a busy machine: what is in doubt is left alone longer."""

    @tool(effect="idempotent", approval=True)
    def stamp(order_id: str) -> str:
        """Put a stamp on an order, here and at once."""
        return f"stamp {order_id}: done"

    order, slow = {"order_id": str}, {"effect": "once", "approval": True, "timeout": 5.0}
    tools = [
        at_host("look", order, effect="read"),
        at_host("pay", order, **slow),
        at_host("pay_verified", order, verify=ask_ledger, **slow),
        stamp,
    ]
    return Agent("fleet", tools=tools, max_steps=1_000)


def retail(name: str, **writing: Any) -> Agent:
    """The tools of tau-bench's retail shop; every write needs a person; `writing` is what they declare."""
    kinds = {"string": str, "array": list[str]}
    tools = []
    for each in (spec["function"] for spec in retail_tools()["tools"]):
        parameters = {
            key: Literal[tuple(schema["enum"])] if "enum" in schema else kinds[schema["type"]]
            for key, schema in each["parameters"]["properties"].items()
        }
        options = {"approval": True} | writing if is_write(each) else {"effect": "read"}
        tools.append(at_host(each["name"], parameters, each["description"], **options))
    return Agent(name, tools=tools)


def bfcl() -> Agent:
    """One tool for BFCL: its calls are Python text, and each of them may change something."""
    act = at_host("act", {"code": str}, effect="once", verify=ask_ledger)
    return Agent("bfcl", tools=[act], max_steps=100)


def die_on_order(order: Path) -> None:
    """Around each append, look whether this process is to die there; what is about to die takes the order."""

    def obey(when: str, kinds: set[str]) -> None:
        if order.exists() and order.read_text() in {f"{when} {kind}" for kind in kinds}:
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(method: str) -> None:
        original = getattr(Store, method)

        @functools.wraps(original)  # its annotations are looked up
        async def wrapped(self: Store, *arguments: Any, **options: Any) -> Any:
            events = arguments[-1] if isinstance(arguments[-1], list | tuple) else [arguments[-1]]
            kinds = {event.__struct_config__.tag for event in events}
            obey("before", kinds)
            done = await original(self, *arguments, **options)
            obey("after", kinds)
            return done

        setattr(Store, method, wrapped)

    for method in ("create", "append", "resolve"):
        wrap(method)


def lease_for(seconds: float) -> None:
    """For as long as that, whatever the command line, which has no say in it, makes of its settings."""
    original = Runtime.__init__

    def init(self: Runtime, *arguments: Any, settings: Settings, **options: Any) -> None:
        original(self, *arguments, settings=replace(settings, lease_seconds=seconds), **options)

    Runtime.__init__ = init  # type: ignore[method-assign]  # by this process for itself


end_with_parent()
if seconds := os.environ.get("LEASE_SECONDS"):
    lease_for(float(seconds))
die_on_order(Path(os.environ["KILL_ORDER"]))
agents = [desk(), fleet()]
if os.environ.get("TENUTO_SHARED"):
    agents += [
        retail("retail", effect="once", verify=ask_ledger),
        retail("retail-reviewed", effect="once"),
        retail("retail-careless", effect="idempotent"),  # which they are not: for the audit to find
    ]
if os.environ.get("TENUTO_BFCL"):
    agents.append(bfcl())
