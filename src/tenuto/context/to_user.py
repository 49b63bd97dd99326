"""Text for the user out of the arguments of calls, for agents that opt in: it streams while they arrive.

Their tools take one more argument, `to_user`. What a model writes there reaches followers as it arrives,
becomes part of the reply's text, and is no argument of the call that runs.
"""

from collections.abc import Callable

import msgspec

from tenuto.errors import ConfigurationError
from tenuto.messages import AttemptFailed, CallDelta, Delta, Reply, TextDelta, ToolSchema
from tenuto.splitter import CallFinished, Piece, Splitter, UserText

TO_USER = "to_user"


def with_to_user(schema: ToolSchema) -> ToolSchema:
    """The tool as a model is told of it that may talk while it calls; first, to be written first."""
    properties = schema.parameters.get("properties", {})
    if TO_USER in properties:
        raise ConfigurationError(
            f"tool {schema.name} has an argument {TO_USER!r} of its own; the agent adds one"
        )
    about = {"type": "string", "description": "What to tell the user now, while this runs. Optional."}
    parameters = {**schema.parameters, "properties": {TO_USER: about, **properties}}
    return ToolSchema(schema.name, schema.description, parameters)


class Speaker:
    """Stands before a follower's `emit` during one reply."""

    def __init__(self, emit: Callable[[Delta], None]) -> None:
        self._emit = emit
        self._splitter = Splitter(TO_USER)

    def __call__(self, delta: Delta) -> None:
        match delta:
            case TextDelta(text):
                self._say(self._splitter.feed_text(text))
            case CallDelta(index, name, arguments):
                self._say(self._splitter.feed_call(index, f"{index}", name, arguments))
            case AttemptFailed():
                self._splitter = Splitter(TO_USER)
                self._emit(delta)
            case _:
                self._emit(delta)

    def _say(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, UserText):
                self._emit(TextDelta(piece.text))


def spoken(reply: Reply) -> Reply:
    """The whole reply with what its calls say to the user moved into its text.

    Arguments that are no JSON object stay as they are, to be refused where all arguments are checked.
    """
    splitter = Splitter(TO_USER)
    pieces = splitter.feed_text(reply.text)
    for index, call in enumerate(reply.calls):
        pieces += splitter.feed_call(index, f"{index}", call.name, call.arguments)
    pieces += splitter.close()
    text = "".join(piece.text for piece in pieces if isinstance(piece, UserText))
    finished = {piece.call: piece for piece in pieces if isinstance(piece, CallFinished)}
    calls = tuple(
        msgspec.structs.replace(call, arguments=whole.arguments)
        if (whole := finished.get(index)) is not None and not whole.problem
        else call
        for index, call in enumerate(reply.calls)
    )
    return msgspec.structs.replace(reply, text=text, calls=calls)
