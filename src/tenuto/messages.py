"""What a model reads and says: provider-neutral, frozen, and free of any transport.

`Request` flows down to a model, `Reply` comes back; `Delta` is what is seen while it arrives. The wire
form of each provider lives under `models/`.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec


class CallRequest(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One tool call as the provider said it.

    `arguments` is the raw text, None when absent. `extra` is what must be echoed to the same provider
    with the call (such as Gemini's thought signature), as the JSON object it came in.
    """

    name: str
    arguments: str | None = None
    provider_id: str = ""
    extra: dict[str, Any] | None = None


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens of one reply, as the provider counted them; `cost` in the provider's currency if it says so."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    cost: float = 0.0


class Reply(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A whole model reply. `finish` is the provider's finish reason, "" when it gave none."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallRequest, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    finish: str = ""
    extra: dict[str, Any] | None = None


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, tag_field="role"):
    """One entry of the history that a model reads."""


class SystemMessage(Message, frozen=True, omit_defaults=True, tag="system"):
    text: str


class UserMessage(Message, frozen=True, omit_defaults=True, tag="user"):
    text: str


class ToolCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A call inside an assistant message: `id` is Tenuto's own, nine letters and digits."""

    id: str
    name: str
    arguments: str
    extra: dict[str, Any] | None = None


class AssistantMessage(Message, frozen=True, omit_defaults=True, tag="assistant"):
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    extra: dict[str, Any] | None = None


class ToolMessage(Message, frozen=True, omit_defaults=True, tag="tool"):
    call_id: str
    text: str


class ToolSchema(msgspec.Struct, frozen=True):
    """What a model is told of a tool: `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """One question to a model. `messages` is read-only for the model: it is the caller's own list."""

    messages: list[Message]
    tools: tuple[ToolSchema, ...] = ()
    parameters: dict[str, Any] = {}


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text_delta", tag_field="type"):
    """More visible text of the reply that is arriving."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False, tag="reasoning_delta", tag_field="type"):
    """More of the model's reasoning."""

    text: str


class CallDelta(msgspec.Struct, frozen=True, gc=False, tag="call_delta", tag_field="type"):
    """More of the arguments of the reply's call number `index` (from 0); `name` is "" until it is known."""

    index: int
    name: str
    arguments: str


class AttemptFailed(msgspec.Struct, frozen=True, tag="attempt_failed", tag_field="type"):
    """An attempt broke and will be tried again: what was shown of this reply so far is void."""

    error: str
    wait_seconds: float


class ToolProgress(msgspec.Struct, frozen=True, tag="tool_progress", tag_field="type"):
    """A running tool says how far it is; `fraction` between 0 and 1, or None."""

    call_id: str
    message: str
    fraction: float | None = None


class StatusLine(msgspec.Struct, frozen=True, tag="status_line", tag_field="type"):
    """What is being done now, for a person to read; the next line or the next event replaces it."""

    text: str


class ReplySoFar(msgspec.Struct, frozen=True, tag="reply_so_far", tag_field="type"):
    """All that the reply which is arriving has said until now, for who missed some of it: it replaces what
    was shown of this reply, and the deltas after it go on from there.
    """

    text: str
    reasoning: str = ""


Delta = TextDelta | ReasoningDelta | CallDelta | AttemptFailed

Live = Delta | ToolProgress | StatusLine | ReplySoFar


class Model(Protocol):
    """The seam to a provider."""

    @property
    def name(self) -> str:
        """The model's name, part of an agent's fingerprint."""
        ...

    async def reply(self, request: Request, emit: Callable[[Delta], None] | None = None) -> Reply:
        """Ask once, with the retries that one step allows inside.

        `emit` (None when nobody watches) gets the deltas as they come. Raises `ModelError` when the
        provider stays down or refuses. Cancelling the awaiting task closes the connection. Nothing durable
        happens here: if the process dies the question is simply asked again.
        """
        ...
