"""Any OpenAI-compatible chat-completions endpoint, streamed, through the openai SDK as transport.

The SDK makes the request and holds the connections; it neither retries nor decodes here. It takes half a
second to import, so that happens in a thread, at the first question. Retries are bounded and few: the
durable retry is the next worker that asks again.
"""

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import msgspec

from tenuto.errors import ConfigurationError, ModelError
from tenuto.limits import (
    MAX_PROVIDER_ERROR_BYTES,
    MAX_REPLY_BYTES,
    MODEL_ATTEMPTS,
    MODEL_CONNECT_SECONDS,
    MODEL_IDLE_SECONDS,
    MODEL_RETRY_FIRST_SECONDS,
    MODEL_RETRY_LONGEST_SECONDS,
    MODEL_TOTAL_SECONDS,
)
from tenuto.messages import AttemptFailed, Delta, Reply, Request
from tenuto.models.failure import body_failure, bounded
from tenuto.models.reader import ReplyReader
from tenuto.models.wire import request_body

if TYPE_CHECKING:
    import httpx2
    from openai import AsyncOpenAI

_DRAIN_SECONDS = 0.1
_SHORTEST_SECRET = 4


@dataclass(frozen=True)
class Patience:
    """How long to wait for a provider, and how often to ask it again.

    `idle_seconds` is the time between two pieces of an answer; `total_seconds` bounds the whole question
    with all its attempts and waits. `sleep` and `fraction` (uniform in [0, 1)) are for tests.
    """

    connect_seconds: float = MODEL_CONNECT_SECONDS
    idle_seconds: float = MODEL_IDLE_SECONDS
    total_seconds: float = MODEL_TOTAL_SECONDS
    attempts: int = MODEL_ATTEMPTS
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    fraction: Callable[[], float] = random.random

    def wait_seconds(self, attempt: int, retry_after: float | None) -> float:
        """Before the attempt after `attempt` (from 1): never sooner than the provider asks for."""
        backoff = MODEL_RETRY_FIRST_SECONDS * 2 ** (attempt - 1) * (0.5 + self.fraction() / 2)
        asked = (retry_after or 0.0) * (1 + self.fraction() / 10)
        return float(max(min(backoff, MODEL_RETRY_LONGEST_SECONDS), asked))


