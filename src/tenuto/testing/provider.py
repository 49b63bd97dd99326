"""A provider over real HTTP that says what a script says, well or badly.

In a test: `async with ScriptedProvider(script) as provider:` and `provider.url` is a base URL. As a process:
`python -m tenuto.testing.provider MODULE:FUNCTION|FILE.json --port 0`, which prints that URL once it answers.

A script is a list of answers, or a function that is given the decoded request body, sync or async. It
answers `POST .../chat/completions`, streamed if the request wants that, and any number of requests at once.
`GET .../requests` lists the bodies it was sent. It listens on loopback and knows no keys.
"""

import argparse
import asyncio
import importlib
import inspect
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import uvicorn
from starlette.requests import Request

from tenuto.errors import ConfigurationError
from tenuto.limits import MAX_RECORDED_REQUESTS
from tenuto.messages import CallRequest

_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer. Without `body` or `file` it is rendered from the reply fields; the rest are its manners.

    `calls`: `tenuto.testing.call(...)`, or objects with `name`, `arguments` (text, or an object to be
    encoded) and `id`. `finish`: "" leaves it out, None takes the usual one. `piece_characters` cuts text,
    arguments and bodies; 0 sends each whole. `body` is sent as it is, `file` names one to send.
    `cut_after` breaks the connection, `hang_after` falls silent, after that many bytes of the body.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[Any] = []
    finish: str | None = None
    usage: dict[str, Any] = msgspec.field(default_factory=lambda: dict(_USAGE))
    piece_characters: int = 0
    delay_seconds: float = 0.0
    pause_seconds: float = 0.0
    status: int = 200
    headers: dict[str, str] = {}
    body: Any = None
    file: str = ""
    content_type: str = ""
    cut_after: int | None = None
    hang_after: int | None = None


