"""The application: the contract, /v1, the probes, and what holds for every request."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from fastapi import FastAPI
from starlette.routing import Route

from tenuto import limits
from tenuto.errors import StoreError, UnknownAgent
from tenuto.runtime import Runtime
from tenuto.server.access import Access, Headers, bearer, foreign_host, foreign_page
from tenuto.server.callers import Callers
from tenuto.server.contract import Contract
from tenuto.server.described import DescribedApp
from tenuto.server.observed import add_observed
from tenuto.server.posts import Posts
from tenuto.server.probes import PROBES, add_probes
from tenuto.server.problems import add_handlers, logger, of_error, problem, unexpected
from tenuto.server.tokens import PREFIX
from tenuto.server.v1 import router, routes
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
    app = DescribedApp(
        title="Tenuto",
        summary="Durable LLM agents",
        version="1",
        docs_url=None,  # FastAPI's pages run code of another site
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.waiting = waiting = Waiting(runtime)
    callers, posts = Callers(runtime.store, access), Posts(runtime.store)
    v1 = routes(runtime, callers, posts, waiting, agent)
    app.shapes = [shape for route in v1 for shape in (route.answer, route.takes) if shape is not None]
    app.include_router(router(v1, callers))
    contract = Contract(runtime, callers, posts, waiting, agent)
    app.router.routes.append(_AnyMethod("/api/agent/{rest:path}", contract.serve))
    add_probes(app, runtime, waiting.stopping)
    add_handlers(app)
    app.add_middleware(Guard, callers=callers)
    add_observed(app, runtime, callers)
    return app


def create_probes(runtime: Runtime, access: Access, stopping: asyncio.Event) -> FastAPI:
    """What a worker without the API serves: only what an orchestrator asks it."""
    app = FastAPI(title="Tenuto worker", openapi_url=None, redirect_slashes=False)
    callers = Callers(runtime.store, access)
    add_probes(app, runtime, stopping)
    add_handlers(app)
    app.add_middleware(Guard, callers=callers)
    add_observed(app, runtime, callers)
    return app


class _AnyMethod(Route):
    """A route whose endpoint looks at the method itself."""

    def __init__(self, path: str, endpoint: Any) -> None:
        super().__init__(path, endpoint, include_in_schema=False)
        self.methods = None


class Guard:
    """Around every request: refuses what foreign web pages send through a browser, lets no answer be sniffed,
    stored, framed or run, ends what goes on when its token stops working, and keeps what went wrong inside.
    """

    def __init__(self, app: Application, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_safely(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": _secured(message.get("headers", ()))}
            await send(message)

        if bearer(scope["headers"]).startswith(PREFIX.encode()):
            receive = _WhileItWorks(self._callers, scope["headers"], receive).receive
        try:
            if why := await self._refuses_page(scope):
                await problem(403, why)(scope, receive, send_safely)
                return
            await self._app(scope, receive, send_safely)
        except StoreError as error:
            if started:
                raise
            await of_error(error)(scope, receive, send_safely)
        except Exception:
            if started:
                raise
            logger.exception("a request failed: %s %s", scope["method"], scope["path"])
            await unexpected()(scope, receive, send_safely)

    async def _refuses_page(self, scope: Scope) -> str:
        """Why this looks like what a foreign web page makes a browser send; "" when it does not."""
        if foreign_page(scope["headers"]):
            return "requests from pages of another origin are refused"
        if scope["path"] in PROBES:
            return ""  # orchestrators ask by whatever name they have for this machine
        if foreign_host(scope["headers"]) and await self._callers.anonymous():
            return "without SUBMIT_TOKEN only requests to this machine's own loopback name are served"
        return ""


class _WhileItWorks:
    """What a request that goes on receives: its connection is closed once its token works no more."""

    def __init__(self, callers: Callers, headers: Headers, receive: Receive) -> None:
        self._callers = callers
        self._headers = headers
        self._receive = receive
        # Where `streaming` looks for it: what breaks off a stream breaks off this one as well.
        self.transport = getattr(getattr(receive, "__self__", None), "transport", None)

    async def receive(self) -> Message:
        waiting = asyncio.ensure_future(self._receive())
        try:
            while not (await asyncio.wait({waiting}, timeout=limits.TOKEN_SECONDS))[0]:
                if await self._works():
                    continue
                if not isinstance(self.transport, asyncio.WriteTransport):
                    return {"type": "http.disconnect"}
                self.transport.abort()
                break
            return await waiting
        finally:
            waiting.cancel()

    async def _works(self) -> bool:
        try:
            return await self._callers.of(self._headers) is not None
        except StoreError:
            return True  # nobody knows; what it asks for will meet the same


_SECURITY: Final = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)


def _secured(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """With what holds for every answer that does not say otherwise itself."""
    given = list(headers)
    names = {name for name, _ in given}
    return given + [header for header in _SECURITY if header[0] not in names]
