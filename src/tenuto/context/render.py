"""From state to messages, incrementally; and the linter for lists that somebody else made."""

from collections.abc import Callable

import msgspec

from tenuto.messages import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from tenuto.thread import CallState, Item, Replied, ThreadState

Instructions = str | Callable[[ThreadState], str]
LOST = "Error: no result was recorded for this call."


class Rendering:
    """The history as messages, kept while one worker holds the thread.

    Only the tail is made anew: items of the history never change once every call of theirs is settled, and
    the model is asked only then. A compaction starts the list again.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._head: list[Message] = []
        self._length = 0
        self._done = 0
        self._first: Item | None = None

    def update(self, state: ThreadState, instructions: str) -> list[Message]:
        """The messages to send for `state`; the list is valid until the next update.

        Call and result pairs are whole by construction: each reply is followed by one result per call,
        in the reply's order, and queued messages come after them.
        """
        history = state.history
        head: list[Message] = [SystemMessage(instructions)] if instructions else []
        compacted = bool(self._done) and history[0] is not self._first
        if compacted or head != self._head:
            self._messages, self._head, self._length, self._done = list(head), head, len(head), 0
        del self._messages[self._length :]
        for item in history[self._done :]:
            self._messages += messages_of(item)
        self._done, self._first = len(history), history[0] if history else None
        self._length = len(self._messages)
        self._messages += [UserMessage(said.text) for said in state.queued]
        return self._messages


def instructed(instructions: Instructions, state: ThreadState) -> str:
    """The system prompt for this state."""
    return instructions if isinstance(instructions, str) else instructions(state)


def messages_of(item: Item) -> list[Message]:
    """What the model reads for one item of the history."""
    if not isinstance(item, Replied):
        return [UserMessage(item.text)]
    event = item.event
    if not item.calls:
        return [AssistantMessage(event.text, (), event.reasoning, event.extra)]
    calls = tuple(ToolCall(c.id, c.call.name, _said(c), c.call.extra) for c in item.calls)
    results = [ToolMessage(c.id, _result(c)) for c in item.calls]
    return [AssistantMessage(event.text, calls, event.reasoning, event.extra), *results]


def _said(call: CallState) -> str:
    """The arguments as the model is shown them: its own words where they are an object, else what ran."""
    # Arguments that are no JSON object are refused by several providers even in the history; the
    # error result beside them says what was wrong with what the model wrote.
    raw = call.call.raw or "{}"
    if not call.call.error:
        return raw if raw.lstrip().startswith("{") else call.call.exact
    try:
        return raw if isinstance(msgspec.json.decode(raw), dict) else "{}"
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return "{}"


def _result(call: CallState) -> str:
    if call.result is None:
        return LOST
    if call.arguments != call.call.exact:
        return f"(A person changed the arguments to {call.arguments})\n{call.result.text}"
    return call.result.text


def lint(messages: list[Message]) -> tuple[list[Message], tuple[str, ...]]:
    """Make a list well formed: each call followed by exactly one result, no result without its call.

    Returns the list and a line per repair; no repairs means the list came back as it was.
    """
    repaired: list[Message] = []
    repairs: list[str] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        if isinstance(message, ToolMessage):
            repairs.append(f"dropped a result for {message.call_id}, which no call before it asked for")
            continue
        repaired.append(message)
        if not isinstance(message, AssistantMessage) or not message.calls:
            continue
        results: dict[str, ToolMessage] = {}
        wanted = [call.id for call in message.calls]
        # Results count as this message's until the next assistant message, whatever stands between.
        between: list[Message] = []
        while position < len(messages) and not isinstance(messages[position], AssistantMessage):
            following = messages[position]
            position += 1
            if not isinstance(following, ToolMessage):
                between.append(following)
            elif following.call_id in wanted and following.call_id not in results:
                results[following.call_id] = following
                if between:
                    repairs.append(f"moved the result of {following.call_id} up to its call")
            else:
                repairs.append(f"dropped a second or foreign result for {following.call_id}")
        if list(results) != [call_id for call_id in wanted if call_id in results]:
            repairs.append("put results into the order of their calls")
        for call in message.calls:
            if call.id not in results:
                repairs.append(f"added a result for {call.id}, which had none")
            repaired.append(results.get(call.id, ToolMessage(call.id, LOST)))
        repaired += between
    return repaired, tuple(repairs)
