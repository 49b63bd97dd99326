"""A server over real HTTP in the test's own loop, with a scripted model and tools that keep a record."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
import uvicorn

from tenuto import Agent, Runtime, Settings, ask_person, tool, wait_until
from tenuto.errors import ModelError
from tenuto.messages import Model, Reply, Request, ToolMessage, Usage, UserMessage
from tenuto.server import Access, create_app
from tenuto.testing import ScriptedModel, call

APPROVER = {"Authorization": "Bearer s3cret-of-ana"}
SUBMITTER = {"Authorization": "Bearer token-of-bob"}


@dataclass
class Shop:
    """What the agent's tools did, and the gate that holds the slow one."""

    refunds: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def agent(self, name: str = "ops", **settings: Any) -> Agent:
        @tool(effect="read")
        async def get_order(order_id: str) -> str:
            return f"order {order_id}: paid"

        @tool(effect="read")
        async def wait_for_gate() -> str:
            await self.gate.wait()
            return "open"

        @tool(effect="once", approval=True)
        async def refund_order(order_id: str, reason: str) -> str:
            self.refunds.append(order_id)
            return f"refunded {order_id}"

        @tool(effect="once", approval=True, expires_after=0.3)
        async def refund_quickly(order_id: str) -> str:
            self.refunds.append(order_id)
            return f"refunded {order_id}"

        @tool(effect="once")
        async def explode() -> str:
            raise RuntimeError("the line broke off")

        tools = [get_order, wait_for_gate, refund_order, refund_quickly, explode, ask_person, wait_until]
        return Agent(name, tools=tools, max_steps=6, **settings)


def script(request: Request) -> Any:
    """Plays the story that the last message asks for; the results since then say how far it is."""
    place = max(i for i, message in enumerate(request.messages) if isinstance(message, UserMessage))
    task = request.messages[place].text
    results = [m.text for m in request.messages[place:] if isinstance(m, ToolMessage)]

    def refund(order_id: str) -> Any:
        return call("refund_order", order_id=order_id, reason="damaged")

    stories: dict[str, list[Any]] = {
        "hello": ["Hello."],
        "refund": [refund("17"), " ".join(results)],
        "two in turn": [refund("17"), refund("18"), " ".join(results)],
        "two at once": [[refund("17"), refund("18")], None, " ".join(results)],
        "mixed": [[refund("17"), call("ask_person", question="Which colour?")], None, " ".join(results)],
        "quickly": [call("refund_quickly", order_id="17"), " ".join(results)],
        "ask": [call("ask_person", question="Which colour?"), " ".join(results)],
        "explode": [call("explode"), " ".join(results)],
        "slow": [call("wait_for_gate"), " ".join(results)],
        "down": [ModelError("the provider is down: its secret words")],
        "sleep": [call("wait_until", until=(datetime.now(UTC) + timedelta(days=1)).isoformat()), "Awake."],
        "costly": [Reply(calls=(call("get_order", order_id="1"),), usage=Usage(input=20)), "Done."],
    }
    if task == "for ever":
        return call("get_order", order_id=str(len(results)))
    return stories[task][len(results)] if task in stories else f"You said: {task}"


@dataclass
class Place:
    """A running server: the client has its base URL and no token."""

    url: str
    client: httpx2.AsyncClient
    runtime: Runtime
    shop: Shop
    stopping: asyncio.Event

    async def task(self, task: str, **headers: str) -> httpx2.Response:
        return await self.client.post("/api/agent/tasks", json={"task": task}, headers=headers)

    async def started(self) -> str:
        """The id of the only thread, once it is there."""
        for _ in range(1000):
            if threads := await self.runtime.threads():
                return threads[0].id
            await asyncio.sleep(0.01)
        raise AssertionError("no thread was started")

    async def approve(self, task_id: str, approved: Any = True, **more: Any) -> httpx2.Response:
        body = {"task_id": task_id, "approved": approved, **more}
        return await self.client.post("/api/agent/approve", json=body, headers=APPROVER)

    async def resolve(self, interrupt_id: str, outcome: str, **more: Any) -> httpx2.Response:
        path = f"/v1/interrupts/{interrupt_id}/resolve"
        headers = APPROVER | {"Prefer": "wait=20"}
        return await self.client.post(path, json={"outcome": outcome, **more}, headers=headers)

    async def types(self, thread_id: str) -> list[str]:
        return [
            e["type"] for e in (await self.client.get(f"/v1/threads/{thread_id}/events")).json()["events"]
        ]


Serving = Callable[..., AbstractAsyncContextManager[Place]]


@pytest.fixture
def serving() -> Serving:
    @contextlib.asynccontextmanager
    async def start(
        access: Access | None = None,
        agent: str = "ops",
        model: Model | None = None,
        database: str = "sqlite://:memory:",
    ) -> AsyncIterator[Place]:
        shop = Shop()
        agents = [shop.agent(), shop.agent("frugal", max_tokens=10)]
        settings = Settings(grace_seconds=0)
        model = model or ScriptedModel(script)
        async with Runtime(agents, database, model=model, settings=settings) as runtime:
            app = create_app(runtime, access or Access("s3cret-of-ana"), agent=agent)
            config = uvicorn.Config(
                app,
                port=0,
                ws="none",
                lifespan="off",
                log_config=None,
                timeout_graceful_shutdown=1,
            )
            config.load()
            server = uvicorn.Server(config)
            server.lifespan = config.lifespan_class(config)
            await server.startup()
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            try:
                async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
                    yield Place(url, client, runtime, shop, app.state.waiting.stopping)
            finally:
                await server.shutdown()

    return start


@pytest.fixture
async def place(serving: Serving) -> AsyncIterator[Place]:
    async with serving() as started:
        yield started
