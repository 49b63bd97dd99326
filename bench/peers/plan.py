"""What is measured: the peers, how each is used, on what, and the sizes of the workloads."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

WORKLOADS = ("steps", "crowd", "approvals", "long", "import", "deltas", "fsyncs")
POSTGRES_WORKLOADS = ("steps", "crowd", "long")
STEPS_PER_CROWD_THREAD = 10


@dataclass(frozen=True)
class Sizes:
    """`turn_steps`: short threads are repeated up to about so many steps, so that a clock can see them."""

    steps: tuple[int, ...]
    turn_steps: int
    crowd: int
    approvals: int
    long: int
    deltas: int
    delta_turns: int
    fsyncs: tuple[int, int]
    timeout_seconds: int


FULL = Sizes(
    steps=(10, 100, 400),
    turn_steps=200,
    crowd=500,
    approvals=300,
    long=400,
    deltas=2_000,
    delta_turns=5,
    fsyncs=(10, 60),
    timeout_seconds=600,
)
QUICK = Sizes(
    steps=(10, 40),
    turn_steps=20,
    crowd=20,
    approvals=10,
    long=40,
    deltas=500,
    delta_turns=1,
    fsyncs=(5, 15),
    timeout_seconds=180,
)


@dataclass(frozen=True)
class Peer:
    """One library in one way of use.

    `script` drives the workloads with a database, `client` is its name in stream_clients.py, `imports` what a
    program imports, by label; "" where there is none. `fewer` gives the threads of a workload that would take
    hours. `once` names the workloads that are measured a single time because they take minutes, as
    "workload" or "workload/n". `steps_of_pause`: so slow that its longest `steps` figure is taken while the
    thread of `long` is stored. `aside`: a measure to compare with and no peer, without an approval to give.
    """

    label: str
    environment: str
    script: str = ""
    mode: str = ""
    client: str = ""
    imports: Mapping[str, str] = field(default_factory=dict)
    fewer: Mapping[str, int] = field(default_factory=dict)
    once: frozenset[str] = frozenset()
    steps_of_pause: bool = False
    aside: bool = False
    promise: str = ""

    def is_once(self, workload: str, n: int = 0) -> bool:
        return workload in self.once or f"{workload}/{n}" in self.once


_LANGGRAPH = (
    "from langchain.agents import create_agent; from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver"
)

PEERS = (
    Peer(
        "Tenuto",
        "tenuto",
        "peer_tenuto.py",
        client="tenuto",
        imports={
            "Tenuto": "from tenuto import Agent, Runtime, tool",
            "Tenuto, and OpenAI (imported when first used)": "from tenuto import Agent, Runtime, tool; "
            "import openai, httpx2, pydantic; from tenuto.models.openai import OpenAIModel",
        },
        promise="Each reply, result and decision is fsynced before it counts; a tool with effects is "
        "recorded as started before it runs. The result of a quick read shares the commit of its reply.",
    ),
    Peer(
        "Tenuto (tool with effects)",
        "tenuto",
        "peer_tenuto.py",
        mode="once",
        aside=True,
        promise="The look-up as a tool of effect `once`: its start is committed before it runs, and its "
        "result by itself. No peer does the first.",
    ),
    Peer(
        "LangGraph",
        "langgraph",
        "peer_langgraph.py",
        client="langgraph",
        imports={
            "LangGraph, agent and SQLite saver": _LANGGRAPH,
            "LangGraph, and OpenAI": f"{_LANGGRAPH}; from langchain_openai import ChatOpenAI",
        },
        promise="Less: by default a checkpoint is written while the next step already runs, and nothing says "
        "that a tool began. Each commit is fsynced.",
    ),
    Peer(
        "LangGraph (DeltaChannel)",
        "langgraph",
        "peer_langgraph.py",
        mode="delta",
        promise="As LangGraph. Beta.",
    ),
    Peer(
        "OpenAI Agents",
        "openai-agents",
        "peer_openai_agents.py",
        client="openai-agents",
        imports={"OpenAI Agents": "from agents import Agent, Runner, SQLiteSession"},
        promise="Less: the session keeps the items of the conversation; a run that dies is not taken up "
        "again. What an approval needs to go on is stored by the bench, by hand.",
    ),
    Peer(
        "Pydantic AI + DBOS",
        "pydantic-ai-dbos",
        "peer_pydantic_ai.py",
        client="pydantic-ai",
        imports={
            "Pydantic AI + DBOS, and OpenAI": "from pydantic_ai import Agent; "
            "from pydantic_ai.models.openai import OpenAIChatModel; "
            "from pydantic_ai.durable_exec.dbos import DBOSDurability"
        },
        once=frozenset({"crowd"}),
        promise="Each model reply and each tool result is fsynced; a workflow that died is run again "
        "from its start over the stored results. Nothing says that a tool began. A waiting workflow is a "
        "task in memory.",
    ),
    Peer(
        "DBOS",
        "dbos",
        "peer_dbos.py",
        imports={"DBOS": "from dbos import DBOS"},
        once=frozenset({"crowd"}),
        promise="As above, without an agent framework.",
    ),
    Peer(
        "Noeta",
        "noeta",
        "peer_noeta.py",
        imports={
            "Noeta, and OpenAI": "from noeta.sdk import Client, Options; "
            "from noeta.sdk.providers import OpenAICompatProvider; "
            "from noeta.sdk.storage import open_storage_stack"
        },
        once=frozenset({"crowd", "steps/400"}),
        promise="More commits than Tenuto for the same: each event of a step is fsynced by itself.",
    ),
    Peer(
        "Cayu",
        "cayu",
        "peer_cayu.py",
        imports={
            "Cayu, and OpenAI": "from cayu import CayuApp, AgentSpec, Tool, RunRequest, run_to_completion; "
            "from cayu.providers import OpenAIProvider; from cayu.storage import SQLiteSessionStore"
        },
        fewer={"crowd": 10, "approvals": 10},
        once=frozenset({"crowd", "approvals", "steps/100", "long"}),
        steps_of_pause=True,
        promise="More commits than any other: events, claims and checkpoints of each step.",
    ),
    Peer(
        "raw SQLite",
        "clients",
        "floor.py",
        aside=True,
        promise="Two rows and one fsync per step, and nothing else: no runtime.",
    ),
    Peer("bare httpx", "clients", client="httpx", aside=True, promise="A client, no runtime."),
    Peer("openai SDK", "clients", client="openai", aside=True, promise="A client, no runtime."),
)

_ON_POSTGRES = ("Tenuto", "LangGraph", "Pydantic AI + DBOS", "DBOS")
POSTGRES_PEERS = (
    # Only what SQLite makes slow is measured once.
    *(
        replace(peer, imports={}, client="", once=frozenset())
        for peer in PEERS
        if peer.label.split(" (")[0] in _ON_POSTGRES
    ),
    Peer(
        "raw PostgreSQL",
        "clients",
        "floor_postgres.py",
        aside=True,
        promise="Two rows in one statement, one commit per step, and nothing else: no runtime.",
    ),
)
