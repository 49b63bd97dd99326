"""HEAD, which answers as GET does without the body, and which methods a path has."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.routing import Match

_METHODS: Final = ("DELETE", "GET", "HEAD", "POST")


def add_route(
    router: APIRouter | FastAPI,
    method: str,
    path: str,
    endpoint: Callable[..., Awaitable[Response]],
    dependencies: Sequence[Any] = (),
    **described: Any,
) -> None:
    """A route; beside GET goes HEAD. The server leaves the body of that answer out; a `Stream` has none."""
    checked: dict[str, Any] = {"dependencies": dependencies, "response_model": None}
    router.add_api_route(path, endpoint, methods=[method], **checked, **described)
    if method == "GET":
        # Not in the description: HTTP itself describes it (RFC 9110, section 9.3.2).
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, **checked)


def allowed(request: Request) -> str:
    """The methods that the path has, as `Allow` tells them."""
    # Only what the server said: routing has left its marks in the scope.
    asked = {name: request.scope[name] for name in ("type", "path", "root_path", "headers", "query_string")}
    routes = request.app.router.routes
    return ", ".join(
        method
        for method in _METHODS
        if any(route.matches(asked | {"method": method})[0] is Match.FULL for route in routes)
    )
