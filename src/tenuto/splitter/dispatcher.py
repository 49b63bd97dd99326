"""The asynchronous layer over the core, for streams in the OpenAI format."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any

from tenuto.splitter.core import CallFinished, Piece, Splitter, UserText

_pumps: set[asyncio.Task[None]] = set()  # the event loop holds its tasks only weakly


class _Channel:
    """What one kind of reader gets: kept from the start, so that no reader waits for another."""

    def __init__(self) -> None:
        self._items: list[str] = []
        self._ended = False
        self._error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []

    def put(self, item: str) -> None:
        self._items.append(item)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    async def read(self) -> AsyncGenerator[str, None]:
        position = 0
        while True:
            while position < len(self._items):
                position += 1
                yield self._items[position - 1]
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting


# Chunks are objects of the SDK, or dicts of the same form. `dict.get` and `getattr` take a field out alike.


def _text_of(content: Any) -> str:
    """Content is a string; a few providers send a list of parts, of which the texts are taken."""
    if isinstance(content, list):
        return "".join(_text_of(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _feed_call(splitter: Splitter, call: Any, function: Any) -> list[Piece]:
    get: Any = dict.get if isinstance(call, dict) else getattr
    index, call_id = get(call, "index", None), get(call, "id", None)
    get = dict.get if isinstance(function, dict) else getattr
    name, arguments = get(function, "name", None), get(function, "arguments", None)
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return splitter.feed_call(index if isinstance(index, int) else None, call_id, name, arguments)


def _feed_chunk(splitter: Splitter, chunk: Any) -> list[Piece]:
    """Everything a chunk says, in order: content, calls, then its finish reason."""
    pieces: list[Piece] = []
    get: Any = dict.get if isinstance(chunk, dict) else getattr
    for choice in get(chunk, "choices", None) or ():
        get = dict.get if isinstance(choice, dict) else getattr
        if get(choice, "index", None):
            continue  # a second answer to the same question
        delta, finish_reason = get(choice, "delta", None), get(choice, "finish_reason", None)
        get = dict.get if isinstance(delta, dict) else getattr
        content, calls = get(delta, "content", None), get(delta, "tool_calls", None)
        if content:
            pieces += splitter.feed_text(_text_of(content))
        for call in calls or ():
            get_function: Any = dict.get if isinstance(call, dict) else getattr
            pieces += _feed_call(splitter, call, get_function(call, "function", None))
        if not calls and (function := get(delta, "function_call", None)):  # as it was before tool calls
            pieces += _feed_call(splitter, None, function)
        if finish_reason:
            pieces += splitter.settle()
    return pieces


def _call_as_json(call: CallFinished) -> str:
    arguments = call.arguments
    problem = call.problem
    if problem is not None:
        if arguments.strip():
            arguments = json.dumps(arguments)
        else:
            arguments, problem = "{}", None  # a call of a tool without parameters
    text = (
        f'{{"tool_call_index": {call.call}, "tool_call_id": {json.dumps(call.id)}, '
        f'"name": {json.dumps(call.name)}, "arguments": {arguments}'
    )
    return text + ("}" if problem is None else f', "error": {json.dumps(problem)}}}')


async def async_dispatcher_tools_call_for_openai(
    source: AsyncIterable[Any],
    logger: logging.Logger | None = None,
    to_user_flag: str | None = "to_user",
) -> Callable[[str], AsyncGenerator[str, None]]:
    """Start to read a streamed reply and return a factory of generators over what it says.

    `source` yields chunks of the OpenAI SDK or the same as dicts. The factory takes `"to_user"` (text for
    the user, as it arrives) or `"tool_call"`, also called `"function_call"` (one JSON object a call:
    `tool_call_index`, `tool_call_id`, `name`, `arguments`). A call whose arguments are not valid JSON has
    them as one string, and an `error` beside. Any other name is a ValueError.

    Reading does not wait for the consumers: each generator sees everything from the start, and one that
    is abandoned blocks nobody. An error of the source is raised in every generator, after what came
    before it. A call is yielded when the next one starts, at a finish reason, or at the end, since only
    then is it known that its arguments are whole. `to_user_flag` names the argument with the text;
    None takes nothing out.
    """
    if not hasattr(source, "__aiter__"):
        raise TypeError(
            f"the source must be an asynchronous iterable, not {type(source).__name__}; "
            "LLMAsyncAdapter makes one of a blocking iterable"
        )
    log = logger or logging.getLogger("tenuto.splitter")
    to_user = _Channel()
    tool_call = _Channel()
    channels = {"to_user": to_user, "tool_call": tool_call, "function_call": tool_call}

    def deliver(pieces: list[Piece]) -> None:
        for piece in pieces:
            if isinstance(piece, UserText):
                to_user.put(piece.text)
            else:
                tool_call.put(_call_as_json(piece))

    async def pump() -> None:
        splitter = Splitter(to_user_flag)
        error: BaseException | None = None
        try:
            async for chunk in source:
                deliver(_feed_chunk(splitter, chunk))
        except asyncio.CancelledError:
            error = ConnectionAbortedError("the reader of the reply was cancelled")
            raise
        except BaseException as failure:
            log.warning("The source of a streamed reply failed: %r", failure)
            error = failure
            if isinstance(failure, KeyboardInterrupt | SystemExit):
                raise
        finally:
            deliver(splitter.close())
            to_user.end(error)
            tool_call.end(error)

    def make_generator(role_name: str) -> AsyncGenerator[str, None]:
        try:
            return channels[role_name].read()
        except KeyError:
            raise ValueError(f"no generator {role_name!r}: there are {', '.join(channels)}") from None

    task = asyncio.create_task(pump())
    _pumps.add(task)
    task.add_done_callback(_pumps.discard)
    return make_generator
