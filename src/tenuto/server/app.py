"""The application: the contract, /v1, the probes, and what holds for every request."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.routing import Route

from tenuto.errors import UnknownAgent
from tenuto.runtime import Runtime
from tenuto.server import v1
from tenuto.server.access import Access
from tenuto.server.contract import Contract
from tenuto.server.events import add_places
from tenuto.server.observed import add_observed
from tenuto.server.probes import add_probes
from tenuto.server.problems import add_handlers, logger, problem, unexpected
from tenuto.server.waiting import Waiting

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def create_app(runtime: Runtime, access: Access, *, agent: str) -> FastAPI:
    """The server of a runtime that the caller has opened, and closes after it. Raises `UnknownAgent`.

    `agent` gets the tasks of the contract, and the threads of /v1 that name none. Once the asyncio.Event
    `app.state.waiting.stopping` is set, requests that wait for a thread are answered at once.
    """
    if agent not in runtime.agents:
        raise UnknownAgent(f"no agent {agent!r} here; there are: {', '.join(runtime.agents) or 'none'}")
    app = _Described(
        title="Tenuto", summary="Durable LLM agents", version="1", redoc_url=None, redirect_slashes=False
    )
    app.state.waiting = waiting = Waiting(runtime)
    app.include_router(v1.V1(runtime, access, waiting, agent).router)
    contract = Contract(runtime, access, waiting, agent)
    app.router.routes.append(_AnyMethod("/api/agent/{rest:path}", contract.serve))

    add_probes(app, runtime, waiting.stopping)
    add_handlers(app)
    app.add_middleware(Guard, access=access)
    add_observed(app, runtime, access)
    return app


def create_probes(runtime: Runtime, access: Access, stopping: asyncio.Event) -> FastAPI:
    """What a worker without the API serves: only what an orchestrator asks it."""
    app = FastAPI(title="Tenuto worker", openapi_url=None, redirect_slashes=False)
    add_probes(app, runtime, stopping)
    add_handlers(app)
    app.add_middleware(Guard, access=access)
    add_observed(app, runtime, access)
    return app


class _AnyMethod(Route):
    """A route whose endpoint looks at the method itself."""

    def __init__(self, path: str, endpoint: Any) -> None:
        super().__init__(path, endpoint, include_in_schema=False)
        self.methods = None


class Guard:
    """Around every request: refuses what foreign web pages send through a browser, lets no answer be sniffed
    or stored, and keeps what went wrong inside.
    """

    def __init__(self, app: Application, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            await send(message)

        if why := self._access.refuses_page(scope["headers"]):
            await problem(403, why)(scope, receive, send_safely)
            return
        try:
            await self._app(scope, receive, send_safely)
        except Exception:
            if started:
                raise
            logger.exception("a request failed: %s %s", scope["method"], scope["path"])
            await unexpected()(scope, receive, send_safely)


class _Described(FastAPI):
    """Its description has the routes as FastAPI sees them, the bodies as msgspec reads and writes them, and
    the contract.
    """

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            made = super().openapi()
            _, shapes = msgspec.json.schema_components(v1.SHAPES, ref_template="#/components/schemas/{name}")
            add_places(shapes)
            components = made.setdefault("components", {})
            components["schemas"] = components.get("schemas", {}) | shapes
            components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            made["security"] = [{}, {"bearer": []}]
            made["paths"] |= {"/api/agent/tasks": {"post": _TASKS}, "/api/agent/approve": {"post": _APPROVE}}
        return self.openapi_schema or {}


def _operation(summary: str, properties: dict[str, Any], required: list[str], codes: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {
        "tags": ["contract"],
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {code: {"description": _MEANING[code]} for code in codes.split()},
    }


_MEANING = {
    "200": "The thread rests: completed, awaiting_…, step_limit, halted, cancelled or sleeping",
    "202": "The thread still runs",
    "400": "The body is not of this form",
    "401": "The bearer token is missing or wrong",
    "404": "No pending action for this task",
    "409": "It is not clear which action is meant, or it was decided already",
    "413": "The body is too large",
    "502": "The thread failed",
}
_TEXT = {"type": "string"}
_TASKS = _operation("Start a task and wait", {"task": _TEXT}, ["task"], "200 202 400 401 413 502")
_APPROVE = _operation(
    "Decide an action and wait",
    {"task_id": _TEXT | {"format": "uuid"}, "approved": {"type": "boolean"}, "action_id": _TEXT},
    ["task_id", "approved"],
    "200 202 400 401 404 409 413 502",
)