class OpenAIModel:
    """One model behind one endpoint. Any number of questions may run at once, on any event loop.

    `url` is a base URL or that of `/chat/completions` itself, with a query if one is needed. `parameters`
    are sent with each request, and those of the request win; `{"stream": False}` asks for whole answers.
    `place` is the endpoint as it may be shown: without user, password and query.
    Raises `ConfigurationError` for a URL or a key that cannot work.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,
        api_key: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        patience: Patience | None = None,
    ) -> None:
        if not name:
            raise ConfigurationError("a model needs a name")
        self.name = name
        self._url, self.place = _endpoint(url)
        self._key = (api_key or "").strip()
        if not self._key.isascii() or not self._key.isprintable():
            raise ConfigurationError("the API key has characters that no HTTP header can carry")
        self._secrets = _spellings(self._key, urlsplit(self._url).query, urlsplit(self._url).password)
        self._parameters = dict(parameters or {})
        self._headers = dict(headers or {})
        self._patience = patience or Patience()
        self._ask_for_usage = True
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = WeakKeyDictionary()
        self._making = threading.Lock()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "OpenAIModel":
        """The model that `PROVIDER_URL`, `PROVIDER_MODEL` and `PROVIDER_API_KEY` name.

        The key may be missing, as local servers want none. Raises `ConfigurationError` that says what to set.
        """
        found = os.environ if environment is None else environment
        examples = {"PROVIDER_URL": "https://api.openai.com/v1", "PROVIDER_MODEL": "gpt-5-mini"}
        for variable, example in examples.items():
            if not found.get(variable, "").strip():
                raise ConfigurationError(f"{variable} is not set; for example: {variable}={example}")
        name, url = found["PROVIDER_MODEL"].strip(), found["PROVIDER_URL"].strip()
        return cls(name, url=url, api_key=found.get("PROVIDER_API_KEY"))

    def __repr__(self) -> str:
        return f"OpenAIModel({self.name!r}, url={self.place!r})"

    async def aclose(self) -> None:
        """Close the connections of this event loop. May be called again, and asked again afterwards."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    async def reply(self, request: Request, emit: Callable[[Delta], None] | None = None) -> Reply:
        """As `tenuto.messages.Model` says. Before each new attempt `emit` gets an `AttemptFailed`.

        Tried again are 408, 409, 429, 5xx, connections that fail, answers that stop or stay empty, and calls
        that the provider could not parse; other refusals are final.
        """
        attempt = 0
        failure: ModelError | None = None
        patience = self._patience
        try:
            async with asyncio.timeout(patience.total_seconds):
                while True:
                    attempt += 1
                    try:
                        return await self._attempt(request, emit)
                    except ModelError as error:
                        failure = self._failure(error, attempt)
                    if not failure.retryable or attempt >= patience.attempts:
                        raise failure
                    wait = patience.wait_seconds(attempt, failure.retry_after_seconds)
                    if wait >= patience.total_seconds:
                        raise failure  # asked to come back when nobody waits any more
                    if emit is not None:
                        emit(AttemptFailed(error=str(failure), wait_seconds=wait))
                    await patience.sleep(wait)
        except TimeoutError as error:
            words = f"no reply within {patience.total_seconds:g} seconds"
            cause = f"{words}; before that: {failure}" if failure else words
            raise self._failure(ModelError(cause, retryable=True), attempt) from error

    async def listed(self, seconds: float) -> tuple[int, tuple[str, ...]]:
        """Ask which models the endpoint has, which costs nothing: its HTTP status, and their names if told.

        Raises `ModelError` when it does not answer within `seconds`.
        """
        import httpx2

        parts = urlsplit(self._url)
        url = urlunsplit(parts._replace(path=parts.path.removesuffix("/chat/completions") + "/models"))
        body = bytearray()
        try:
            async with (
                asyncio.timeout(seconds),
                httpx2.AsyncClient(timeout=seconds) as client,
                client.stream("GET", url, headers=self._credentials() | self._headers) as response,
            ):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_REPLY_BYTES:
                        break
        except (httpx2.HTTPError, OSError, TimeoutError) as error:
            words = str(error) or f"no answer within {seconds:g} s"
            raise self._failure(ModelError(f"connection failed: {words}", retryable=True), 1) from error
        try:
            return response.status_code, tuple(row.id for row in msgspec.json.decode(body, type=_Listed).data)
        except msgspec.DecodeError:
            return response.status_code, ()

    def _credentials(self) -> dict[str, str]:
        if not self._key:
            return {}
        azure = {"api-key": self._key} if "/openai/deployments/" in self._url else {}
        return {"Authorization": f"Bearer {self._key}"} | azure

    async def _attempt(self, request: Request, emit: Callable[[Delta], None] | None) -> Reply:
        body = request_body(self.name, request, self._parameters, self._ask_for_usage)
        try:
            return await self._ask(body, emit)
        except ModelError as error:
            # Older servers know no stream_options: go on without the token counts.
            if not (self._ask_for_usage and error.status in {400, 422} and "stream_options" in str(error)):
                raise
        self._ask_for_usage = False
        return await self._ask(request_body(self.name, request, self._parameters, usage=False), emit)

    async def _ask(self, body: bytes, emit: Callable[[Delta], None] | None) -> Reply:
        import anyio
        import httpx2
        from openai import APIConnectionError, AsyncStream, Omit

        client = await self._client()
        reader = ReplyReader(emit)
        headers: dict[str, str | Omit] = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Authorization": Omit(),
            # The SDK would take these two from the environment and tell them to any endpoint.
            "OpenAI-Organization": Omit(),
            "OpenAI-Project": Omit(),
        }
        response: httpx2.Response | None = None
        try:
            answer: object = await client.post(
                self._url,
                cast_to=httpx2.Response,  # the SDK then hands out the response unread
                content=body,
                options={"headers": headers | self._credentials() | self._headers},
                stream=True,
                stream_cls=AsyncStream[Any],
            )
            assert isinstance(answer, httpx2.Response)
            response = answer
            chunks = response.aiter_bytes()
            async for chunk in chunks:
                reader.feed(chunk)
                if reader.done:
                    await _drain(chunks)
        # EndOfStream: a TLS connection that was cut comes through unmapped.
        except (APIConnectionError, httpx2.HTTPError, anyio.EndOfStream, OSError) as error:
            if not reader.complete:
                cause = error.__cause__ or error
                words = f"{type(cause).__name__} {cause}".strip()
                raise ModelError(f"connection failed: {words}", retryable=True) from error
        except ModelError as error:
            if response is not None and error.retry_after_seconds is None:
                error.retry_after_seconds = retry_after(response.headers)
            raise
        finally:
            if response is not None:
                await response.aclose()
        return reader.finish()

    async def _client(self) -> "AsyncOpenAI":
        """This event loop's own: connections belong to the loop that opened them."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = await asyncio.to_thread(self._first_client, loop)
        return client

    def _first_client(self, loop: asyncio.AbstractEventLoop) -> "AsyncOpenAI":
        # A worker that starts asks for many threads at once, and reading the certificates takes long.
        with self._making:
            client = self._clients.get(loop)
            if client is None:
                client = self._clients[loop] = self._make_client()
            return client

    def _make_client(self) -> "AsyncOpenAI":
        import httpx2
        from openai import AsyncOpenAI, DefaultAsyncHttpx2Client

        patience = self._patience
        timeout = httpx2.Timeout(patience.idle_seconds, connect=patience.connect_seconds)
        # No redirects: they turn a POST into a GET, and take the key to another host.
        transport = DefaultAsyncHttpx2Client(
            timeout=timeout, follow_redirects=False, event_hooks={"response": [_refuse]}
        )
        return AsyncOpenAI(
            api_key="unused", base_url=self._url, max_retries=0, timeout=timeout, http_client=transport
        )

    def _failure(self, error: ModelError, attempt: int) -> ModelError:
        """The error to show: with the endpoint, without secrets, bounded. Redacted before it is cut."""
        message = str(error)
        for secret in self._secrets:
            message = message.replace(secret, "[redacted]")
        return ModelError(
            bounded(f"{self.place}: {message}"),
            retryable=error.retryable,
            status=error.status,
            retry_after_seconds=error.retry_after_seconds,
            attempts=attempt,
        )


class _ListedModel(msgspec.Struct):
    id: str


class _Listed(msgspec.Struct):
    data: list[_ListedModel]


async def _refuse(response: "httpx2.Response") -> None:
    """Turns a refusal into our error here, where its body can be read up to a bound; the SDK reads it all."""
    import httpx2

    if response.is_success:
        return
    body = bytearray()
    try:
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) >= MAX_PROVIDER_ERROR_BYTES:
                break
    except httpx2.HTTPError:
        pass  # the status stands, whatever became of the body
    if response.has_redirect_location:
        body = bytearray(f"it redirects to {response.headers['location']}", "utf-8")
    error = body_failure(bytes(body[:MAX_PROVIDER_ERROR_BYTES]), response.status_code)
    error.retry_after_seconds = retry_after(response.headers)
    raise error


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """A connection can be used again only if its answer was read to the end, which is a few bytes away."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in chunks:
                pass


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as RFC 9110 says it, a number or a date; `retry-after-ms` is OpenAI's and Azure's."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        said = headers.get("retry-after", "").strip()
        if not said:
            return None
        if said.replace(".", "", 1).isdigit():
            return float(said)
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _endpoint(url: str) -> tuple[str, str]:
    """The URL to post to, and the part of it that may be shown: no user, no password, no query."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, usable = urlsplit(""), False
    if not usable or any(character.isspace() for character in url):
        # Without the value: a key that was set in the place of the URL is not to be shown.
        raise ConfigurationError("the URL of a provider is like https://api.openai.com/v1 and names a host")
    path = parts.path.rstrip("/")
    if not path.endswith("/chat/completions"):
        path += "/chat/completions"
    place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, "")), place


def _spellings(*secrets: str | None) -> tuple[str, ...]:
    """Each secret as it may come back inside a message: as it is, percent-encoded, escaped in JSON."""
    known = {secret for secret in secrets if secret and len(secret) >= _SHORTEST_SECRET}
    spelled = {form for secret in known for form in (secret, quote(secret, ""), secret.replace("/", "\\/"))}
    return tuple(sorted(spelled, key=len, reverse=True))
