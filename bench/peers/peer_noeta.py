"""Noeta: one `Client` on a durable `HostConfig`, verbs on caller threads, `approve` in a new process."""

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from noeta.sdk import (
    Client,
    HostConfig,
    LLMResponse,
    Options,
    TextBlock,
    ToolResult,
    ToolUseBlock,
    Usage,
    tool,
)

from measuring import Peer, Script, main, tool_result

SCHEMA = {"type": "object", "properties": {"i": {"type": "integer"}}, "required": ["i"]}
ENDED = ("terminal", "completed")


class ScriptedModel:
    def __init__(self, script: Script) -> None:
        self.script = script

    def complete(self, request: Any) -> LLMResponse:
        usage = Usage(uncached=1, output=1)
        said = self.script((len(request.messages) - 1) // 2)
        if said is None:
            return LLMResponse(stop_reason="end_turn", content=[TextBlock(text="done")], usage=usage)
        block = ToolUseBlock(call_id=said[2], tool_name=said[0], arguments=said[1])
        return LLMResponse(stop_reason="tool_use", content=[block], usage=usage)


class NoetaPeer(Peer):
    def prepare(self) -> None:
        self.tools = self._tools()

    async def open(self) -> None:
        self.callers = ThreadPoolExecutor(self.options.concurrency)
        self.folder = tempfile.TemporaryDirectory()
        self.client = Client(
            Options(
                system_prompt="You are a bench.",
                allowed_tools=self.tools,
                plugins=(),
                permission_mode="default",
            ),
            provider=ScriptedModel(self.script),
            workspace_dir=self.folder.name,
            model="stub-model",
            multi_turn=False,
            host_config=HostConfig(memory_dir=None, environment_enabled=False, storage_path=self.path),
        )
        # It gives threads ids of its own; what waits in the file takes the keys in order.
        waiting = [stream.task_id for stream in self.client.task_streams()]
        self.ids = {f"t{place}": task_id for place, task_id in enumerate(waiting)}

    def _tools(self) -> tuple[Any, ...]:
        counts = self.counts

        @tool(name="lookup", version="1", input_schema=SCHEMA, description="Look a thing up.")
        def lookup(arguments: dict[str, Any], context: Any) -> ToolResult:
            counts["lookup"] += 1
            return ToolResult(success=True, output=tool_result(arguments["i"]))

        @tool(
            name="danger",
            version="1",
            risk_level="high",
            input_schema=SCHEMA,
            description="A guarded action.",
        )
        def danger(arguments: dict[str, Any], context: Any) -> ToolResult:
            counts["danger"] += 1
            return ToolResult(success=True, output="sent")

        return (lookup, danger)

    async def _call(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.callers, lambda: verb(*args, **kwargs))

    async def run(self, key: str) -> None:
        outcome = await self._call(self.client.start, goal="go")
        assert outcome.status in ENDED, outcome.status

    async def pause(self, key: str) -> None:
        outcome = await self._call(self.client.start, goal="go")
        assert (outcome.wake_handle or "").startswith("approval-"), outcome.status

    async def resume(self, key: str) -> None:
        call_id = f"call_{self.options.n}"
        outcome = await self._call(self.client.approve, self.ids[key], call_id=call_id)
        assert outcome.status in ENDED, outcome.status

    async def close(self) -> None:
        self.client.shutdown()
        self.callers.shutdown()
        self.folder.cleanup()


if __name__ == "__main__":
    main(NoetaPeer)
