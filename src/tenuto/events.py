"""The facts: a closed union of frozen structs, past tense, in the order in which a thread meets them.

    thread   ThreadStarted  MessageReceived  AgentChanged  LimitsExtended  CancelRequested
             ThreadCompleted  ThreadFailed  ThreadHalted  ThreadCancelled
    decide   ModelReplied  ModelFailed  HistoryRepaired
    act      CallStarted  CallFinished
    people   InterruptRaised  InterruptResolved
    context  ContextCompacted

An event is encoded once, to JSON, and those exact bytes are what is stored, hashed and read back. Fields
at their default are left out. Times are milliseconds since the epoch (UTC), durations milliseconds.
`Entry` is an event in its place. Nothing here reads a clock, a database or an agent.
"""

import hashlib
from collections.abc import Callable
from typing import Any, Final, Literal, NewType, get_args

import msgspec

from tenuto.errors import Undecodable
from tenuto.messages import Usage

ThreadId = NewType("ThreadId", str)
CallId = NewType("CallId", str)
InterruptId = NewType("InterruptId", str)

Effect = Literal["read", "idempotent", "once"]
InterruptKind = Literal["approval", "question", "review"]
Outcome = Literal[
    "approved",
    "rejected",
    "edited",
    "answered",
    "happened",
    "did_not_happen",
    "dropped",
    "expired",
    "withdrawn",
]
OnMessage = Literal["queue", "withdraw"]
LimitName = Literal["steps", "tokens", "cost", "seconds", "errors"]
SettledBy = Literal["tool", "person", "runtime", "external", "child"]

VERSION: Final = 1


