"""The endpoint client against a real HTTP server: what is asked again, how long is waited, what is shown."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import ConfigurationError, ModelError
from tenuto.limits import MAX_PROVIDER_ERROR_CHARACTERS
from tenuto.messages import (
    AttemptFailed,
    CallDelta,
    CallRequest,
    Delta,
    Reply,
    Request,
    TextDelta,
    Usage,
    UserMessage,
)
from tenuto.models.openai import OpenAIModel, Patience, retry_after
from tenuto.testing import Answer, ScriptedProvider, call

ASK = Request([UserMessage("hi")])
KEY = "sk-live/0123+456=="


class Asked:
    """A model in front of a scripted provider, with what it waited and what it showed."""

    def __init__(self, provider: ScriptedProvider, **settings: Any) -> None:
        self.provider = provider
        self.waits: list[float] = []
        self.shown: list[Delta] = []
        patience = Patience(
            sleep=self._sleep, fraction=lambda: 0.0, **settings.pop("patience", {"idle_seconds": 5.0})
        )
        url = settings.pop("url", provider.url)
        self.model = OpenAIModel("m", url=url, patience=patience, **settings)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def reply(self) -> Reply:
        return await self.model.reply(ASK, self.shown.append)

    async def failure(self) -> ModelError:
        with pytest.raises(ModelError) as caught:
            await self.reply()
        return caught.value


@contextlib.asynccontextmanager
async def asked(script: Any, **settings: Any) -> AsyncIterator[Asked]:
    async with ScriptedProvider(script) as provider:
        asked = Asked(provider, **settings)
        yield asked
        await asked.model.aclose()


def refusing(status: int, **rest: Any) -> Answer:
    return Answer(status=status, body={"error": {"message": f"no {status}"}}, **rest)


async def test_a_streamed_reply() -> None:
    answer = Answer(text="Hello you", calls=[call("f", n=1)], piece_characters=3)
    async with asked([answer], api_key=KEY, parameters={"temperature": 0}) as it:
        assert await it.reply() == Reply(
            text="Hello you",
            calls=(CallRequest("f", '{"n":1}', "call_1_0"),),
            usage=Usage(input=10, output=5),
            model="m",
            finish="tool_calls",
        )
        texts = [TextDelta("Hel"), TextDelta("lo "), TextDelta("you")]
        assert it.shown == texts + [CallDelta(0, "f", piece) for piece in ("", '{"n', '":1', "}")]
        received = it.provider.requests[0]
        assert received.path == "/v1/chat/completions"
        assert received.headers["authorization"] == f"Bearer {KEY}"
        assert received.body["temperature"] == 0
        assert received.body["stream"] is True


async def test_a_whole_reply() -> None:
    async with asked(["Hello"], parameters={"stream": False}) as it:
        assert (await it.reply()).text == "Hello"
        assert it.provider.requests[0].body["stream"] is False


async def test_without_a_key_none_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what the SDK would take from the environment: it is meant for another provider."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-other")
    async with asked(["a"], headers={"X-Title": "tests"}) as it:
        await it.reply()
        headers = it.provider.requests[0].headers
        assert "authorization" not in headers
        assert "other" not in str(headers)
        assert headers["x-title"] == "tests"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_asked_again(status: int) -> None:
    async with asked([refusing(status), "a"]) as it:
        assert (await it.reply()).text == "a"
        assert it.waits == [0.25]
        [failed] = [delta for delta in it.shown if isinstance(delta, AttemptFailed)]
        assert f"{status}: no {status}" in failed.error
        assert failed.wait_seconds == 0.25


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
async def test_never_asked_again(status: int) -> None:
    async with asked([refusing(status, headers={"Location": "/elsewhere"})]) as it:
        error = await it.failure()
        assert (error.status, error.retryable, error.attempts) == (status, False, 1)
        assert (f"no {status}" if status != 301 else "redirects to /elsewhere") in str(error)
        assert len(it.provider.requests) == 1
        assert it.waits == []
        assert it.shown == []


async def test_an_empty_account_is_final_and_a_failed_call_is_not() -> None:
    quota = Answer(status=429, body={"error": {"message": "pay", "code": "insufficient_quota"}})
    async with asked([quota]) as it:
        assert not (await it.failure()).retryable
    unread = Answer(status=400, body={"error": {"message": "unreadable", "code": "tool_use_failed"}})
    async with asked([unread, "a"]) as it:
        assert (await it.reply()).text == "a"


async def test_attempts_are_bounded_and_wait_longer_each_time() -> None:
    async with asked(lambda _: refusing(503)) as it:
        error = await it.failure()
        assert len(it.provider.requests) == 4
        assert it.waits == [0.25, 0.5, 1.0]
        assert (error.status, error.retryable, error.attempts) == (503, True, 4)
        assert str(error) == f"{it.provider.url}/chat/completions: 503: no 503"


@pytest.mark.parametrize(
    ("said", "wait"), [("7", 7.0), ("0", 0.25), ("100", 100.0), ("soon", 0.25), ("1.5", 1.5)]
)
async def test_retry_after(said: str, wait: float) -> None:
    async with asked([refusing(429, headers={"Retry-After": said}), "a"]) as it:
        await it.reply()
        assert it.waits == [wait]


async def test_a_provider_that_asks_for_longer_than_anybody_waits_is_not_asked_again() -> None:
    async with asked([refusing(429, headers={"Retry-After": "3600"}), "a"]) as it:
        assert (await it.failure()).status == 429
        assert it.waits == []
        assert len(it.provider.requests) == 1


def test_retry_after_in_all_its_forms() -> None:
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    found = retry_after({"retry-after": in_a_minute})
    assert found is not None
    assert 58 <= found <= 60
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0
    assert retry_after({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    for nonsense in ({}, {"retry-after": ""}, {"retry-after": "-5"}, {"retry-after": "nan"}):
        assert retry_after(nonsense) is None


def test_jitter_stays_between_its_bounds() -> None:
    low, high = Patience(fraction=lambda: 0.0), Patience(fraction=lambda: 1.0)
    assert [low.wait_seconds(n, None) for n in (1, 2, 3)] == [0.25, 0.5, 1.0]
    assert [high.wait_seconds(n, None) for n in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert high.wait_seconds(20, None) == 30.0
    assert (low.wait_seconds(1, 10.0), high.wait_seconds(1, 10.0)) == (10.0, 11.0)


@pytest.mark.parametrize(
    "broken",
    [
        Answer(text="abc", cut_after=0),
        Answer(text="abc", cut_after=250),
        Answer(calls=[call("f", n=1)], cut_after=400),
        Answer(body='data: {"choices":[{"delta":{"content":"abc"}}]}\n\n'),
        Answer(text=""),
        Answer(body="<html>", content_type="text/html"),
        Answer(body="data: {nonsense\n\n"),
        Answer(body={"error": {"message": "upstream", "code": 502}}),
    ],
)
async def test_a_broken_answer_is_asked_again(broken: Answer) -> None:
    async with asked([broken, "whole"]) as it:
        assert (await it.reply()).text == "whole"
        assert isinstance(it.shown[-2], AttemptFailed)
        assert it.shown[-1] == TextDelta("whole")


async def test_a_break_after_the_finish_reason_loses_nothing() -> None:
    done = b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    async with asked([Answer(body=done.decode() + ": more\n\n", cut_after=len(done))]) as it:
        assert (await it.reply()).text == "a"


async def test_silence_is_a_failed_attempt_and_its_connection_is_closed() -> None:
    async with asked([Answer(text="abc", hang_after=0), "a"], patience={"idle_seconds": 0.1}) as it:
        assert (await it.reply()).text == "a"
        assert "ReadTimeout" in str(it.shown[0])
        await until(lambda: it.provider.broken_off == 1)


async def test_silence_after_the_end_is_not_waited_for() -> None:
    async with asked([Answer(text="abc", hang_after=10_000)], patience={"idle_seconds": 30.0}) as it:
        async with asyncio.timeout(5):
            assert (await it.reply()).text == "abc"


async def test_an_answer_that_never_ends_stops_at_the_total_time() -> None:
    endless = Answer(body=": still here\n\n" * 5_000, piece_characters=14, pause_seconds=0.01)
    async with asked([endless], patience={"total_seconds": 0.3, "idle_seconds": 5.0}) as it:
        error = await it.failure()
        assert "no reply within 0.3 seconds" in str(error)
        assert error.retryable


async def test_no_server() -> None:
    async with ScriptedProvider([]) as provider:
        it = Asked(provider)
    error = await it.failure()
    assert "connection failed: ConnectError" in str(error)
    assert (error.status, error.attempts) == (None, 4)
    await it.model.aclose()


async def test_cancelling_closes_the_connection() -> None:
    async with asked([Answer(text="abc", hang_after=200)]) as it:
        task = asyncio.create_task(it.reply())
        await until(lambda: len(it.provider.requests) == 1)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: it.provider.broken_off == 1)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - the server has no event for what is looked at
            await asyncio.sleep(0.005)


async def test_connections_are_used_again() -> None:
    ports = set()

    class Watched(ScriptedProvider):
        async def _application(self, scope: Any, receive: Any, send: Any) -> None:
            ports.add(scope["client"][1])
            await super()._application(scope, receive, send)

    async with Watched(lambda _: "a") as provider:
        it = Asked(provider)
        for _ in range(5):
            await it.reply()
        await it.model.aclose()
    assert len(ports) == 1


async def test_first_questions_at_once_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    import openai

    made = []
    make = openai.DefaultAsyncHttpx2Client
    monkeypatch.setattr(openai, "DefaultAsyncHttpx2Client", lambda **more: made.append(1) or make(**more))
    async with asked(lambda _: "a") as it:
        replies = await asyncio.gather(*(it.reply() for _ in range(20)))
    assert [reply.text for reply in replies] == ["a"] * 20
    assert len(made) == 1


async def test_the_key_is_in_no_error() -> None:
    """Nor its other spellings, nor the end of it that a cut would leave."""
    echoed = (
        f"bad key {KEY}, sk-live%2F0123%2B456%3D%3D, sk-live\\/0123+456== {'x' * 1_950}{KEY}{'y' * 9_000}"
    )
    for body in ({"error": {"message": echoed}}, echoed):
        async with asked([Answer(status=401, body=body)], api_key=KEY) as it:
            error = str(await it.failure())
            assert "0123" not in error
            assert "456" not in error
            assert error.count("[redacted]") >= 3
            assert len(error) <= MAX_PROVIDER_ERROR_CHARACTERS + 1
            assert KEY not in repr(it.model)
    async with asked([refusing(500, headers={}), Answer(status=400, body=echoed)], api_key=KEY) as it:
        await it.failure()
        assert "0123" not in str(it.shown)


async def test_an_endless_error_is_read_up_to_a_bound() -> None:
    endless = Answer(status=400, body="x" * 10_000_000, piece_characters=10_000)
    async with asked([endless]) as it:
        assert len(str(await it.failure())) == MAX_PROVIDER_ERROR_CHARACTERS + 1


async def test_stream_options_are_left_out_where_they_are_refused() -> None:
    def old(body: dict[str, Any]) -> Any:
        return refusing_options if "stream_options" in body else "a"

    refusing_options = Answer(status=400, body={"error": {"message": "Unknown parameter: stream_options"}})
    async with asked(old) as it:
        assert (await it.reply()).text == "a"
        assert (await it.reply()).text == "a"
        assert ["stream_options" in request.body for request in it.provider.requests] == [True, False, False]
        assert it.waits == []


async def test_urls_of_every_form() -> None:
    async with ScriptedProvider(lambda _: "a") as provider:
        root = provider.url.removesuffix("/v1")
        for url, path in [
            (f"{root}/v1", "/v1/chat/completions"),
            (f"{root}/v1/", "/v1/chat/completions"),
            (f"{root}/v1/chat/completions", "/v1/chat/completions"),
            (f" {root}/v1/chat/completions/ ", "/v1/chat/completions"),
            (root, "/chat/completions"),
            (
                f"{root}/openai/deployments/gpt/chat/completions?api-version=2024-12-01",
                "/openai/deployments/gpt/chat/completions?api-version=2024-12-01",
            ),
            (f"{root}/v1?key=a%2Fb", "/v1/chat/completions?key=a%2Fb"),
        ]:
            it = Asked(provider, url=url, api_key=KEY)
            await it.reply()
            assert provider.requests[-1].path == path
            assert ("api-key" in provider.requests[-1].headers) is ("deployments" in url)
            await it.model.aclose()


@pytest.mark.parametrize(
    "url", ["", "api.openai.com/v1", "ftp://a/v1", "http://", "http://a:port", "http://[a", "sk-1"]
)
def test_a_url_that_cannot_work(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"like https://api\.openai\.com/v1") as caught:
        OpenAIModel("m", url=url)
    assert "sk-1" not in str(caught.value)


def test_a_key_that_cannot_work() -> None:
    with pytest.raises(ConfigurationError) as caught:
        OpenAIModel("m", url="http://a/v1", api_key="sk-secret\nx")
    assert "secret" not in str(caught.value)


def test_from_the_environment() -> None:
    found = {"PROVIDER_URL": "http://localhost:11434/v1", "PROVIDER_MODEL": "qwen3"}
    model = OpenAIModel.from_environment(found)
    assert model.name == "qwen3"
    assert repr(model) == "OpenAIModel('qwen3', url='http://localhost:11434/v1/chat/completions')"
    for missing in found:
        with pytest.raises(ConfigurationError, match=rf"{missing} is not set; for example: {missing}="):
            OpenAIModel.from_environment({**found, missing: " "})


def test_one_model_on_several_event_loops() -> None:
    model = OpenAIModel("m", url="http://localhost", patience=Patience(attempts=1))

    async def ask() -> str:
        async with ScriptedProvider(["a"]) as provider:
            model._url = f"{provider.url}/chat/completions"
            try:
                return (await model.reply(ASK)).text
            finally:
                await model.aclose()

    assert [asyncio.run(ask()) for _ in range(2)] == ["a", "a"]


async def test_many_questions_at_once() -> None:
    async with asked(lambda body: Answer(text="a" * 100, piece_characters=1)) as it:
        replies = await asyncio.gather(*(it.reply() for _ in range(50)))
        assert {reply.text for reply in replies} == {"a" * 100}


@pytest.mark.parametrize("name", ["openai-parallel-tool-calls.sse", "zai-reasoning-stream.sse"])
async def test_a_recorded_stream_over_http(shared: Path, name: str) -> None:
    file = str(shared / "provider-streams" / name)
    async with asked([Answer(file=file, piece_characters=size) for size in (0, 100, 7)]) as it:
        replies = [await it.reply() for _ in range(3)]
        assert replies[0] == replies[1] == replies[2]


def test_the_sdk_is_imported_with_the_first_question_only() -> None:
    code = "import sys, tenuto.models, tenuto.models.openai as o; o.OpenAIModel('m', url='http://a/v1')"
    code += "; print({m.split('.')[0] for m in sys.modules} & {'openai', 'httpx2', 'pydantic', 'anyio'})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"
