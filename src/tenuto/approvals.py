"""What people can say to a call that waits for them, and to a thread that has had enough. Pure.

An approval covers the digest of one exact call: name, canonical arguments, and the tool's schema, effect and
policy. Where any of these changes, an old approval no longer fits.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypedDict

import msgspec

from tenuto.errors import InvalidInput, Undecodable, UnknownAgent
from tenuto.events import InterruptKind, InterruptResolved, Limits, Outcome
from tenuto.rows import InterruptRow
from tenuto.steps import APPROVAL_OPTIONS, QUESTION_OPTIONS, REVIEW_OPTIONS
from tenuto.tools import InvalidArguments, Tool
from tenuto.tools.text import long_text, message_text, short_text
from tenuto.tools.tool import call_digest

# The verbs of each kind are those that an interrupt offers (`steps`), with what each decides.
_VERBS: Final[dict[InterruptKind, dict[str, Outcome]]] = {
    "approval": dict(zip(APPROVAL_OPTIONS, ("approved", "rejected", "edited"), strict=True)),
    "question": dict(zip(QUESTION_OPTIONS, ("answered",), strict=True)),
    "review": dict(zip(REVIEW_OPTIONS, ("happened", "did_not_happen", "dropped"), strict=True)),
}
OPTIONS: Final[dict[InterruptKind, tuple[str, ...]]] = {kind: tuple(verbs) for kind, verbs in _VERBS.items()}


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

    Raises `InvalidInput`; `Undecodable` for one that cannot be read; `UnknownAgent` when an edit needs a tool
    that is not here.
    """
    if unknown := sorted(set(decision) - set(Decision.__annotations__)):
        # A misspelt `digest` would be a check that is not made.
        known = ", ".join(Decision.__annotations__)
        raise TypeError(f"resolve() takes no {', '.join(unknown)}; it takes {known}")
    if row.fault:
        raise Undecodable(f"interrupt {row.id} cannot be decided: {row.fault}")
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
