"""The `@tool` decorator: what is wrong with a declaration is said at once."""

import inspect
import math
import sys
from collections.abc import Callable
from typing import Any, NoReturn, get_args, overload

from tenuto.errors import ConfigurationError
from tenuto.events import Effect
from tenuto.limits import EXPIRES_AFTER_SECONDS, TOOL_TIMEOUT_SECONDS
from tenuto.tools.signature import definition_of, shape_of
from tenuto.tools.tool import Approval, Tool


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
