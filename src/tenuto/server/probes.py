"""What an orchestrator asks: is this process alive, and may requests be sent to it?"""

import asyncio
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import Response

from tenuto import limits
from tenuto.errors import StoreError
from tenuto.runtime import Runtime
from tenuto.server.described import problems
from tenuto.server.heads import add_route
from tenuto.server.problems import encoded, logger, problem

PROBES: Final = ("/healthz", "/readyz")


def add_probes(app: FastAPI, runtime: Runtime, stopping: asyncio.Event) -> None:
    """/healthz and /readyz; both need no token and tell nothing of what is inside."""

    async def healthz() -> Response:
        """Does this process live? A database that is gone is no reason to restart it: see /readyz."""
        return encoded(200, {"status": "ok"})

    async def readyz() -> Response:
        """May requests be sent here? Not while it stops, and not while the store does not answer."""
        if stopping.is_set():
            return problem(503, "this process is stopping")
        try:
            async with asyncio.timeout(limits.HEALTH_SECONDS):
                await runtime.threads(limit=1)
        except (StoreError, TimeoutError) as error:
            logger.warning("not ready: the store does not answer: %s", error)
            return problem(503, "the store does not answer")
        return encoded(200, {"status": "ok"})

    about: dict[str, Any] = {"tags": ["probes"], "openapi_extra": {"security": [{}]}}
    lives = {200: {"description": "It lives"}, **problems(403, 500)}
    add_route(app, "GET", "/healthz", healthz, operation_id="get_health", responses=lives, **about)
    ready = {200: {"description": "It is ready"}, **problems(403, 500, 503)}
    add_route(app, "GET", "/readyz", readyz, operation_id="get_readiness", responses=ready, **about)
