"""OpenTelemetry spans, by the semantic conventions for generative AI (status: development).

    invoke_agent {agent}       a turn, from where it was taken up to where it rests: a trace of its own
        chat {model}           a question to the model, its retries inside
        execute_tool {tool}    an attempt of a call; what the tool itself records nests below it
        verify {tool}          the tool is asked what became of an attempt that is in doubt

A turn that paused goes on in another trace, often in another process and weeks later. It is linked to the one
that paused, and to whatever brought the message or the decision: the log carries these as `trace` of the
events (`events.Event`), because only the log outlives the process and works with any tracer provider.

Only the API is imported here. Error messages are content as well, so that they are recorded only where
content is; otherwise an error is its class.
"""

import logging
import re
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tenuto.agent import Agent
from tenuto.errors import NotDone
from tenuto.events import (
    ENDED_AS,
    TERMINAL,
    CallStarted,
    CancelRequested,
    Event,
    InterruptRaised,
    InterruptResolved,
    LimitsExtended,
    MessageReceived,
    ModelReplied,
    ThreadCancelled,
    ThreadFailed,
    ThreadHalted,
    ThreadId,
)
from tenuto.messages import AttemptFailed, Model, Reply, Request
from tenuto.observe import content
from tenuto.thread import CallState
from tenuto.tools import result_text

logger = logging.getLogger("tenuto.observe")
SCHEMA: Final = "https://opentelemetry.io/schemas/1.41.0"
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
# By the end of the endpoint's host; whoever else speaks this protocol goes by its name.
_PROVIDERS: Final = {
    "openai.azure.com": "azure.ai.openai",
    "anthropic.com": "anthropic",
    "amazonaws.com": "aws.bedrock",
    "cohere.com": "cohere",
    "cohere.ai": "cohere",
    "deepseek.com": "deepseek",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "moonshot.ai": "moonshot_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
}
_OUTSIDE = (MessageReceived, InterruptResolved, LimitsExtended)
_PAUSING = (CallStarted, InterruptRaised, ThreadFailed, ThreadHalted)


