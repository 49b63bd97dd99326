"""The /v1 API: which path leads where, what it takes and answers, and which role it needs.

Errors are RFC 9457 problem details. POSTs to threads and interrupts answer the thread's state;
`Prefer: wait=SECONDS` (RFC 7240) puts the answer off until the thread rests or that time has passed.
"""

from fastapi import APIRouter
from starlette.responses import Response

from tenuto.runtime import Runtime
from tenuto.server.callers import Callers
from tenuto.server.described import Route, described
from tenuto.server.events import EventPage, Events, StoredLine
from tenuto.server.interrupts import Interrupts
from tenuto.server.posts import Posts
from tenuto.server.shapes import (
    Cancellation,
    Extension,
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
from tenuto.server.token_routes import CreatedToken, NewToken, ShownToken, TokenList, Tokens
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
        Route("GET", "/tokens", tokens.list_tokens, ("admin",), TokenList),
        Route("POST", "/tokens", tokens.create_token, ("admin",), CreatedToken, NewToken, status=201),
        Route("DELETE", "/tokens/{name}", tokens.revoke_token, ("admin",), ShownToken),
    ]


def router(routes: list[Route], callers: Callers) -> APIRouter:
    """The routes, each behind the role that it needs, and described."""
    made = APIRouter(prefix="/v1")
    for route in routes:
        made.add_api_route(
            route.path,
            route.endpoint,
            methods=[route.method],
            dependencies=[callers.needing(*route.needs)],
            response_class=Response,  # FastAPI would describe a JSON body besides
            response_model=None,
            **described(route),
        )
    return made
