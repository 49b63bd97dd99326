"""The scripted provider, seen by a plain HTTP client, and as a process of its own."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import tenuto.testing
from tenuto.testing import Answer, ScriptedProvider, call
from tenuto.testing.provider import Said

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = ASK | {"stream": True, "stream_options": {"include_usage": True}}


async def post(provider: ScriptedProvider, body: Any = ASK) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await client.post(f"{provider.url}/chat/completions", json=body)


def events(text: str) -> list[Any]:
    frames = text.removesuffix("\n\n").split("\n\n")
    assert frames[-1] == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]


async def test_a_whole_answer() -> None:
    async with ScriptedProvider([Answer(text="a", reasoning="hm", calls=[call("f", n=1)])]) as provider:
        response = await post(provider)
        assert response.headers["content-type"] == "application/json"
        function = {"name": "f", "arguments": '{"n":1}'}
        message = {
            "role": "assistant",
            "content": "a",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "call_1_0", "type": "function", "function": function}],
        }
        assert response.json() == {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
        }


async def test_a_streamed_answer_in_pieces() -> None:
    answer = Answer(text="abc", calls=[{"name": "f", "arguments": {"n": 1}, "id": "k"}], piece_characters=2)
    async with ScriptedProvider([answer]) as provider:
        response = await post(provider, STREAM)
        assert response.headers["content-type"] == "text/event-stream"
        *chunks, usage = events(response.text)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert [delta["content"] for delta in deltas if "content" in delta] == ["", "ab", "c"]
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert [part["function"]["arguments"] for part in calls] == ["", '{"', 'n"', ":1", "}"]
        assert (calls[0]["id"], calls[0]["function"]["name"], calls[-1]["index"]) == ("k", "f", 0)
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "tool_calls"]
        assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 15)


async def test_usage_and_finish_reason_only_where_wanted() -> None:
    async with ScriptedProvider([Answer(text="a", finish="")]) as provider:
        chunks = events((await post(provider, ASK | {"stream": True})).text)
        assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


async def test_a_function_as_script_and_what_it_was_asked() -> None:
    async def script(body: dict[str, Any]) -> Said:
        await asyncio.sleep(0)
        return f"{len(body['messages'])} messages"

    async with ScriptedProvider(script) as provider:
        assert "1 messages" in (await post(provider)).text
        async with httpx2.AsyncClient() as client:
            assert (await client.get(f"{provider.url}/requests")).json() == [ASK]
            assert (await client.get(f"{provider.url}/models")).status_code == 404
        assert provider.requests[0].path == "/v1/chat/completions"
        assert provider.requests[0].headers["content-type"] == "application/json"


async def test_faults() -> None:
    script: list[Said] = [
        Answer(status=429, headers={"Retry-After": "3"}, body={"error": {"message": "slow down"}}),
        Answer(body="<html>", content_type="text/html"),
        Answer(text="a" * 100, cut_after=10),
        {"text": "from json", "piece_characters": 4},
    ]
    async with ScriptedProvider(script) as provider:
        response = await post(provider)
        assert (response.status_code, response.headers["retry-after"]) == (429, "3")
        assert (await post(provider)).text == "<html>"
        with pytest.raises(httpx2.RemoteProtocolError):
            await post(provider)
        assert "from json" in (await post(provider)).text
        response = await post(provider)
        assert (response.status_code, "no more answers" in response.text) == (400, True)


async def test_a_script_that_raises_is_told_to_the_client() -> None:
    async with ScriptedProvider(lambda body: body["nothing"]) as provider:
        response = await post(provider)
        assert (response.status_code, "KeyError" in response.text) == (500, True)


async def test_a_recorded_body_is_sent_as_it_is(tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.sse"
    recorded.write_bytes("data: é\r\n\r\n".encode())
    async with ScriptedProvider([Answer(file=str(recorded), piece_characters=1)]) as provider:
        assert (await post(provider)).content == recorded.read_bytes()


async def test_slow_answers_do_not_wait_for_each_other() -> None:
    async with ScriptedProvider(lambda _: Answer(text="a", delay_seconds=0.2)) as provider:
        started = time.monotonic()
        await asyncio.gather(*(post(provider) for _ in range(10)))
        assert time.monotonic() - started < 1.5


async def test_leaving_breaks_off_what_hangs() -> None:
    async with ScriptedProvider([Answer(text="a", hang_after=0)]) as provider:
        hanging = asyncio.create_task(post(provider))
        while not provider.requests:  # noqa: ASYNC110 - the server has no event for what is looked at
            await asyncio.sleep(0.005)
    with pytest.raises(httpx2.RemoteProtocolError):
        await hanging


def test_exports_are_lazy() -> None:
    code = "import sys, tenuto.testing; print(sorted({m.split('.')[0] for m in sys.modules}"
    code += " & {'fastapi', 'starlette', 'uvicorn', 'openai', 'pydantic'}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    for name in tenuto.testing.__all__:
        assert getattr(tenuto.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tenuto.testing.nothing


# -- as a process ------------------------------------------------------------------------------------

SCRIPT = """
from tenuto.testing import Answer

def script(body):
    return Answer(text="from a function")
"""


def running(script: str, place: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-W", "error", "-m", "tenuto.testing.provider", script]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("name", "words"), [("plan:script", "from a function"), ("plan.json", "from a file")]
)
def test_as_a_process(tmp_path: Path, name: str, words: str, stop: signal.Signals) -> None:
    (tmp_path / "plan.py").write_text(SCRIPT)
    (tmp_path / "plan.json").write_text(json.dumps(["from a file", {"text": "again", "status": 200}]))
    for process, url in running(name, tmp_path):
        assert words in httpx2.post(f"{url}/chat/completions", json=ASK).text
        process.send_signal(stop)
        out, err = process.communicate(timeout=10)
        assert (process.returncode, out.strip(), err) == (0, "", "")


@pytest.mark.parametrize("name", ["nowhere:script", "plan:nothing", "nowhere.json"])
def test_a_script_that_is_not_there(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "tenuto.testing.provider", name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "no script at" in done.stderr) == (2, True)