class Limits(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one turn may use; 0 means no limit. `seconds` counts model and tool time, not waiting."""

    steps: int = 0
    tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0


class Policy(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How a thread behaves, copied from its agent so that the fold needs no agent."""

    on_message: OnMessage = "queue"
    consecutive_errors: int = 3
    question_expires_ms: int = 86_400_000


class Origin(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a thread came from: a call of a parent thread, or a fork of another thread at `seq`."""

    parent: ThreadId = ThreadId("")
    call_id: CallId = CallId("")
    forked_from: ThreadId = ThreadId("")
    seq: int = 0


class Call(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One tool call of a reply, as accepted: what the provider said and what would run.

    `raw` is the provider's argument text. `arguments` is the canonical JSON that would run (validated,
    coerced, defaults filled in); None when it is `raw` to the letter. `error` says why the call can not run
    at all. `gated` calls need a person: with `question` to answer it, else to approve it (`prompt` is what
    the tool's policy says to them); `digest` then names the exact call, its tool's schema and its policy.
    `timeout_ms` and `expires_ms` are the tool's own at the time of the reply.
    """

    id: CallId
    name: str
    raw: str | None = None
    provider_id: str = ""
    arguments: str | None = None
    effect: Effect = "read"
    gated: bool = False
    prompt: str = ""
    question: str = ""
    verifiable: bool = False
    digest: str = ""
    error: str = ""
    timeout_ms: int = 0
    expires_ms: int = 0
    origin: Literal["model", "prefetch", "user"] = "model"
    extra: dict[str, Any] | None = None

    @property
    def exact(self) -> str:
        """The canonical arguments, "{}" where none were needed. Meaningless when `error` is set."""
        return self.arguments if self.arguments is not None else (self.raw or "{}")


class Event(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, tag_field="type"):
    """The root of the union; never stored itself. `trace`: its span as a W3C traceparent, with tracing."""

    trace: str = ""


# -- thread ------------------------------------------------------------------------------------------


class ThreadStarted(Event, frozen=True, omit_defaults=True, tag="thread_started"):
    agent: str
    fingerprint: str
    limits: Limits = Limits()
    policy: Policy = Policy()
    metadata: dict[str, Any] = {}
    origin: Origin | None = None
    by: str = ""


class MessageReceived(Event, frozen=True, omit_defaults=True, tag="message_received"):
    text: str
    by: str = "user"
    channel: str = ""


class AgentChanged(Event, frozen=True, omit_defaults=True, tag="agent_changed"):
    """Another version of the agent took over. `calls` re-plans the calls that were open and unstarted."""

    fingerprint: str
    limits: Limits = Limits()
    policy: Policy = Policy()
    calls: tuple[Call, ...] = ()


class LimitsExtended(Event, frozen=True, omit_defaults=True, tag="limits_extended"):
    """A person gave this turn more; on a halted or failed thread also: go on."""

    more: Limits
    by: str = ""


class CancelRequested(Event, frozen=True, omit_defaults=True, tag="cancel_requested"):
    by: str = ""
    reason: str = ""


class ThreadCompleted(Event, frozen=True, omit_defaults=True, tag="thread_completed"):
    answer: str = ""


class ThreadFailed(Event, frozen=True, omit_defaults=True, tag="thread_failed"):
    error: str


class ThreadHalted(Event, frozen=True, omit_defaults=True, tag="thread_halted"):
    limit: LimitName


class ThreadCancelled(Event, frozen=True, omit_defaults=True, tag="thread_cancelled"):
    by: str = ""
    reason: str = ""


# -- decide ------------------------------------------------------------------------------------------


class ModelReplied(Event, frozen=True, omit_defaults=True, tag="model_replied"):
    """`seen_seq`: the last event that was in the request. `prompt`, `tools` and `parameters` are blob
    digests of what was sent beside the history; "" means as in the reply before.
    """

    step: int
    seen_seq: int
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    finish: str = ""
    duration_ms: int = 0
    prompt: str = ""
    tools: str = ""
    parameters: str = ""
    extra: dict[str, Any] | None = None


class ModelFailed(Event, frozen=True, omit_defaults=True, tag="model_failed"):
    step: int
    error: str
    attempts: int = 1


class HistoryRepaired(Event, frozen=True, omit_defaults=True, tag="history_repaired"):
    repairs: tuple[str, ...]


# -- act ---------------------------------------------------------------------------------------------


class CallStarted(Event, frozen=True, omit_defaults=True, tag="call_started"):
    """Committed before any effect other than `read`. `until_ms` marks a call that waits for a time; `why`
    says what was known of the attempt before.
    """

    call_id: CallId
    attempt: int = 1
    key: str = ""
    deadline_ms: int = 0
    until_ms: int = 0
    worker: str = ""
    why: str = ""


class CallFinished(Event, frozen=True, omit_defaults=True, tag="call_finished"):
    """`text` is what the model reads. `unknown`: nobody knows whether the call had its effect."""

    call_id: CallId
    ok: bool = True
    text: str = ""
    duration_ms: int = 0
    by: SettledBy = "tool"
    unknown: bool = False


# -- people ------------------------------------------------------------------------------------------


class InterruptRaised(Event, frozen=True, omit_defaults=True, tag="interrupt_raised"):
    """`name` and `arguments` are the exact call that will run if the answer is yes, `digest` names it."""

    id: InterruptId
    kind: InterruptKind
    call_id: CallId = CallId("")
    name: str = ""
    arguments: str = ""
    prompt: str = ""
    digest: str = ""
    options: tuple[str, ...] = ()
    expires_at_ms: int = 0


class InterruptResolved(Event, frozen=True, omit_defaults=True, tag="interrupt_resolved"):
    """`arguments` (canonical JSON) and `digest` only for edited; `answer` for answered and happened."""

    id: InterruptId
    outcome: Outcome
    by: str = ""
    comment: str = ""
    arguments: str = ""
    digest: str = ""
    answer: str = ""
    channel: str = ""


# -- context -----------------------------------------------------------------------------------------


class ContextCompacted(Event, frozen=True, omit_defaults=True, tag="context_compacted"):
    """A checkpoint as of `upto_seq`: what the model is told instead of all that came before it."""

    summary: str
    upto_seq: int
    reason: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    mode: str = ""


AnyEvent = (
    ThreadStarted
    | MessageReceived
    | AgentChanged
    | LimitsExtended
    | CancelRequested
    | ThreadCompleted
    | ThreadFailed
    | ThreadHalted
    | ThreadCancelled
    | ModelReplied
    | ModelFailed
    | HistoryRepaired
    | CallStarted
    | CallFinished
    | InterruptRaised
    | InterruptResolved
    | ContextCompacted
)

TERMINAL: Final = (ThreadCompleted, ThreadFailed, ThreadHalted, ThreadCancelled)
# What a thread is after its last event.
ENDED_AS: Final[dict[type[Event], str]] = {
    kind: str(kind.__struct_config__.tag).removeprefix("thread_") for kind in TERMINAL
}
EXTERNAL: Final = (MessageReceived, LimitsExtended, CancelRequested, InterruptResolved)
TYPES: Final[dict[str, type[Event]]] = {str(t.__struct_config__.tag): t for t in get_args(AnyEvent)}


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event in its place: `seq` counts from 1 in its thread, `at_ms` is the store's clock."""

    seq: int
    at_ms: int
    event: AnyEvent


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)

# Turns the decoded JSON object of version v into that of v + 1. Old versions decode for ever.
UPCASTERS: Final[dict[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {}


def clean(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD, so that it can be stored and sent."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode(event: Event) -> bytes:
    """The bytes to store: compact JSON, UTF-8, defaults left out.

    Raises ValueError for what JSON or UTF-8 cannot carry (lone surrogates); NaN and infinity do not
    occur in any field.
    """
    return _encoder.encode(event)


def decode(body: bytes, version: int = VERSION) -> AnyEvent:
    """Read stored bytes of any version up to this one. Raises `Undecodable` and writes nothing."""
    try:
        if version == VERSION:
            return _decoder.decode(body)
        if not 1 <= version < VERSION:
            text = f"event of schema version {version}; this is version {VERSION}"
            raise Undecodable(text, newer=version > VERSION)
        raw = msgspec.json.decode(body)
        for step in range(version, VERSION):
            raw = UPCASTERS[step](raw)
        event: AnyEvent = msgspec.convert(raw, AnyEvent)
        return event
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise Undecodable(f"stored event cannot be read: {error}") from error


def body_hash(salt: bytes, body: bytes) -> bytes:
    """SHA-256(salt, body): what stays in the chain when salt and body are erased."""
    return hashlib.sha256(salt + body).digest()


def chain_hash(
    previous: bytes, thread_id: str, seq: int, version: int, type_name: str, at_ms: int, hashed_body: bytes
) -> bytes:
    """The hash of one event: SHA-256 over the previous hash, the event's place and its body hash.

    The fields are joined by newlines between two fixed-width hashes, so no two different tuples meet.
    The first event's `previous` is 32 zero bytes.
    """
    middle = f"\n{thread_id}\n{seq}\n{version}\n{type_name}\n{at_ms}\n".encode()
    return hashlib.sha256(previous + middle + hashed_body).digest()
