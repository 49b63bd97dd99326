"""An agent: a frozen value of name, model, instructions, tools, policy and limits. It holds no state."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from tenuto import limits
from tenuto.context.render import Instructions
from tenuto.context.to_user import with_to_user
from tenuto.errors import ConfigurationError
from tenuto.events import Limits, OnMessage, Policy
from tenuto.messages import Message, Model, ToolSchema
from tenuto.thread import ThreadState
from tenuto.tools import Tool

Render = Callable[[ThreadState], list[Message]]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, eq=False)
class Agent:
    """What talks, with what, and how far it may go by itself.

    `instructions` is the system prompt, or a function of the thread's state that gives it. `model` is a
    `Model`, a model's name (used with PROVIDER_URL and PROVIDER_API_KEY), or None for PROVIDER_MODEL.
    `max_steps`, `max_tokens`, `max_cost` and `max_seconds` bound one turn (0: no limit; seconds count model
    and tool time, not waiting). `max_consecutive_errors` failed calls in a row raise a question to a person,
    which expires after `question_expires_after` seconds.
    `on_message_while_waiting="withdraw"` takes pending approvals back when a new message comes in.
    With `to_user` each tool takes one more argument of that name: text for the user, which streams before
    the call's arguments are complete and becomes part of the reply's text. `render` replaces how the history
    is shown to the model; what it returns is mended where a provider would refuse it. `parameters` go into
    the request as they are (temperature, …).

    Raises `ConfigurationError` at once for a bad name, a duplicate tool or a negative limit.
    """

    name: str
    instructions: Instructions = ""
    tools: Sequence[Tool] = ()
    model: Model | str | None = field(default=None, kw_only=True)
    max_steps: int = field(default=limits.MAX_STEPS, kw_only=True)
    max_tokens: int = field(default=0, kw_only=True)
    max_cost: float = field(default=0.0, kw_only=True)
    max_seconds: float = field(default=0.0, kw_only=True)
    max_consecutive_errors: int = field(default=limits.MAX_CONSECUTIVE_ERRORS, kw_only=True)
    on_message_while_waiting: OnMessage = field(default="queue", kw_only=True)
    question_expires_after: float = field(default=limits.EXPIRES_AFTER_SECONDS, kw_only=True)
    to_user: bool = field(default=False, kw_only=True)
    parameters: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    render: Render | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"agent name {self.name!r}: use letters, digits, '_', '-' and '.', 64 at most"
            )
        object.__setattr__(self, "tools", tuple(self.tools))
        for entry in self.tools:
            if not isinstance(entry, Tool):
                raise ConfigurationError(
                    f"agent {self.name}: {entry!r} is not a tool; decorate it with @tool(effect=…)"
                )
        names = [entry.name for entry in self.tools]
        if doubles := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(f"agent {self.name}: two tools are called {', '.join(doubles)}")
        whole = ("max_steps", "max_tokens", "max_consecutive_errors")
        for limit in (*whole, "max_cost", "max_seconds", "question_expires_after"):
            value = getattr(self, limit)
            if limit in whole and type(value) is not int:
                raise ConfigurationError(f"agent {self.name}: {limit} is a whole number")
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigurationError(f"agent {self.name}: {limit} is 0 (no limit) or a positive number")
        if self.on_message_while_waiting not in ("queue", "withdraw"):
            raise ConfigurationError(f"agent {self.name}: on_message_while_waiting is 'queue' or 'withdraw'")

    @cached_property
    def by_name(self) -> Mapping[str, Tool]:
        """The tools by their names."""
        return {entry.name: entry for entry in self.tools}

    @cached_property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """What the model is told of the tools. Raises `ConfigurationError` for one that cannot be built."""
        return tuple(with_to_user(entry.schema) if self.to_user else entry.schema for entry in self.tools)

    @cached_property
    def limits(self) -> Limits:
        """The bounds of one turn, as stored in the thread's first event."""
        return Limits(self.max_steps, self.max_tokens, self.max_cost, self.max_seconds)

    @cached_property
    def policy(self) -> Policy:
        """How the thread behaves, as stored in the thread's first event."""
        return Policy(
            self.on_message_while_waiting,
            self.max_consecutive_errors,
            round(self.question_expires_after * 1000),
        )

    @property
    def model_name(self) -> str:
        """The model's name, "" when the environment decides."""
        return self.model if isinstance(self.model, str) else self.model.name if self.model else ""

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that makes threads behave differently: a changed one is recorded in each thread.

        Instructions and a renderer given as functions count by their names.
        """
        facts = (
            self.name,
            self.model_name,
            _named(self.instructions),
            _named(self.render),
            [entry.digest for entry in self.tools],
            self.limits,
            self.policy,
            dict(self.parameters),
            self.to_user,
        )
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:32]


def _named(given: object) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    return f"{given.__module__}.{getattr(given, '__qualname__', '')}"
