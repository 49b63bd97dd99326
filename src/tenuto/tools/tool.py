"""The `@tool` decorator and what it makes.

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
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, get_args, overload

import msgspec

from tenuto.errors import ConfigurationError, NotDone
from tenuto.events import Effect
from tenuto.limits import EXPIRES_AFTER_SECONDS, MAX_COMMENT_CHARACTERS, TOOL_TIMEOUT_SECONDS
from tenuto.messages import ToolSchema
from tenuto.tools.running import ToolContext, in_thread
from tenuto.tools.signature import Shape, Signature, definition_of, shape_of
from tenuto.tools.text import InvalidArguments, clean, error_text, parse

Approval = bool | Callable[..., bool | str]


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
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a policy, a person looks
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
        except Exception as error:  # noqa: BLE001 - an unknown outcome stays unknown
            return Unknown(error_text(error))
        if isinstance(verdict, Happened | DidNotHappen | Unknown):
            return verdict
        return Unknown(
            f"verify returned {type(verdict).__name__}, not Happened(…), DidNotHappen() or Unknown()"
        )


@overload
def tool(
    *,
    effect: Effect,
    approval: Approval = ...,
    timeout: float = ...,
    expires_after: float = ...,
    name: str | None = ...,
    description: str | None = ...,
    version: str = ...,
    verify: Callable[..., Any] | None = ...,
) -> Callable[[Callable[..., Any]], Tool]: ...


@overload
def tool(function: Callable[..., Any], /) -> NoReturn: ...


def tool(
    function: object = None,
    /,
    *,
    effect: str = "",
    approval: Approval = False,
    timeout: float = TOOL_TIMEOUT_SECONDS,
    expires_after: float = EXPIRES_AFTER_SECONDS,
    name: str | None = None,
    description: str | None = None,
    version: str = "",
    verify: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async; its docstring is what the model reads of it.

    `effect` has to be said: "read" (changes nothing; is simply run again), "idempotent" (is run again with
    the same idempotency key) or "once" (never silently runs again: after a crash, a timeout or an error that
    is not `NotDone`, its outcome is unknown until `verify` or a person says).

    `approval`: True, or a function of some of the tool's arguments by name that says whether a person has to
    approve the call (a string is what they are told). It is called on the event loop, and must be pure and
    quick. `timeout` and `expires_after` (of the approval) are seconds. `version` is part of what an approval
    covers. `verify(arguments, idempotency_key)`, for `once` alone, says what became of a call:
    `Happened(result)`, `DidNotHappen()` or `Unknown()`.

    Raises `ConfigurationError` for what can be seen now; annotations are resolved at first use.
    """
    if function is not None or effect not in get_args(Effect):
        said = f"effect={effect!r} is not known; " if effect else ""
        raise ConfigurationError(
            f'{said}declare what a call does: @tool(effect="read") changes nothing and may simply run again; '
            '"idempotent" may run again with the same idempotency key; "once" must never run twice'
        )

    def decorate(function: Callable[..., Any]) -> Tool:
        if isinstance(function, Tool) or not callable(function):
            raise ConfigurationError(f"{function!r} is not a function that could become a tool")
        made = Tool(
            name="",
            effect=effect,  # type: ignore[arg-type]  # checked above
            function=function,
            shape=(shape := shape_of(function, name, sys._getframe(1))),
            approval=approval,
            timeout_ms=_milliseconds("timeout", timeout),
            expires_ms=_milliseconds("expires_after", expires_after),
            description=description,
            version=version,
            verifier=verify,
        )
        object.__setattr__(made, "name", shape.name)
        _check_verify(made)
        _check_approval(made)
        return made

    return decorate


def _milliseconds(name: str, seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds < math.inf:
        raise ConfigurationError(f"{name}={seconds!r}: give a positive number of seconds")
    return round(seconds * 1000)


def _name_of(function: Callable[..., Any]) -> str:
    definition: Any = definition_of(function)
    name = getattr(definition, "__qualname__", type(function).__name__)
    return f"{getattr(definition, '__module__', '')}.{name}"


def _check_verify(made: Tool) -> None:
    if made.verifier is None:
        return
    if made.effect != "once":
        raise ConfigurationError(
            f"tool {made.name}: verify is for effect='once'; {made.effect!r} is run again"
        )
    try:
        inspect.signature(made.verifier).bind({}, "")
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"tool {made.name}: verify is called as verify(arguments, idempotency_key)"
        ) from error


def _check_approval(made: Tool) -> None:
    policy: Any = made.approval
    if isinstance(policy, bool):
        return
    if not callable(policy) or inspect.iscoroutinefunction(definition_of(policy)):
        raise ConfigurationError(
            f"tool {made.name}: approval is True, False or an ordinary function, not {policy!r}"
        )
    try:
        parameters = inspect.signature(policy).parameters.values()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"tool {made.name}: approval has no signature that can be read") from error
    for parameter in parameters:
        by_name = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        fits = parameter.kind is parameter.VAR_KEYWORD or (
            by_name and (parameter.name in made.shape.parameters or parameter.default is not parameter.empty)
        )
        if not fits:
            raise ConfigurationError(
                f"tool {made.name}: approval takes {parameter}, which is no argument of the tool; "
                f"it can take {', '.join(made.shape.parameters) or 'none'} by name"
            )


async def _settled(value: Any) -> Any:
    """What an awaitable gives, for functions that are async without looking so."""
    return await value if inspect.isawaitable(value) else value