class Traces:
    """`provider` None: the program's own, whenever it sets one. `with_content`: spans hold what was said."""

    def __init__(self, provider: trace.TracerProvider | None, with_content: bool) -> None:
        self.tracer = trace.get_tracer("tenuto", version("tenuto"), provider, SCHEMA)
        self.with_content = with_content

    def begin(self, name: str, **about: Any) -> Span:
        """A new span; one that records nothing where the program's own sampler or processor fails."""
        try:
            return self.tracer.start_span(name, **about)
        except Exception:
            logger.exception("a span could not be begun")
            return trace.INVALID_SPAN

    def turn(self, thread_id: ThreadId, agent: Agent, worker: str) -> "TurnTrace":
        """For one hold on a thread."""
        return TurnTrace(self, thread_id, agent, worker)

    def from_outside(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events of a caller, each with the span that the caller is in."""
        here = traceparent(trace.get_current_span().get_span_context())
        if not here:
            return events
        return [_marked(event, here) if isinstance(event, _OUTSIDE) else event for event in events]

    @contextmanager
    def called_from(self, header: str) -> Iterator[None]:
        """The caller's own span, by its `traceparent`, unless this task is in a span already."""
        caller = parsed(header)
        if caller is None or trace.get_current_span().get_span_context().is_valid:
            yield
            return
        with trace.use_span(trace.NonRecordingSpan(caller)):
            yield

    def attempt_failed(self, failed: AttemptFailed) -> None:
        """An attempt inside the present question to a model failed."""
        attributes: dict[str, Any] = {"tenuto.wait_seconds": failed.wait_seconds}
        if self.with_content:
            attributes["exception.message"] = content.cut(failed.error)
        trace.get_current_span().add_event("attempt_failed", attributes)


class TurnTrace:
    """The trace of the turn that a holder is at. Its root is made when there is something to put below it, so
    that looking into a thread in vain leaves no trace.
    """

    def __init__(self, traces: Traces, thread_id: ThreadId, agent: Agent, worker: str) -> None:
        self._traces = traces
        self._thread_id = thread_id
        self._agent = agent
        self._worker = worker
        self._root: Span | None = None
        self._since_ns = time.time_ns()
        self._paused = ""  # where this turn was at before
        self._callers: list[tuple[int, str]] = []  # seq and trace of what moves this turn on
        given = agent.model
        self._model = {} if given is None or isinstance(given, str) else _about_model(given)
        self._over = False
        self._cancel_seq = 0
        self._tokens = [0, 0]

    @property
    def trace_id(self) -> str:
        """Of the present turn, in hexadecimal; "" while there is none."""
        here = self._root.get_span_context() if self._root is not None else None
        return f"{here.trace_id:032x}" if here is not None and here.is_valid else ""

    # -- the thread's events, each once ----------------------------------------------------------------

    def see(self, seq: int, event: Event) -> None:
        """The next event, read or appended here."""
        if isinstance(event, TERMINAL):
            self._ended(seq, event)
        elif isinstance(event, ModelReplied):
            self._callers = [caller for caller in self._callers if caller[0] > event.seen_seq]
            self._paused = event.trace or self._paused
            if not event.calls:
                # The answer; a message that came in meanwhile begins another turn.
                self.close("completed")
                self._paused = ""
        elif isinstance(event, _OUTSIDE):
            if self._over and isinstance(event, MessageReceived):
                self._paused = ""
            self._over = False
            if event.trace:
                self._callers.append((seq, event.trace))
        elif isinstance(event, CancelRequested):
            self._cancel_seq = seq
        else:
            self._paused = event.trace or self._paused

    def _ended(self, seq: int, event: Event) -> None:
        if self._root is not None and isinstance(event, ThreadFailed):
            words = event.error if self._traces.with_content else None
            self._root.set_attribute("error.type", "thread_failed")
            self._root.set_status(Status(StatusCode.ERROR, content.cut(words) if words else None))
        self.close(ENDED_AS[type(event)])
        self._over = True
        after = self._cancel_seq if isinstance(event, ThreadCancelled) else seq
        self._callers = [caller for caller in self._callers if caller[0] > after]
        # One that failed or halted can be told to go on.
        resumable = isinstance(event, ThreadFailed | ThreadHalted)
        self._paused = (event.trace or self._paused) if resumable else ""

    def stamp(self, events: Sequence[Event]) -> Sequence[Event]:
        """The events of the holder, before they are appended: those that may be the last before a pause say
        in which trace they were written.
        """
        pauses = [isinstance(e, _PAUSING) or (isinstance(e, ModelReplied) and bool(e.calls)) for e in events]
        if not any(pauses):
            return events
        here = traceparent(self._open().get_span_context())
        marked = zip(events, pauses, strict=True)
        return [_marked(e, here) if pause and here else e for e, pause in marked]

    # -- spans -----------------------------------------------------------------------------------------

    async def chat(self, model: Model, request: Request, work: Coroutine[Any, Any, Reply]) -> Reply:
        """A question to the model."""
        self._model = _about_model(model)
        attributes = self._about("chat") | self._model
        if self._traces.with_content:
            attributes |= content.of_request(request)
        with self._span(f"chat {model.name}", attributes, SpanKind.CLIENT) as span:
            reply = await work
            if span.is_recording():
                span.set_attributes(_about_reply(reply))
                if self._traces.with_content:
                    span.set_attributes(content.of_reply(reply))
            self._tokens[0] += reply.usage.input
            self._tokens[1] += reply.usage.output
            return reply

    async def call(self, call: CallState, work: Coroutine[Any, Any, Any]) -> Any:
        """An attempt of a call. An attempt of a `once` call that broke off is in doubt."""
        name, effect = call.call.name, call.call.effect
        attributes = self._about("execute_tool") | {
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "tenuto.call.effect": effect,
            "tenuto.call.attempt": max(1, call.attempt),
        }
        if call.decision is not None:
            attributes["tenuto.call.decision"] = call.decision.outcome
        if self._traces.with_content:
            attributes["gen_ai.tool.call.arguments"] = content.cut(call.arguments)
        with self._span(f"execute_tool {name}", attributes, SpanKind.INTERNAL) as span:
            try:
                value = await work
            except NotDone:
                raise
            except BaseException:
                span.set_attribute("tenuto.call.in_doubt", effect == "once")
                raise
            if self._traces.with_content:
                span.set_attribute("gen_ai.tool.call.result", content.cut(result_text(value)))
            return value

    async def verify(self, call: CallState, work: Coroutine[Any, Any, Any]) -> Any:
        """A tool is asked what became of a call in doubt; the conventions have no word for that."""
        name = call.call.name
        about = {"gen_ai.agent.name": self._agent.name, "gen_ai.conversation.id": self._thread_id}
        about |= {"gen_ai.tool.name": name, "gen_ai.tool.call.id": call.id}
        with self._span(f"verify {name}", about, SpanKind.INTERNAL) as span:
            verdict = await work
            span.set_attribute("tenuto.verdict", type(verdict).__name__)
            return verdict

    def broke(self, error: BaseException) -> None:
        """The holder lost the thread, or could not go on."""
        if self._root is not None:
            self._root.set_attribute("error.type", type(error).__name__)
            self._root.set_status(Status(StatusCode.ERROR))
            self.close("broken_off")

    def close(self, outcome: str) -> None:
        """The turn is over here: the thread was given back in this status, or the hold ended."""
        if self._root is not None:
            self._root.set_attribute("tenuto.outcome", outcome)
            if any(self._tokens):
                self._root.set_attribute("gen_ai.usage.input_tokens", self._tokens[0])
                self._root.set_attribute("gen_ai.usage.output_tokens", self._tokens[1])
            end(self._root)
        self._root, self._tokens = None, [0, 0]
        self._since_ns = time.time_ns()

    # -- inside ----------------------------------------------------------------------------------------

    def _open(self) -> Span:
        if self._root is None:
            links = [("resumes", self._paused), *(("caused_by", caller) for _, caller in self._callers)]
            self._root = self._traces.begin(
                f"invoke_agent {self._agent.name}",
                # Whatever span this task was started in is not what this turn is a part of.
                context=context.Context(),
                kind=SpanKind.INTERNAL,
                attributes=self._about("invoke_agent") | self._model | {"tenuto.worker": self._worker},
                links=[Link(found, {"tenuto.link": why}) for why, text in links if (found := parsed(text))],
                start_time=self._since_ns,
            )
            self._callers.clear()
            # What is not below a span of its own, such as a tool's verify, belongs to the turn. On a task of
            # its own, this need not be undone.
            context.attach(trace.set_span_in_context(self._root))
        return self._root

    @contextmanager
    def _span(self, name: str, attributes: dict[str, Any], kind: SpanKind) -> Iterator[Span]:
        below = trace.set_span_in_context(self._open())
        span = self._traces.begin(name, context=below, kind=kind, attributes=attributes)
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield span
            except BaseException as error:
                span.set_attribute("error.type", str(getattr(error, "status", None) or type(error).__name__))
                words = content.cut(str(error)) if self._traces.with_content else None
                span.set_status(Status(StatusCode.ERROR, words))
                raise
            finally:
                end(span)

    def _about(self, operation: str) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": operation,
            "gen_ai.agent.name": self._agent.name,
            "gen_ai.conversation.id": self._thread_id,
        }


