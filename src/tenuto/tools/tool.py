"""A tool, and what becomes of the calls of it that a model wants.

Every tool says what happens when its call is cut off and nobody knows whether it ran:

    read        it changes nothing: it is simply run again
    idempotent  it is run again with the same idempotency key, and the other side ignores the repetition
    once        it must not happen twice: `verify` is asked what became of it, else a person is

There is no default, because guessing wrong refunds somebody twice.
"""

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tenuto.errors import ConfigurationError, NotDone
from tenuto.events import Call, CallId, Effect, clean
from tenuto.limits import MAX_COMMENT_CHARACTERS, MAX_NAME_CHARACTERS
from tenuto.messages import CallRequest, ToolSchema
from tenuto.tools.running import ToolContext, in_thread
from tenuto.tools.signature import Shape, Signature, definition_of
from tenuto.tools.text import InvalidArguments, error_text, parse

Approval = bool | Callable[..., bool | str]
_SHOWN_TOOLS: Final = 50


@dataclass(frozen=True)
class Happened:
    """`verify` found that the call had its effect; `result` is what the model reads of it."""

    result: object = None


@dataclass(frozen=True)
class DidNotHappen:
    """`verify` knows that the call had no effect: it may run again."""


@dataclass(frozen=True)
class Unknown:
    """`verify` cannot tell: a person is asked."""

    reason: str = ""


Verdict = Happened | DidNotHappen | Unknown


@dataclass(frozen=True)
class Until:
    """Returned by a `read` tool: keep the call open until this time (ms since the epoch, UTC)."""

    at_ms: int


@dataclass(frozen=True, eq=False, repr=False)
class Tool:
    """A function with a declared effect. Calling it calls the function. Made by `@tool`.

    Schema and validator are built at first use; `check` builds them at once.
    """

    name: str
    effect: Effect
    function: Callable[..., Any]
    shape: Shape
    approval: Approval
    timeout_ms: int
    expires_ms: int
    description: str | None
    version: str
    verifier: Callable[..., Any] | None
    asks: bool = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.name}: {self.effect}>"

    @property
    def verifiable(self) -> bool:
        return self.verifier is not None

    @functools.cached_property
    def schema(self) -> ToolSchema:
        """What a model is told of the tool. Raises `ConfigurationError` at first use."""
        signature = self._signature
        return ToolSchema(self.name, signature.description, signature.parameters)

    @functools.cached_property
    def digest(self) -> str:
        """Names what an approval covers beside the arguments: schema, effect, policy and `version`.

        A policy function counts by its name: raise `version` when what it means has changed.
        """
        policy = self.approval if isinstance(self.approval, bool) else _name_of(self.approval)
        facts = (self.schema, self.effect, policy, self.version)
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:32]

    @functools.cached_property
    def _signature(self) -> Signature:
        return Signature(self.shape, self.description)

    @functools.cached_property
    def _policy_names(self) -> tuple[str, ...] | None:
        """The arguments that the policy looks at; None for all."""
        if isinstance(self.approval, bool):
            return ()
        parameters = inspect.signature(self.approval).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return None
        return tuple(parameter.name for parameter in parameters)

    def check(self) -> None:
        """Build all that is built lazily. Raises `ConfigurationError` for what cannot work."""
        assert self.digest
        if taken := set(self._signature.context_names).intersection(self._policy_names or ()):
            raise ConfigurationError(
                f"tool {self.name}: approval cannot take {min(taken)!r}: it decides by arguments"
            )

    def validate(self, raw: str | None) -> str:
        """The canonical JSON of the validated, coerced, default-filled arguments; valid again, and the same.

        Raises `InvalidArguments`, worded for the model.
        """
        return self._signature.canonical(raw)

    def gate(self, arguments: str) -> str | None:
        """None if the call runs without a person, else what to tell them ("" when there is nothing to say).

        A policy that raises, or returns neither bool nor str, gates the call.
        """
        if isinstance(self.approval, bool):
            return "" if self.approval else None
        try:
            keywords = self._signature.keywords(arguments)
            if (names := self._policy_names) is not None:
                keywords = {name: keywords[name] for name in names if name in keywords}
            verdict: object = self.approval(**keywords)
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - then a person looks
            return f"The approval policy failed: {error_text(error)}"
        if verdict is False:
            return None
        if verdict is True:
            return ""
        if isinstance(verdict, str):
            return clean(verdict[:MAX_COMMENT_CHARACTERS])
        return f"The approval policy returned {type(verdict).__name__}, which is neither bool nor str."

    def ask(self, arguments: str) -> str | None:
        """The question for a person that this call is; None for a tool that runs."""
        if not self.asks:
            return None
        question = str(parse(arguments).get("question", ""))
        return question if question.strip() else "The agent asks for your input."

    async def run(self, arguments: str, context: ToolContext) -> object:
        """Call the function with exactly these canonical arguments. Raises what it raises.

        Raises `NotDone` when it was not even called. A synchronous function runs in a thread,
        which cancelling does not stop: it goes on, and keeps its place, until it returns.
        """
        signature = self._signature
        try:
            keywords = signature.keywords(arguments)
        except InvalidArguments as error:
            raise NotDone(str(error)) from error
        for name in signature.context_names:
            keywords[name] = context
        if self.shape.is_async:
            return await self.function(**keywords)
        # A little less than the deadline, so that a call that never began says so and is not in doubt.
        left = (context.deadline_ms - context.now_ms) / 1000 * 0.95 if context.deadline_ms else None
        return await _settled(await in_thread(functools.partial(self.function, **keywords), left))

    async def verify(self, arguments: str, key: str) -> Verdict:
        """Ask what became of a started call. What goes wrong is `Unknown`; bounded by the tool's timeout."""
        if self.verifier is None:
            return Unknown("the tool has no verify")
        try:
            work = functools.partial(self.verifier, parse(arguments), key)
            async with asyncio.timeout(self.timeout_ms / 1000):
                is_async = inspect.iscoroutinefunction(definition_of(self.verifier))
                verdict: object = await (_settled(work()) if is_async else in_thread(work, None))
                verdict = await _settled(verdict)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            return Unknown(error_text(error))
        if isinstance(verdict, Happened | DidNotHappen | Unknown):
            return verdict
        return Unknown(
            f"verify returned {type(verdict).__name__}, not Happened(…), DidNotHappen() or Unknown()"
        )


