"""Tenuto: a durable runtime for LLM agents that call tools.

Every fact of a conversation is an event in an append-only log that you own. An agent that waits for a
person costs a row, not a process; kill -9 at any point loses no decision and doubles no effect.
"""

from typing import TYPE_CHECKING, Any

from tenuto.agent import Agent
from tenuto.errors import (
    AccessDenied,
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

if TYPE_CHECKING:
    from tenuto.client import Client

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Agent",
    "AlreadyDecided",
    "Client",
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


def __getattr__(name: str) -> Any:
    # Only a program that talks to a server needs it.
    if name == "Client":
        from tenuto.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
