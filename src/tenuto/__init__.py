"""Tenuto: a durable runtime for LLM agents that call tools.

Every fact of a conversation is an event in an append-only log that you own. An agent that waits for a
person costs a row, not a process; kill -9 at any point loses no decision and doubles no effect.
"""

from tenuto.agent import Agent
from tenuto.errors import (
    AlreadyDecided,
    ConfigurationError,
    Conflict,
    InterruptNotFound,
    InvalidInput,
    ModelError,
    NotDone,
    NotFound,
    Stale,
    StoreError,
    TenutoError,
    ThreadNotFound,
    UnknownAgent,
)
from tenuto.runtime import Runtime, Settings
from tenuto.thread import ThreadState
from tenuto.tools import (
    DidNotHappen,
    Happened,
    ToolContext,
    Unknown,
    Until,
    ask_person,
    run_process,
    tool,
    wait_until,
)

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AlreadyDecided",
    "ConfigurationError",
    "Conflict",
    "DidNotHappen",
    "Happened",
    "InterruptNotFound",
    "InvalidInput",
    "ModelError",
    "NotDone",
    "NotFound",
    "Runtime",
    "Settings",
    "Stale",
    "StoreError",
    "TenutoError",
    "ThreadNotFound",
    "ThreadState",
    "ToolContext",
    "Unknown",
    "UnknownAgent",
    "Until",
    "__version__",
    "ask_person",
    "run_process",
    "tool",
    "wait_until",
]
