"""The /v1 API: which path leads where, what it takes and answers, and which role it needs.

Errors are RFC 9457 problem details. POSTs to threads and interrupts answer the thread's state;
`Prefer: wait=SECONDS` (RFC 7240) puts the answer off until the thread rests or that time has passed.
"""

from collections.abc import Iterator

from fastapi import APIRouter, Depends, Request
from fastapi.dependencies.models import Dependant
from starlette.responses import Response

from tenuto.runtime import Runtime
from tenuto.server.callers import Callers
from tenuto.server.described import Route, described
from tenuto.server.events import EventPage, Events, StoredLine
from tenuto.server.heads import add_route
from tenuto.server.interrupts import Interrupts
from tenuto.server.posts import Posts
from tenuto.server.problems import Problem
from tenuto.server.shapes import (
    Cancellation,
    Extension,
    FleetNow,
    Interrupt,
    InterruptPage,
    NewMessage,
    NewThread,
    Resolution,
    Resolved,
    Sent,
    State,
    Thread,
    ThreadPage,
    WorkerList,
)
from tenuto.server.streaming import Streams
from tenuto.server.threads import Threads
from tenuto.server.token_routes import CreatedToken, ShownToken, TokenList, Tokens
from tenuto.server.tokens import NewToken
from tenuto.server.waiting import Waiting


def routes(runtime: Runtime, callers: Callers, posts: Posts, waiting: Waiting, agent: str) -> list[Route]:
    """All of /v1. `agent` gets the threads that name none."""
    threads = Threads(runtime, posts, waiting, agent)
    events = Events(runtime, Streams(waiting.stopping, runtime.observe))
    interrupts = Interrupts(runtime, posts, waiting)
    tokens = Tokens(runtime, callers)
    thread, interrupt = "/threads/{thread_id}", "/interrupts/{interrupt_id}"
    return [
        Route("POST", "/threads", threads.start_thread, ("submit",), State, NewThread, status=201),
        Route("GET", "/threads", threads.list_threads, ("read",), ThreadPage),
        Route("GET", thread, threads.get_thread, ("read",), Thread),
        Route("GET", f"{thread}/events", events.events, ("read",), EventPage, name="list_events"),
        Route("GET", f"{thread}/export", events.export, ("read",), StoredLine, name="export_thread"),
        Route("POST", f"{thread}/messages", threads.send_message, ("submit",), Sent, NewMessage),
        Route("POST", f"{thread}/cancel", threads.cancel_thread, ("submit",), State, Cancellation),
        Route("POST", f"{thread}/extend", threads.extend_thread, ("submit",), State, Extension),
        # Whoever decides has to see what.
        Route("GET", "/interrupts", interrupts.list_interrupts, ("read", "approve"), InterruptPage),
        Route("GET", interrupt, interrupts.get_interrupt, ("read", "approve"), Interrupt),
        Route(
            "POST", f"{interrupt}/resolve", interrupts.resolve_interrupt, ("approve",), Resolved, Resolution
        ),
        Route("GET", "/workers", threads.list_workers, ("read",), WorkerList),
        Route("GET", "/fleet", threads.get_fleet, ("read",), FleetNow),
        Route("GET", "/tokens", tokens.list_tokens, ("admin",), TokenList),
        Route("POST", "/tokens", tokens.create_token, ("admin",), CreatedToken, NewToken, status=201),
        Route("DELETE", "/tokens/{name}", tokens.revoke_token, ("admin",), ShownToken),
    ]


def router(routes: list[Route], callers: Callers) -> APIRouter:
    """The routes, each behind the role that it needs, and described."""
    made = APIRouter(prefix="/v1")
    for route in routes:
        # In this order: who asks is looked at before what.
        dependencies = [callers.needing(*route.needs), Depends(_known_parameters)]
        # FastAPI would describe a JSON body besides.
        more = {"response_class": Response, **described(route)}
        add_route(made, route.method, route.path, route.endpoint, dependencies, **more)
    return made


# A coroutine, though it awaits nothing: FastAPI would run a plain function on a thread.
async def _known_parameters(request: Request) -> None:
    """Raises `Problem` 422 for a parameter that would be without effect, such as a misspelt filter."""
    known = list(_names(request.scope["route"].dependant))
    for name in request.query_params:
        # `metadata[key]` is read by its endpoint, which FastAPI does not see.
        filters = "cursor" in known and name.partition("[")[0] == "metadata"
        if name not in known and not filters:
            listed = f"there are: {', '.join(known)}" if known else "there is none"
            raise Problem(422, f"query: there is no parameter {name[:100]!r} here; {listed}")


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _names(inner)
