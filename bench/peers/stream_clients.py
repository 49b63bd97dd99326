"""Processor time per delta, from the socket to whoever reads the stream in this process.

    python stream_clients.py CLIENT PORT [--turns 5] [--deltas 2000] --database FILE

Each client is asked once to warm up, then `turns` times. `httpx` and `openai` are floors: nothing of an
agent in them. Tenuto's subscriber is `Runtime.follow`, and its reply is in the log, fsynced, each time.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from measuring import Meter

Ask = Callable[[], Awaitable[int]]
"""One question; how many deltas came."""

MESSAGES = [{"role": "user", "content": "go"}]


@asynccontextmanager
async def httpx_bytes(url: str, options: argparse.Namespace) -> AsyncIterator[Ask]:
    """The least that can be done: frames cut from the raw bytes, each decoded with the json module."""
    import httpx

    body = {"model": "scripted", "messages": MESSAGES, "stream": True}

    async def ask() -> int:
        count, rest = 0, b""
        async with client.stream("POST", f"{url}/chat/completions", json=body) as response:
            async for chunk in response.aiter_raw():
                *frames, rest = (rest + chunk).split(b"\n\n")
                for frame in frames:
                    if frame[6:] != b"[DONE]":
                        choices = json.loads(frame[6:])["choices"]
                        count += bool(choices and choices[0]["delta"].get("content"))
        return count

    async with httpx.AsyncClient() as client:
        yield ask


@asynccontextmanager
async def openai_sdk(url: str, options: argparse.Namespace) -> AsyncIterator[Ask]:
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="none")

    async def ask() -> int:
        count = 0
        stream = await client.chat.completions.create(model="scripted", messages=MESSAGES, stream=True)
        async for event in stream:
            count += bool(event.choices and event.choices[0].delta.content)
        return count

    yield ask


@asynccontextmanager
async def langgraph(url: str, options: argparse.Namespace) -> AsyncIterator[Ask]:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    agent = create_agent(ChatOpenAI(model="scripted", base_url=url, api_key="none"), [])

    async def ask() -> int:
        count = 0
        async for event, _ in agent.astream({"messages": [("user", "go")]}, stream_mode="messages"):
            count += bool(event.content)
        return count

    yield ask


@asynccontextmanager
async def pydantic_ai(url: str, options: argparse.Namespace) -> AsyncIterator[Ask]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=url, api_key="none")
    agent = Agent(OpenAIChatModel("scripted", provider=provider))

    async def ask() -> int:
        count = 0
        async with agent.run_stream("go") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                count += 1
        return count

    yield ask


@asynccontextmanager
async def openai_agents(url: str, options: argparse.Namespace) -> AsyncIterator[Ask]:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=url, api_key="none")
    agent = Agent(name="bench", model=OpenAIChatCompletionsModel("scripted", client))

    async def ask() -> int:
        count = 0
        async for event in Runner.run_streamed(agent, "go").stream_events():
            count += event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        return count

    yield ask


@asynccontextmanager
async def tenuto(url: str, options: argparse.Namespace) -> AsyncIterator[Ask]:
    from tenuto import Agent, Runtime
    from tenuto.messages import TextDelta
    from tenuto.models.openai import OpenAIModel

    model = OpenAIModel("scripted", url=url, api_key="none")

    async def ask() -> int:
        count = 0
        thread_id = await runtime.start("bench", "go")
        async for item in runtime.follow(thread_id, rest=True):
            count += isinstance(item, TextDelta)
        state = await runtime.state(thread_id)
        assert state.status == "completed", state.status
        return count

    database = f"sqlite:///{options.database}"
    async with Runtime([Agent("bench", "Talk.")], database=database, model=model) as runtime:
        yield ask
    await model.aclose()


CLIENTS = {
    "httpx": httpx_bytes,
    "openai": openai_sdk,
    "langgraph": langgraph,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "tenuto": tenuto,
}


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    async with CLIENTS[options.client](f"http://127.0.0.1:{options.port}{options.path}", options) as ask:
        await ask()
        meter = Meter()
        counts = [await ask() for _ in range(options.turns)]
        result = meter.stop()
    # Some send an empty first delta on, some join the last two; a client that skips more does less work.
    fewest = min(counts)
    assert fewest >= 0.99 * options.deltas, f"only {fewest} of {options.deltas} deltas came through"
    return result | {"deltas": options.deltas * options.turns, "seen": fewest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("client", choices=CLIENTS)
    parser.add_argument("port", type=int)
    parser.add_argument("--path", default="/v1")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--deltas", type=int, default=2000)
    parser.add_argument("--database", default=":memory:")
    print("RESULT " + json.dumps(asyncio.run(measure(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
