"""Requests to one server: bounded in time, sent again when that may help, refusals turned into errors.

What creates or decides carries an `Idempotency-Key`, the same one however often it is sent, so that a request
whose answer was lost has its effect once. Sent again is what met no server, lost its connection, or was
answered 429, 502, 503 or 504: a few times, with growing pauses or those that `Retry-After` asks for.
"""

import asyncio
import contextlib
import hashlib
import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tenuto import limits
from tenuto.client.bodies import Told, at_ms
from tenuto.errors import (
    PROBLEM_TYPES,
    AccessDenied,
    AlreadyDecided,
    ConfigurationError,
    Conflict,
    InvalidInput,
    StoreError,
    TenutoError,
    Undecodable,
)
from tenuto.models.openai import retry_after

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
_AGAIN = frozenset({408, 429, 502, 503, 504})
_KINDS: dict[int, type[TenutoError]] = {
    400: InvalidInput,
    401: AccessDenied,
    403: AccessDenied,
    409: Conflict,
    413: InvalidInput,
    422: InvalidInput,
}


class Again(StoreError):
    """The server did not answer this, and may if asked again. `after_seconds`: when, if it says so."""

    after_seconds: float | None = None


class Transport:
    """The connections to a server. Open it before and close it after use, on one event loop."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = token
        self._http: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        """Nothing is sent yet."""
        if self._http is None:
            # Reading the certificates takes long.
            self._http = await asyncio.to_thread(self._make)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    async def get(self, path: str, shape: type[T], **query: Any) -> T:
        """The answer's body as a `shape`. Raises what the server says, or `StoreError`."""
        return self._read(path, await self.read(path, **query), shape)

    async def read(self, path: str, **query: Any) -> bytes:
        """The answer's body as it is. Raises what the server says, or `StoreError`."""
        return await patiently(lambda: self._ask("GET", path, query=query))

    async def delete(self, path: str, shape: type[T]) -> T:
        """The same for a request that takes something away, which can be made again."""
        return self._read(path, await patiently(lambda: self._ask("DELETE", path)), shape)

    async def post(self, path: str, shape: type[T], body: Mapping[str, Any], append_id: str = "") -> T:
        """The same for a request that creates or decides; it has its effect once, and so have all with the
        same `append_id` and body.
        """
        try:
            key = hashlib.sha256(append_id.encode()).hexdigest() if append_id else str(uuid.uuid4())
            content = msgspec.json.encode(body)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(f"this cannot be sent as JSON: {error}") from error
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        answer = await patiently(lambda: self._ask("POST", path, content=content, headers=headers))
        return self._read(path, answer, shape)

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator["httpx2.Response", None]:
        """One answer that goes on, to be read piece by piece. Raises `Again` when it breaks off."""
        import httpx2

        patience = httpx2.Timeout(limits.CLIENT_SILENCE_SECONDS, connect=limits.CLIENT_CONNECT_SECONDS)
        http = self._open()
        try:
            async with http.stream(
                "GET", self.url + path, params=_given(query), headers=headers, timeout=patience
            ) as response:
                if not response.is_success:
                    raise self._refusal(response, await _some(response, limits.MAX_BODY_BYTES))
                yield response
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
            raise self._unreachable(error) from error

    # -- inside ------------------------------------------------------------------------------------------

    async def _ask(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, **sent: Any
    ) -> bytes:
        import httpx2

        http = self._open()
        try:
            async with (
                asyncio.timeout(limits.CLIENT_ANSWER_SECONDS),
                http.stream(method, self.url + path, params=_given(query or {}), **sent) as response,
            ):
                body = await _some(response, limits.MAX_ANSWER_BYTES)
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError) as error:
            raise self._unreachable(error) from error
        if not response.is_success:
            raise self._refusal(response, body)
        return body

    def _read(self, path: str, body: bytes, shape: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StoreError(
                f"what answers at {self.url}{path} is no Tenuto server, or one of another version: {error}"
            ) from error

    def _open(self) -> "httpx2.AsyncClient":
        if self._http is None:
            raise ConfigurationError("this client is not open: use it as `async with Client(…) as runtime:`")
        return self._http

    def _make(self) -> "httpx2.AsyncClient":
        import httpx2

        from tenuto import __version__

        headers = {"Accept": "application/json", "User-Agent": f"tenuto/{__version__}"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        patience = httpx2.Timeout(limits.CLIENT_ANSWER_SECONDS, connect=limits.CLIENT_CONNECT_SECONDS)
        # Each stream has a connection of its own for as long as it is followed.
        room = httpx2.Limits(max_connections=limits.CLIENT_CONNECTIONS, max_keepalive_connections=20)
        # No redirects: they turn a POST into a GET, and take the token to another host.
        return httpx2.AsyncClient(headers=headers, timeout=patience, limits=room, follow_redirects=False)

    def _unreachable(self, error: Exception) -> TenutoError:
        import httpx2

        if isinstance(error, httpx2.InvalidURL):
            return ConfigurationError(f"server URL {self.url!r}: {error}")
        words = str(error) or f"no answer in time ({type(error).__name__})"
        return Again(f"the server {self.url} cannot be reached: {words}")

    def _refusal(self, response: "httpx2.Response", body: bytes) -> TenutoError:
        """What a server's refusal is here."""
        status = response.status_code
        try:
            told = msgspec.json.decode(body, type=Told)
        except (msgspec.DecodeError, UnicodeDecodeError):
            told = Told()
        # A conflict that passes by itself: the same request is still being answered.
        if status in _AGAIN or (status == 409 and "retry-after" in response.headers):
            words = told.detail or response.reason_phrase
            return Again(
                f"the server {self.url} says {status}: {words}",
                after_seconds=retry_after(response.headers),
            )
        kind = PROBLEM_TYPES.get(told.type) or _KINDS.get(status)
        if kind is AlreadyDecided:
            return AlreadyDecided(
                told.detail,
                interrupt_id=told.interrupt_id,
                outcome=told.outcome,
                by=told.by,
                at_ms=at_ms(told.at),
            )
        if kind is Undecodable:
            return Undecodable(told.detail, seq=told.seq)
        if kind is AccessDenied:
            hint = "" if self._token else "; no token was sent"
            return AccessDenied(
                f"the server {self.url} refuses: {told.detail or response.reason_phrase}{hint}"
            )
        if kind is not None:
            return kind(told.detail or f"the server {self.url} says {status}")
        if response.has_redirect_location:
            place = response.headers["location"][:200]
            return ConfigurationError(f"the server {self.url} redirects to {place}; use that URL")
        if status in (404, 405):
            path = response.request.url.path
            return StoreError(
                f"the server {self.url} knows no {path}: it is another server, or one of an older version"
            )
        return StoreError(f"the server {self.url} says {status}: {told.detail or response.reason_phrase}")


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again while the server did not answer, within bounds. Raises `StoreError` in the end."""
    for attempt in range(1, limits.CLIENT_ATTEMPTS + 1):
        try:
            return await ask()
        except Again as error:
            if attempt == limits.CLIENT_ATTEMPTS:
                raise StoreError(str(error)) from error
            await asyncio.sleep(pause_seconds(attempt, error))
    raise AssertionError("the last attempt returns or raises")


def pause_seconds(attempt: int, error: Again) -> float:
    """How long to wait after this attempt: as the server asks, else longer each time; not all at once."""
    longest = limits.CLIENT_RETRY_LONGEST_SECONDS
    if error.after_seconds is not None:
        return min(error.after_seconds, longest)
    grown = min(limits.CLIENT_RETRY_FIRST_SECONDS * 2.0 ** (attempt - 1), longest)
    return grown * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, keeps no secret


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    """What is asked for. Raises `InvalidInput`."""
    given = {name: value for name, value in query.items() if value is not None}
    try:
        "".join(map(str, [*given, *given.values()])).encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"this cannot be asked for: {error}") from error
    return given


async def _some(response: "httpx2.Response", most_bytes: int) -> bytes:
    """The body. Raises `StoreError` when it is longer than that."""
    body = bytearray()
    async with contextlib.aclosing(response.aiter_bytes()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > most_bytes:
                raise StoreError(f"the server sent an answer of more than {most_bytes} bytes")
    return bytes(body)
