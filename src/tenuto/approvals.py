"""What a call of a reply becomes, who must agree to it, and what they can say. Pure.

An approval covers the digest of one exact call: name, canonical arguments, and the tool's schema, effect and
policy. Where any of these changes, an old approval no longer fits.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypedDict

import msgspec

from tenuto.errors import InvalidInput, UnknownAgent
from tenuto.events import Call, CallId, InterruptKind, InterruptResolved, Limits, Outcome
from tenuto.limits import MAX_NAME_CHARACTERS
from tenuto.messages import CallRequest
from tenuto.rows import InterruptRow
from tenuto.steps import APPROVAL_OPTIONS, QUESTION_OPTIONS, REVIEW_OPTIONS
from tenuto.tools import InvalidArguments, Tool, clean
from tenuto.tools.text import long_text, message_text, short_text

# The verbs of each kind are those that an interrupt offers (`steps`), with what each decides.
_VERBS: Final[dict[InterruptKind, dict[str, Outcome]]] = {
    "approval": dict(zip(APPROVAL_OPTIONS, ("approved", "rejected", "edited"), strict=True)),
    "question": dict(zip(QUESTION_OPTIONS, ("answered",), strict=True)),
    "review": dict(zip(REVIEW_OPTIONS, ("happened", "did_not_happen", "dropped"), strict=True)),
}
OPTIONS: Final[dict[InterruptKind, tuple[str, ...]]] = {kind: tuple(verbs) for kind, verbs in _VERBS.items()}

_SHOWN_TOOLS = 50


def outcome_of(kind: InterruptKind, verb: str) -> Outcome:
    """What a person's word decides. Raises `InvalidInput` that names the words there are."""
    try:
        return _VERBS[kind][verb]
    except (KeyError, TypeError):
        right = ", ".join(OPTIONS[kind])
        raise InvalidInput(
            f"{str(verb)[:60]!r} does not decide an interrupt of kind {kind}; use: {right}"
        ) from None


class Decision(TypedDict, total=False):
    """What can go with a decision. `arguments`: the edited ones. `answer`: the answer to a question, or the
    result of a call that happened. `digest`: what the person saw; another one is refused. `append_id`: with
    the same again the same decision is made once, and is no conflict with itself.
    """

    comment: str
    arguments: Mapping[str, Any] | str | None
    answer: str
    digest: str | None
    channel: str
    append_id: str


class More(TypedDict, total=False):
    """What an extension can give."""

    steps: int
    tokens: int
    cost: float
    seconds: float


class _Given(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An extension, checked: what is stored must be read again."""

    steps: Annotated[int, msgspec.Meta(ge=0, le=10**12)] = 0
    tokens: Annotated[int, msgspec.Meta(ge=0, le=10**12)] = 0
    cost: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    seconds: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0


def limits_given(more: More) -> Limits:
    """What a person gives a turn more. Raises `InvalidInput`."""
    try:
        given = msgspec.convert(more, _Given)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"more steps, tokens, cost or seconds, please: {error}") from error
    return Limits(given.steps, given.tokens, given.cost, given.seconds)


def decide(
    row: InterruptRow, verb: str, by: str, decision: Decision, tools: Mapping[str, Tool]
) -> InterruptResolved:
    """The event that records what a person decided about a pending interrupt; `tools` are its agent's.

    Raises `InvalidInput`, and `UnknownAgent` when an edit needs a tool that is not here.
    """
    if unknown := sorted(set(decision) - set(Decision.__annotations__)):
        # A misspelt `digest` would be a check that is not made.
        known = ", ".join(Decision.__annotations__)
        raise TypeError(f"resolve() takes no {', '.join(unknown)}; it takes {known}")
    outcome = outcome_of(row.kind, verb)
    arguments, digest = "", ""
    if outcome == "edited":
        arguments, digest = _edited(row, decision.get("arguments"), tools)
    elif decision.get("arguments") is not None:
        raise InvalidInput(f"arguments go with 'edit', not with {verb!r}")
    answer = decision.get("answer", "")
    if answer and outcome not in ("answered", "happened"):
        raise InvalidInput(f"an answer goes with 'answer' and 'happened', not with {verb!r}; use a comment")
    if outcome == "answered":
        message_text("answer", answer)
    return InterruptResolved(
        row.id,
        outcome,
        by=message_text("by", short_text("by", by)),
        comment=long_text("comment", decision.get("comment", "")),
        arguments=arguments,
        digest=digest,
        answer=long_text("answer", answer),
        channel=short_text("channel", decision.get("channel", "")),
    )


def _edited(
    row: InterruptRow, arguments: Mapping[str, Any] | str | None, tools: Mapping[str, Tool]
) -> tuple[str, str]:
    if arguments is None:
        raise InvalidInput("'edit' needs the new arguments")
    tool = tools.get(row.name)
    if tool is None:
        raise UnknownAgent(f"editing {row.name} needs agent {row.agent!r} here, with that tool")
    try:
        raw = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        exact = tool.validate(raw)
    except (InvalidArguments, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput(str(error)) from error
    return exact, call_digest(row.name, exact, tool.digest)


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
