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


def _field(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)


def _text_of(content: Any) -> str:
    """Content is a string; a few providers send a list of parts, of which the texts are taken."""
    if isinstance(content, list):
        return "".join(_text_of(_field(part, "text")) for part in content)
    return content if isinstance(content, str) else ""


def _feed_call(splitter: Splitter, call: Any, function: Any) -> list[Piece]:
    if isinstance(call, dict):
        index, call_id = call.get("index"), call.get("id")
    else:
        index, call_id = getattr(call, "index", None), getattr(call, "id", None)
    if isinstance(function, dict):
        name, arguments = function.get("name"), function.get("arguments")
    else:
        name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return splitter.feed_call(index if isinstance(index, int) else None, call_id, name, arguments)


def _feed_chunk(splitter: Splitter, chunk: Any) -> list[Piece]:
    """Everything a chunk says, in order: content, calls, then its finish reason."""
    pieces: list[Piece] = []
    for choice in _field(chunk, "choices") or ():
        if _field(choice, "index"):
            continue  # a second answer to the same question
        delta = _field(choice, "delta")
        if isinstance(delta, dict):
            content, calls, legacy = delta.get("content"), delta.get("tool_calls"), delta.get("function_call")
        else:
            content = getattr(delta, "content", None)
            calls = getattr(delta, "tool_calls", None)
            legacy = getattr(delta, "function_call", None)
        if content:
            pieces.extend(splitter.feed_text(_text_of(content)))
        for call in calls or ():
            pieces.extend(_feed_call(splitter, call, _field(call, "function")))
        if legacy:
            pieces.extend(_feed_call(splitter, None, legacy))
        if _field(choice, "finish_reason"):
            pieces.extend(splitter.settle())
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
            elif isinstance(piece, CallFinished):
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
        except Exception as failure:  # noqa: BLE001 - it is raised at the consumers
            log.warning("The source of a streamed reply failed: %r", failure)
            error = failure
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