class Received(msgspec.Struct, frozen=True):
    """A request as it came: `path` with its query, header names in lower case."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Said = Answer | str | CallRequest | list[CallRequest] | dict[str, Any]
Script = Callable[[dict[str, Any]], Said | Awaitable[Said]]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class ScriptedProvider:
    """The server. Leaving the context breaks off what it is still answering.

    `requests` holds the latest that came; `broken_off` counts the answers that a client left while the
    provider was silent. When a list has run out it says so with status 400, which no client tries again.
    """

    def __init__(self, script: Script | Iterable[Said], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._function = script if callable(script) else None
        self._answers = iter(()) if callable(script) else iter(script)
        self._config = uvicorn.Config(
            self._application,
            host=host,
            port=port,
            http="h11",
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=0,
        )
        self._server: uvicorn.Server | None = None
        self.url = ""
        self.requests: deque[Received] = deque(maxlen=MAX_RECORDED_REQUESTS)
        self.broken_off = 0

    async def __aenter__(self) -> Self:
        # Not serve(): that takes the process's signals, and a test has its own.
        self._config.load()
        server = self._server = uvicorn.Server(self._config)
        server.lifespan = self._config.lifespan_class(self._config)
        await server.startup()
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await self._server.shutdown()
        await asyncio.gather(*self._server.server_state.tasks, return_exceptions=True)

    async def _application(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix("/v1")
        if scope["method"] == "GET" and path == "/requests":
            answer = Answer(body=[request.body for request in self.requests])
        elif scope["method"] == "POST" and path.endswith("/chat/completions"):
            try:
                received = await _received(Request(scope, receive))
                self.requests.append(received)
                answer = await self._answer(received.body)
            except Exception as error:  # noqa: BLE001 - a script may raise anything; the client is told
                received = Received(path, {}, {})
                answer = _refusal(500, f"the script raised {type(error).__name__}: {error}")
            if answer.delay_seconds:
                await asyncio.sleep(answer.delay_seconds)
            return await self._send(answer, received.body, receive, send)
        else:
            answer = _refusal(404, f"nothing at {scope['method']} {scope['path']}")
        return await self._send(answer, {}, receive, send)

    async def _answer(self, body: dict[str, Any]) -> Answer:
        if self._function is not None:
            said = self._function(body)
            return _as_answer(await said if inspect.isawaitable(said) else said)
        for answer in self._answers:
            return _as_answer(answer)
        return _refusal(400, "the script has no more answers")

    async def _send(self, answer: Answer, body: dict[str, Any], receive: Receive, send: Send) -> None:
        content_type, pieces = _render(answer, body, len(self.requests))
        headers = {"content-type": answer.content_type or content_type} | answer.headers
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            }
        )
        left = min((n for n in (answer.cut_after, answer.hang_after) if n is not None), default=sys.maxsize)
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece[:left], "more_body": True})
            left -= len(piece)
            if left <= 0:
                break
            if answer.pause_seconds:
                await asyncio.sleep(answer.pause_seconds)
        if answer.hang_after is not None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.broken_off += 1
        elif answer.cut_after is None:
            await send({"type": "http.response.body", "body": b""})
        # Without a last piece the server closes the connection, and the client sees it broken.


async def _received(request: Request) -> Received:
    query = f"?{request.url.query}" if request.url.query else ""
    body = msgspec.json.decode(await request.body(), type=dict[str, Any])
    return Received(request.url.path + query, dict(request.headers), body)


def _as_answer(said: Any) -> Answer:
    match said:
        case Answer():
            return said
        case str():
            return Answer(text=said)
        case CallRequest():
            return Answer(calls=[said])
        case list() | tuple():
            return Answer(calls=list(said))
        case _:
            return msgspec.convert(said, Answer)


def _refusal(status: int, message: str) -> Answer:
    return Answer(status=status, body={"error": {"message": message}})


def _render(answer: Answer, request: dict[str, Any], number: int) -> tuple[str, Iterator[bytes]]:
    """The content type and the body in the pieces in which it is sent."""
    if answer.file or answer.body is not None:
        body = Path(answer.file).read_bytes() if answer.file else answer.body
        if not isinstance(body, str | bytes):
            body = msgspec.json.encode(body)
        if isinstance(body, str):
            body = body.encode()
        size = answer.piece_characters or len(body) or 1
        kind = "application/json" if body[:1] in b"{[" else "text/event-stream"
        return kind, (body[start : start + size] for start in range(0, len(body), size))
    head = {"id": f"chatcmpl-{number}", "created": 1, "model": request.get("model", "scripted")}
    calls = [_call(call, f"call_{number}_{index}") for index, call in enumerate(answer.calls)]
    finish = answer.finish if answer.finish is not None else ("tool_calls" if calls else "stop")
    if not request.get("stream"):
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": finish or None}
        whole = head | {"object": "chat.completion", "choices": [choice], "usage": answer.usage}
        return "application/json", iter([msgspec.json.encode(whole)])
    head["object"] = "chat.completion.chunk"
    wants_usage = bool((request.get("stream_options") or {}).get("include_usage"))
    events = _events(answer, calls, finish, wants_usage)
    return "text/event-stream", (_frame(event if event is None else head | event) for event in events)


def _events(
    answer: Answer, calls: list[dict[str, Any]], finish: str, wants_usage: bool
) -> Iterator[dict[str, Any] | None]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _cut(answer.reasoning, answer.piece_characters):
        yield chunk({"reasoning_content": piece})
    for piece in _cut(answer.text, answer.piece_characters):
        yield chunk({"content": piece})
    for index, call in enumerate(calls):
        function = call["function"]
        start = call | {"index": index, "function": function | {"arguments": ""}}
        yield chunk({"tool_calls": [start]})
        for piece in _cut(function["arguments"], answer.piece_characters):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, finish or None)
    if wants_usage:
        yield {"choices": [], "usage": answer.usage}
    yield None


def _call(call: Any, default_id: str) -> dict[str, Any]:
    if isinstance(call, CallRequest):
        call = {"name": call.name, "arguments": call.arguments, "id": call.provider_id}
    arguments = call.get("arguments")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
    function = {"name": call["name"], "arguments": arguments}
    return {"id": call.get("id") or default_id, "type": "function", "function": function}


def _cut(text: str, size: int) -> Iterator[str]:
    size = size or len(text) or 1
    return (text[start : start + size] for start in range(0, len(text), size))


def _frame(event: dict[str, Any] | None) -> bytes:
    return b"data: " + (b"[DONE]" if event is None else msgspec.json.encode(event)) + b"\n\n"


def load_script(name: str) -> Script | list[Said]:
    """The script that `MODULE:FUNCTION` or `FILE.json` names. Raises `ConfigurationError`."""
    try:
        if name.endswith(".json"):
            return msgspec.json.decode(Path(name).read_bytes(), type=list[str | dict[str, Any]])  # type: ignore[return-value]  # each is a `Said`
        module, _, attribute = name.partition(":")
        sys.path.insert(0, os.getcwd())
        script: Script | list[Said] = getattr(importlib.import_module(module), attribute)
    except (OSError, ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"no script at {name!r}: {error}") from error
    return script


async def _serve(provider: ScriptedProvider) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with provider:
        sys.stdout.write(f"{provider.url}\n")
        sys.stdout.flush()
        await stop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tenuto.testing.provider", description="A scripted provider.")
    parser.add_argument("script", metavar="MODULE:FUNCTION|FILE.json")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    options = parser.parse_args()
    # The server calls an answer that breaks off an error; here it is what the script wants.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    try:
        provider = ScriptedProvider(load_script(options.script), host=options.host, port=options.port)
        asyncio.run(_serve(provider))
    except ConfigurationError as error:
        parser.error(str(error))


if __name__ == "__main__":
    # The module as a script's own import sees it: `Answer` must be one class, not two.
    from tenuto.testing.provider import main as run

    run()
