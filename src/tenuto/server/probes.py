"""What an orchestrator asks: is this process alive, and may requests be sent to it?"""

import asyncio
from typing import Final

from fastapi import FastAPI
from starlette.responses import Response

from tenuto import limits
from tenuto.errors import StoreError
from tenuto.runtime import Runtime
from tenuto.server.described import problems
from tenuto.server.heads import add_head
from tenuto.server.problems import encoded, logger, problem

PROBES: Final = ("/healthz", "/readyz")


def add_probes(app: FastAPI, runtime: Runtime, stopping: asyncio.Event) -> None:
    """/healthz and /readyz; both need no token and tell nothing of what is inside."""

    @app.get(
        "/healthz",
        operation_id="get_health",
        tags=["probes"],
        response_model=None,
        responses={200: {"description": "It lives"}, **problems(403, 500)},
        openapi_extra={"security": [{}]},
    )
    async def healthz() -> Response:
        """Does this process live? A database that is gone is no reason to restart it: see /readyz."""
        return encoded(200, {"status": "ok"})

    add_head(app, "/healthz", healthz)

    @app.get(
        "/readyz",
        operation_id="get_readiness",
        tags=["probes"],
        response_model=None,
        responses={200: {"description": "It is ready"}, **problems(403, 500, 503)},
        openapi_extra={"security": [{}]},
    )
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

    add_head(app, "/readyz", readyz)
