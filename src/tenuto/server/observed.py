"""What the server shows of itself: GET /metrics, and who asked for what, for those who look on.

Only there when the runtime has an `Observe`. Reading metrics takes what reading threads takes.
"""

import contextlib
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenuto.observe import Observe
from tenuto.runtime import Runtime
from tenuto.server.callers import Callers, caller_of
from tenuto.server.contract_shapes import CONTRACT
from tenuto.server.described import problems
from tenuto.server.heads import add_route
from tenuto.server.problems import Problem

if TYPE_CHECKING:
    from tenuto.observe.metrics import Metrics


def add_observed(app: FastAPI, runtime: Runtime, callers: Callers) -> None:
    """GET /metrics and what has to stand around every request, as far as the runtime is looked on."""
    if runtime.observe is not None:
        app.add_middleware(Observed, observe=runtime.observe)
        if runtime.observe.metrics is not None:
            _add_metrics(app, runtime, runtime.observe.metrics, callers)


def _add_metrics(app: FastAPI, runtime: Runtime, metrics: "Metrics", callers: Callers) -> None:
    metrics.subscribers.set_function(lambda: runtime.hub.followers)

    async def get_metrics(request: Request) -> Response:
        """Prometheus metrics, as text or as OpenMetrics."""
        if caller_of(request).agents:
            raise Problem(403, "metrics are of all agents, and this token is for some")
        body, content_type = await metrics.render(runtime.store, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    text = {"schema": {"type": "string"}}
    answers: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The metrics",
            "content": {"text/plain": text, "application/openmetrics-text": text},
        }
    }
    add_route(
        app,
        "GET",
        "/metrics",
        get_metrics,
        [callers.needing("read")],
        response_class=Response,
        operation_id="get_metrics",
        tags=["probes"],
        responses=answers | problems(401, 403, 500, 503),
    )


class Observed:
    """Around every request: counts its answer, and lets a turn that it begins point back at its caller."""

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self._app = app
        self._metrics = observe.metrics
        self._traces = observe.traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        caller: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._traces is not None:
            given = [value for name, value in scope["headers"] if name == b"traceparent"]
            caller = self._traces.called_from(given[0].decode("latin-1") if len(given) == 1 else "")
        try:
            with caller:
                await self._app(scope, receive, watched)
        finally:
            if self._metrics is not None and status:
                self._metrics.request(scope["method"], _template(scope), status)


def _template(scope: Scope) -> str:
    """The path of the route that took the request, with its parameters' names."""
    if scope["path"] in CONTRACT:
        return str(scope["path"])
    return str(getattr(scope.get("route"), "path", ""))
