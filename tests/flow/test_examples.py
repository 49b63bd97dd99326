"""The flow examples as a person starts them: as programs, offline, and against a provider over HTTP."""

import asyncio
import json
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tenuto.testing import ScriptedProvider, call

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).resolve().parents[2]


async def run(
    *arguments: str, place: Path | None = None, said: str = "", provider: str = ""
) -> tuple[int | None, str, str]:
    """Exit code, standard output, standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PROVIDER_")}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "PYTHONIOENCODING": "utf-8"}
    if provider:
        environment |= {"PROVIDER_URL": provider, "PROVIDER_MODEL": "offline", "PROVIDER_API_KEY": "none"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        cwd=place or ROOT,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(said.encode()), 50)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("name", ["flow_chat", "group_talk", "flow_approval"])
async def test_help_says_what_it_is(name: str) -> None:
    code, out, err = await run(f"examples.{name}", "--help")
    assert (code, err) == (0, "")
    assert "Commander" in out
    assert f"python -m examples.{name}" in out


async def test_flow_chat_reads_prompts_from_a_pipe() -> None:
    code, out, err = await run("examples.flow_chat", said="What is the weather in Paris and Beijing?\nHi\n")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "you: What is the weather in Paris and Beijing?",
        "Looking at Paris …",
        "Looking at Beijing …",
        "It has 22 degrees celsius in Paris and 10 degrees celsius in Beijing.",
        "you: Hi",
        "I know the weather in Paris, Beijing and San Francisco.",
        "goodbye",
    ]


async def test_flow_chat_with_a_provider() -> None:
    """Over HTTP with the OpenAI library: what the tools found goes back to the model, well formed."""
    asked = call("get_current_weather", to_user="One moment.", location="Paris")
    async with ScriptedProvider([asked, "22 degrees.", "Goodbye."]) as provider:
        code, out, err = await run("examples.flow_chat", "Weather?", "Thanks", provider=provider.url)
        bodies = [request.body for request in provider.requests]
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "you: Weather?",
        "One moment.",
        "22 degrees.",
        "you: Thanks",
        "Goodbye.",
        "goodbye",
    ]
    assert [message["role"] for message in bodies[2]["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    _, made, result = bodies[1]["messages"]
    assert made["content"] == "One moment."
    assert json.loads(made["tool_calls"][0]["function"]["arguments"]) == {"location": "Paris"}
    assert result["tool_call_id"] == made["tool_calls"][0]["id"]
    assert json.loads(result["content"])["temperature"] == 22


async def test_flow_chat_survives_a_provider_that_refuses() -> None:
    async with ScriptedProvider(["Hello."]) as provider:
        code, out, err = await run("examples.flow_chat", "Hi", "Again", provider=provider.url)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:3] == ["you: Hi", "Hello.", "you: Again"]
    assert lines[3].startswith("[no answer: ")
    assert lines[-1] == "goodbye"


async def test_group_talk_gives_the_floor_to_one_at_a_time() -> None:
    code, out, err = await run("examples.group_talk", "Shall we?", "--speeches", "4", "--seed", "3")
    assert (code, err) == (0, "")
    first, *speeches, last = out.splitlines()
    assert first == "HOST: Shall we?"
    speakers = [line.split(":")[0] for line in speeches]
    assert set(speakers) <= {"Ada", "Basil", "Cleo"}
    assert all(one != following for one, following in pairwise(speakers))
    assert last == ("The time is up." if len(speeches) == 4 else "Nobody has anything to add.")


async def test_group_talk_with_a_provider() -> None:
    def answer(body: dict[str, object]) -> str:
        messages = body["messages"]
        assert isinstance(messages, list)
        if messages[-1]["content"].endswith("you have the floor."):
            return "I have something to say."
        return "Can I speak?"

    async with ScriptedProvider(answer) as provider:
        code, out, err = await run("examples.group_talk", "--speeches", "2", provider=provider.url)
    assert (code, err) == (0, "")
    assert [line.partition(": ")[2] for line in out.splitlines()[1:-1]] == ["I have something to say."] * 2
    assert out.splitlines()[-1] == "The time is up."


async def test_flow_approval_finds_its_thread_again_in_a_new_process(tmp_path: Path) -> None:
    waiting = 'refund_order {"order_id":"17"}: nobody is here to decide'
    for _ in range(2):
        code, out, err = await run("examples.flow_approval", "17", place=tmp_path)
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == waiting
        assert "waits; nothing is lost" in out
    letter = "letter to the customer: The order is refunded (refund R-17)."
    code, out, err = await run("examples.flow_approval", "17", "--decide", "approve", place=tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines() == ['refund_order {"order_id":"17"}: approve', letter]
    code, out, err = await run("examples.flow_approval", "17", "--decide", "approve", place=tmp_path)
    assert out.splitlines() == [letter], "it is done, and not done again"


async def test_flow_approval_can_be_refused(tmp_path: Path) -> None:
    code, out, err = await run("examples.flow_approval", "18", "--decide", "reject", place=tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "letter to the customer: The order is not refunded."