def end(span: Span) -> None:
    """End it, whatever the program's own processor makes of that."""
    try:
        span.end()
    except Exception:
        logger.exception("a span could not be ended")


def _about_model(model: Model) -> dict[str, Any]:
    about: dict[str, Any] = {"gen_ai.request.model": model.name, "gen_ai.provider.name": "openai"}
    place = getattr(model, "place", "")
    if isinstance(place, str) and place:
        parts = urlsplit(place)
        host = parts.hostname or ""
        for end, provider in _PROVIDERS.items():
            if host == end or host.endswith(f".{end}"):
                about["gen_ai.provider.name"] = provider
        about["server.address"] = host
        about["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    return about


def _about_reply(reply: Reply) -> dict[str, Any]:
    usage = reply.usage
    about: dict[str, Any] = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
        "gen_ai.response.model": reply.model,
    }
    about = {name: value for name, value in about.items() if value}
    if reply.finish:
        about["gen_ai.response.finish_reasons"] = [reply.finish]
    return about


def _marked(event: Event, here: str) -> Event:
    return msgspec.structs.replace(event, trace=here)


def traceparent(here: SpanContext) -> str:
    """A span context as W3C Trace Context writes it; "" for one that is none."""
    return f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}" if here.is_valid else ""


def parsed(text: str) -> SpanContext | None:
    """The span context of a traceparent; None for what is none."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    here = SpanContext(int(found[1], 16), int(found[2], 16), True, TraceFlags(int(found[3], 16)))
    return here if here.is_valid else None