async def _settled(value: Any) -> Any:
    """What an awaitable gives, for functions that are async without looking so."""
    return await value if inspect.isawaitable(value) else value


def _name_of(function: Callable[..., Any]) -> str:
    definition: Any = definition_of(function)
    name = getattr(definition, "__qualname__", type(function).__name__)
    return f"{getattr(definition, '__module__', '')}.{name}"


def call_digest(name: str, arguments: str, tool_digest: str) -> str:
    """Names one exact call: the same only for the same tool, policy and canonical arguments."""
    return hashlib.sha256(msgspec.json.encode((name, arguments, tool_digest))).hexdigest()[:32]


def plan(tools: Mapping[str, Tool], request: CallRequest, call_id: CallId, *, cut: bool) -> Call:
    """The call as accepted: with the exact arguments that would run, or with the error that the model reads.

    Never raises for what a model says. `cut`: the reply ended at its length limit inside this call, so that
    even arguments that look whole may not be.
    """
    raw = None if request.arguments is None else clean(request.arguments)
    call = Call(
        call_id,
        clean(request.name)[:MAX_NAME_CHARACTERS],
        raw=raw,
        provider_id=clean(request.provider_id),
        extra=request.extra,
    )
    tool = tools.get(request.name)
    if tool is None:
        return msgspec.structs.replace(call, error=_no_such_tool(tools, call.name))
    if cut:
        error = (
            "the reply was cut off at its length limit inside this call; it was not run. Call again, briefly."
        )
        return msgspec.structs.replace(call, error=error)
    try:
        arguments = tool.validate(request.arguments)
    except InvalidArguments as refusal:
        return msgspec.structs.replace(call, error=str(refusal))
    question = tool.ask(arguments)
    prompt = tool.gate(arguments) if question is None else None
    gated = question is not None or prompt is not None
    return msgspec.structs.replace(
        call,
        arguments=None if arguments == (raw or "{}") else arguments,
        effect=tool.effect,
        gated=gated,
        prompt=prompt or "",
        question=question or "",
        verifiable=tool.verifiable,
        digest=call_digest(call.name, arguments, tool.digest) if gated else "",
        timeout_ms=tool.timeout_ms,
        expires_ms=tool.expires_ms,
    )


def replan(tools: Mapping[str, Tool], call: Call) -> Call:
    """The same call under a changed agent; a call that was refused stays refused."""
    if call.error:
        return call
    request = CallRequest(call.name, call.raw, call.provider_id, call.extra)
    return msgspec.structs.replace(plan(tools, request, call.id, cut=False), origin=call.origin)


def _no_such_tool(tools: Mapping[str, Tool], name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, tools, n=3)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    listed = ", ".join(list(tools)[:_SHOWN_TOOLS]) or "none"
    more = f" and {len(tools) - _SHOWN_TOOLS} more" if len(tools) > _SHOWN_TOOLS else ""
    return f"there is no tool {name!r}.{meant} The tools are: {listed}{more}."
