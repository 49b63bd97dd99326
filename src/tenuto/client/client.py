"""The verbs of a runtime, for a server that is somewhere else."""

import asyncio
import base64
import contextlib
import os
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack
from urllib.parse import quote

import msgspec

from tenuto import limits
from tenuto.approvals import Decision, More
from tenuto.chain import ChainReport, verify_thread
from tenuto.client import bodies
from tenuto.client.following import follow
from tenuto.client.transport import Transport
from tenuto.client.where import bearer, server_url
from tenuto.doubt import InDoubt
from tenuto.errors import (
    ConfigurationError,
    InterruptNotFound,
    InvalidInput,
    StoreError,
    ThreadNotFound,
    Undecodable,
)
from tenuto.events import Entry, InterruptKind, InterruptResolved, ThreadId
from tenuto.messages import Live
from tenuto.rows import Fleet, InterruptRow, StoredEvent, ThreadRow, ThreadStatus, WorkerRow
from tenuto.stream import Replayed
from tenuto.thread import ThreadState, fold
from tenuto.tools.text import message_text

_STATUS = {True: "pending", False: "decided", None: "all"}
_ID = re.compile(r"[0-9A-Za-z._~-]{1,100}")


class Client:
    """Use as `async with Client("https://host:8000", token="…") as runtime:`; the rest is as with `Runtime`.

    Each verb does and raises what the one of `Runtime` does, and besides: `AccessDenied` when the token may
    not, `StoreError` when the server does not answer, after a few attempts within a minute. What is sent
    again has its effect once. Two things differ: the log says of `by` through whose token it was said, and
    `channel` is the server's; and `drive` is the server's own. Nothing is sent before the first verb.
    """

    def __init__(self, url: str, *, token: str = "") -> None:
        self.url = server_url(url)
        self._transport = Transport(self.url, bearer(token))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """The server of TENUTO_URL with the token of TENUTO_TOKEN. Raises `ConfigurationError`."""
        values = os.environ if environment is None else environment
        if not values.get("TENUTO_URL", "").strip():
            raise ConfigurationError("TENUTO_URL names no server")
        return cls(values["TENUTO_URL"], token=values.get("TENUTO_TOKEN", ""))

    async def __aenter__(self) -> Self:
        await self._transport.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._transport.close()

    # -- verbs ---------------------------------------------------------------------------------------

    async def start(
        self,
        agent: str,
        message: str,
        *,
        by: str = "user",
        metadata: Mapping[str, Any] | None = None,
        thread_id: str | None = None,
    ) -> ThreadId:
        """As `Runtime.start`; agent "" is the server's first."""
        body = {
            "agent": agent or None,
            "message": message_text("message", message),
            "by": by,
            "metadata": dict(metadata or {}),
            "thread_id": str(uuid.uuid4()) if thread_id is None else thread_id,
        }
        return (await self._transport.post("/v1/threads", bodies.Seen, body)).id

    async def send(
        self, thread_id: str, message: str, *, by: str = "user", channel: str = "", append_id: str = ""
    ) -> int:
        """As `Runtime.send`."""
        body = {"text": message_text("message", message), "by": by}
        seen = await self._transport.post(f"{_thread(thread_id)}/messages", bodies.Seen, body, append_id)
        if seen.seq is None:
            raise StoreError(
                "the server took the message and does not say its place: it is of another version"
            )
        return seen.seq

    async def resolve(
        self, interrupt_id: str, verb: str, *, by: str, **decision: Unpack[Decision]
    ) -> InterruptResolved:
        """As `Runtime.resolve`."""
        if unknown := sorted(set(decision) - set(Decision.__annotations__)):
            raise TypeError(f"resolve() takes no {', '.join(unknown)}")
        given: dict[str, Any] = {**decision, "verb": verb, "by": by}
        given.pop("channel", None)
        append_id = given.pop("append_id", "")
        if isinstance(given.get("arguments"), str):
            given["arguments"] = _object(given["arguments"])
        path = f"{_interrupt(interrupt_id)}/resolve"
        seen = await self._transport.post(path, bodies.Seen, given, append_id)
        (entry,) = bodies.entries([seen.resolution], [])
        if not isinstance(entry.event, InterruptResolved):
            raise StoreError("the server decided and does not say what: it is of another version")
        return entry.event

    async def cancel(self, thread_id: str, *, by: str = "", reason: str = "", append_id: str = "") -> None:
        """As `Runtime.cancel`."""
        body = {"reason": reason, "by": by}
        await self._transport.post(f"{_thread(thread_id)}/cancel", bodies.Seen, body, append_id)

    async def extend(
        self, thread_id: str, *, by: str = "", append_id: str = "", **more: Unpack[More]
    ) -> None:
        """As `Runtime.extend`."""
        body = {**more, "by": by}
        await self._transport.post(f"{_thread(thread_id)}/extend", bodies.Seen, body, append_id)

    async def wait(self, thread_id: str, timeout: float | None = None) -> ThreadState:
        """As `Runtime.wait`. Raises `StoreError` when the server stays away meanwhile."""
        try:
            async with (
                asyncio.timeout(timeout),
                contextlib.aclosing(self.follow(thread_id, rest=True)) as items,
            ):
                seen = [item async for item in items if isinstance(item, Entry)]
        except TimeoutError:
            return await self.state(thread_id)
        return fold(seen, ThreadId(thread_id))

    # -- looking -------------------------------------------------------------------------------------

    async def state(self, thread_id: str) -> ThreadState:
        """As `Runtime.state`: its events are fetched and folded here."""
        return fold(await self._log(ThreadId(thread_id)), ThreadId(thread_id))

    async def events(self, thread_id: str, after: int = 0, limit: int = limits.MAX_PAGE_ROWS) -> list[Entry]:
        """As `Runtime.events`."""
        most, found = min(limit, limits.MAX_PAGE_ROWS), list[Entry]()
        place: int | None = after
        try:
            while place is not None and len(found) < most:
                page = await self._page(thread_id, place, most - len(found))
                bodies.entries(page.events, found)
                place = page.next
        except Undecodable:
            if not found:
                raise
        return found

    async def stored(
        self, thread_id: str, after: int = 0, limit: int = limits.MAX_PAGE_ROWS
    ) -> list[StoredEvent]:
        """As `Runtime.stored`."""
        lines = await self._transport.read(
            f"{_thread(thread_id)}/export", after=after, limit=min(limit, limits.MAX_PAGE_ROWS)
        )
        return bodies.stored_events(lines)

    def follow(
        self, thread_id: str, after: int = 0, *, rest: bool = False
    ) -> AsyncGenerator[Entry | Replayed | Live, None]:
        """As `Runtime.follow`. A connection that breaks off is taken up again, and no event is lost or comes
        twice; deltas can be missed.
        """
        _thread(thread_id)
        return follow(self._transport, ThreadId(thread_id), after, rest)

    async def interrupt(self, interrupt_id: str) -> InterruptRow:
        """As `Runtime.interrupt`."""
        body = await self._transport.get(_interrupt(interrupt_id), msgspec.Raw)
        return bodies.row_of(body, InterruptRow)

    async def interrupts(
        self,
        *,
        pending: bool | None = True,
        thread_id: str | None = None,
        agent: str | None = None,
        kind: InterruptKind | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[InterruptRow]:
        """As `Runtime.interrupts`."""
        found: list[InterruptRow] = []
        while len(found) < limit:
            page = await self._transport.get(
                "/v1/interrupts",
                bodies.InterruptPage,
                status=_STATUS[pending],
                thread_id=thread_id,
                agent=agent,
                kind=kind,
                after=after,
                limit=min(limit - len(found), limits.MAX_LISTED_INTERRUPTS),
            )
            found += [bodies.row_of(body, InterruptRow) for body in page.interrupts]
            if page.next is None:
                break
            after = page.next
        return found

    async def thread(self, thread_id: str) -> ThreadRow:
        """As `Runtime.thread`."""
        _thread(thread_id)
        page = await self._transport.get("/v1/threads", bodies.ThreadPage, id=thread_id)
        for row in (bodies.row_of(body, ThreadRow) for body in page.threads):
            if row.id == thread_id:
                return row
        raise ThreadNotFound(f"there is no thread {thread_id}")

    async def threads(
        self,
        *,
        status: ThreadStatus | None = None,
        agent: str | None = None,
        metadata: Mapping[str, str] | None = None,
        before: tuple[int, ThreadId] | None = None,
        limit: int = 100,
    ) -> list[ThreadRow]:
        """As `Runtime.threads`."""
        found: list[ThreadRow] = []
        cursor = None if before is None else _cursor(before)
        asked = {f"metadata[{name}]": text for name, text in (metadata or {}).items()}
        while len(found) < limit:
            page = await self._transport.get(
                "/v1/threads",
                bodies.ThreadPage,
                status=status,
                agent=agent,
                cursor=cursor,
                limit=min(limit - len(found), limits.MAX_LISTED_THREADS),
                **asked,
            )
            found += [bodies.row_of(body, ThreadRow) for body in page.threads]
            if page.next is None:
                break
            cursor = page.next
        return found

    async def workers(self) -> list[WorkerRow]:
        """As `Runtime.workers`."""
        found = await self._transport.get("/v1/workers", bodies.WorkerList)
        return [bodies.row_of(body, WorkerRow) for body in found.workers]

    async def fleet(self) -> Fleet:
        """As `Runtime.fleet`. Raises `AccessDenied` with a token of some agents."""
        return bodies.fleet(await self._transport.get("/v1/fleet", bodies.FleetBody))

    async def in_doubt(self, thread_id: str | None = None) -> list[InDoubt]:
        """As `Runtime.in_doubt`."""
        page = await self._transport.get("/v1/interrupts", bodies.InterruptPage, thread_id=thread_id, limit=1)
        return [bodies.row_of(body, InDoubt) for body in page.in_doubt]

    async def verify(self, thread_id: str, watch: Callable[[int], None] = lambda _n: None) -> ChainReport:
        """As `Runtime.verify`: the stored events are fetched and checked here, not by the server."""
        return await verify_thread(_Log(self), ThreadId(thread_id), watch)

    # -- who may use the server; for an admin ----------------------------------------------------------

    async def tokens(self) -> list[bodies.TokenBody]:
        """The server's tokens by name, also those that work no more; none of them itself."""
        return (await self._transport.get("/v1/tokens", bodies.TokenList)).tokens

    async def create_token(self, name: str, roles: Sequence[str], **more: Any) -> bodies.TokenBody:
        """Make a token; its `token` is shown this once. `agents` and `expires_seconds` as in docs/http.md.

        Raises `Conflict` when one of this name works: also when this one was made and the answer was lost.
        """
        return await self._transport.post(
            "/v1/tokens", bodies.TokenBody, {"name": name, "roles": roles, **more}
        )

    async def revoke_token(self, name: str) -> bodies.TokenBody:
        """Let a token work no more; idempotent. Raises `NotFound`."""
        return await self._transport.delete(
            f"/v1/tokens/{quote(name, '', errors='replace')}", bodies.TokenBody
        )

    # -- inside --------------------------------------------------------------------------------------

    async def _page(self, thread_id: str, after: int, limit: int) -> bodies.EventPage:
        path, most = f"{_thread(thread_id)}/events", min(limit, limits.MAX_PAGE_ROWS)
        return await self._transport.get(path, bodies.EventPage, after=after, limit=most)

    async def _log(self, thread_id: ThreadId) -> list[Entry]:
        found: list[Entry] = []
        after: int | None = 0
        while after is not None:
            page = await self._page(thread_id, after, limits.MAX_PAGE_ROWS)
            bodies.entries(page.events, found)
            after = page.next
        return found


class _Log:
    """What `verify_thread` reads."""

    def __init__(self, client: Client) -> None:
        self.stored = client.stored
        self.thread = client.thread
        self.interrupts = client.interrupts
        self.read = client._log

    async def strays(self, thread_id: ThreadId | None = None) -> list[str]:
        """What no list shows, no server lists."""
        return []


def _thread(thread_id: str) -> str:
    """Its path. Raises `ThreadNotFound` for what cannot be in one."""
    if not _ID.fullmatch(str(thread_id)):
        raise ThreadNotFound(f"there is no thread {str(thread_id)[:100]}")
    return f"/v1/threads/{thread_id}"


def _interrupt(interrupt_id: str) -> str:
    if not _ID.fullmatch(str(interrupt_id)):
        raise InterruptNotFound(f"there is no interrupt {str(interrupt_id)[:100]}")
    return f"/v1/interrupts/{interrupt_id}"


def _object(arguments: str) -> msgspec.Raw:
    """Edited arguments as they were written: numbers are not read and written again."""
    try:
        if isinstance(msgspec.json.decode(arguments.encode()), dict):
            return msgspec.Raw(arguments.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidInput(f"the arguments are not JSON: {error}") from error
    raise InvalidInput("the arguments are not a JSON object")


def _cursor(before: tuple[int, ThreadId]) -> str:
    """The server's cursor for the page behind this row."""
    return base64.urlsafe_b64encode(f"{before[0]} {before[1]}".encode()).decode().rstrip("=")
