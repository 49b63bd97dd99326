"""A model that says what a script says: the public fake for tests, demonstrations and benchmarks.

It is in the process, answers at once, and costs microseconds, so that what is measured is the runtime.
For the wire between an endpoint and `OpenAIModel` there is `tenuto.testing.ScriptedProvider`.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from tenuto.errors import ModelError
from tenuto.messages import CallRequest, Delta, ReasoningDelta, Reply, Request, TextDelta

Answer = Reply | str | CallRequest | list[CallRequest] | BaseException
"""A whole reply, its text, one call or several, or an exception to raise."""

Script = Callable[[Request], Answer | Awaitable[Answer]]


def call(name: str, /, **arguments: Any) -> CallRequest:
    """A call as a model makes it, its arguments as JSON text."""
    return CallRequest(name=name, arguments=msgspec.json.encode(arguments).decode())


class ScriptedModel:
    """Answers in order from a list, or by a function of the request, sync or async.

    `requests` keeps what was asked, unless `record` is False. When the list has run out, `reply` raises a
    `ModelError` that says so and is not retryable. No exception of the script is tried again.
    """

    def __init__(
        self, answers: Iterable[Answer] | Script, *, name: str = "scripted", record: bool = True
    ) -> None:
        self.name = name
        self._script = answers if callable(answers) else None
        self._answers = iter(()) if callable(answers) else iter(answers)
        self._record = record
        self.requests: list[Request] = []

    async def reply(self, request: Request, emit: Callable[[Delta], None] | None = None) -> Reply:
        """The next answer, shown to `emit` as one delta. The recorded request has its own message list."""
        if self._record:
            self.requests.append(msgspec.structs.replace(request, messages=list(request.messages)))
        if self._script is None:
            answer = next(self._answers, None)
            if answer is None:
                raise ModelError(f"the script of model {self.name!r} has no more answers", retryable=False)
        else:
            said = self._script(request)
            answer = await said if inspect.isawaitable(said) else said
        reply = answer if isinstance(answer, Reply) else _reply(answer)
        if emit is not None:
            if reply.reasoning:
                emit(ReasoningDelta(reply.reasoning))
            if reply.text:
                emit(TextDelta(reply.text))
        return reply


def _reply(answer: Any) -> Reply:
    match answer:
        case str():
            return Reply(text=answer, finish="stop")
        case CallRequest():
            return Reply(calls=(answer,), finish="tool_calls")
        case list() | tuple():
            return Reply(calls=tuple(answer), finish="tool_calls")
        case BaseException():
            raise answer
        case _:
            raise TypeError(f"an answer is a Reply, text, calls or an exception, not {type(answer).__name__}")
