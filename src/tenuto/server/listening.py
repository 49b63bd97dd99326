"""The process around the application: listen, serve, and stop without dropping anything."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from tenuto import limits
from tenuto.errors import ConfigurationError
from tenuto.runtime import Runtime
from tenuto.server.access import Access, is_loopback
from tenuto.server.app import create_app, create_probes
from tenuto.server.files import make_room_for_connections, room_for_connections
from tenuto.server.tokens import stored_tokens
from tenuto.store import Store

Ready = Callable[[str], None]
logger = logging.getLogger("tenuto.server")


def serve(
    runtime: Runtime, *, host: str, port: int, agent: str | None = None, ready: Ready | None = None
) -> None:
    """Serve a runtime that is not open yet until SIGTERM or SIGINT; blocks, and belongs to the process's main
    thread.

    `agent` (by default the first) gets the tasks that name none; `port` 0 takes a free one; `ready` is called
    with the URL once requests are taken. The secrets come from the environment, tokens from the database.
    Where the runtime's settings have no worker, threads are advanced by workers elsewhere.

    A signal ends it gracefully: no new connections and threads are taken, what runs may come to rest within
    the grace time of the settings and its requests are answered, the rest is handed over to whatever worker
    comes next, and this returns. A second signal returns at once: KeyboardInterrupt; leases then free
    themselves.

    Raises `ConfigurationError` without agents, for an address that cannot be had or may not be listened on,
    and whatever opening the runtime raises.
    """
    if not runtime.agents:
        raise ConfigurationError("there is no agent to serve")
    access = Access.from_environment()
    beyond = not is_loopback(host)
    if beyond:
        access.check_host(host, tokens=_is_there(runtime.store))
        access = replace(access, anonymous=False)
    make_room_for_connections()
    app = create_app(runtime, access, agent=agent or next(iter(runtime.agents)))

    async def check() -> None:
        if beyond:
            access.check_host(host, tokens=bool(await stored_tokens(runtime.store)))

    with _listen(host, port) as listener:
        _run(runtime, _Server(app, listener, host, ready, check), app.state.waiting.stopping)


def work(
    runtime: Runtime, *, host: str = "127.0.0.1", port: int | None = None, ready: Ready | None = None
) -> None:
    """Advance threads until SIGTERM or SIGINT, as `serve` does, without the API. With a `port`, /healthz and
    /readyz answer there; `ready` is called with their URL, or "", once threads are taken.
    """
    if not runtime.agents:
        raise ConfigurationError("there is no agent to work for")
    stopping = asyncio.Event()
    if port is None:
        _run(runtime, None, stopping, ready)
        return
    # Where strangers can connect, metrics take a token.
    access = replace(Access.from_environment(), anonymous=is_loopback(host))
    with _listen(host, port) as listener:
        app = create_probes(runtime, access, stopping)
        _run(runtime, _Server(app, listener, host, ready), stopping)


def _is_there(store: Store) -> bool:
    """Looking for tokens shall not make a database."""
    path = getattr(store, "path", None)
    return path is None or Path(path).exists()


def _run(
    runtime: Runtime, server: "_Server | None", stopping: asyncio.Event, ready: Ready | None = None
) -> None:
    try:
        asyncio.run(_until_signalled(runtime, server, stopping, ready))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _until_signalled(
    runtime: Runtime, server: "_Server | None", stopping: asyncio.Event, ready: Ready | None
) -> None:
    task = asyncio.current_task()
    assert task is not None
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            # The requests that this breaks off would each tell of it with a traceback.
            logging.getLogger("uvicorn.error").disabled = True
            task.cancel()
        stop.set()

    about = {"worker": runtime.owner, "agents": ", ".join(runtime.agents), "threads": runtime.settings.worker}
    logger.info("starting", extra=about)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    async with runtime:
        if server is not None and server.check is not None:
            await server.check()
        async with asyncio.TaskGroup() as group:
            if server is not None:
                group.create_task(server.serve())
            elif ready is not None:
                ready("")
            await stop.wait()
            logger.info("stopping", extra={"worker": runtime.owner})
            # The worker first: requests that wait are answered as their threads come to rest, and only those
            # of threads that are handed over hear that theirs still runs.
            if server is not None:
                server.should_exit = True
            await runtime.worker.stop(runtime.settings.grace_seconds)
            stopping.set()
    logger.info("stopped", extra={"worker": runtime.owner})


class _Server(uvicorn.Server):
    """Uvicorn on a socket that is listening already; signals are none of its business."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        host: str,
        ready: Ready | None,
        check: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ws="none",
                lifespan="off",
                log_config=None,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=room_for_connections(),
                backlog=limits.LISTEN_BACKLOG,
                timeout_graceful_shutdown=round(2 * limits.STOP_GRACE_SECONDS),
            )
        )
        self._listener = listener
        self._host = f"[{host.strip('[]')}]" if ":" in host else host
        self._ready = ready
        self._idle: dict[object, tuple[object, float]] = {}
        self.check = check

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super().serve([self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ready is not None:
            self._ready(f"http://{self._host}:{self._listener.getsockname()[1]}")

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            self._break_off()
        return await super().on_tick(counter)

    def _break_off(self) -> None:
        """Nobody holds a connection by saying nothing, by sending a head drop by drop, or by taking nothing
        of an answer. What is being answered has limits of its own: those of bodies, waits and streams.
        """
        now, idle = asyncio.get_running_loop().time(), self._idle
        self._idle = {}
        for connection in list(self.server_state.connections):
            cycle = getattr(connection, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                continue
            place = (cycle, connection.transport.get_write_buffer_size())
            before, since = idle.get(connection, (None, now))
            if place == before and now - since > limits.HEAD_SECONDS:
                connection.transport.abort()
            else:
                self._idle[connection] = (place, since if place == before else now)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise ConfigurationError(f"there is no port {port}; use 0 to 65535, 0 for any that is free")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=limits.LISTEN_BACKLOG)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error}") from error
