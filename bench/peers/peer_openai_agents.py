"""OpenAI Agents SDK: `Runner.run` with `SQLiteSession` on a file, tracing off.

The session keeps the items of the conversation. What is needed to go on after an approval is
`RunState.to_string()`, which the SDK leaves to its user to keep: here a row in the same file, in WAL mode
with synchronous=FULL.
"""

import json
import sqlite3
from typing import Any

from agents import Agent, Runner, RunState, SQLiteSession, Usage, function_tool, set_tracing_disabled
from agents.items import ModelResponse
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from measuring import Peer, Script, main, tool_result

set_tracing_disabled(True)


class ScriptedModel(Model):
    def __init__(self, script: Script) -> None:
        self.script = script

    async def get_response(self, *args: Any, **asked: Any) -> Any:
        items = asked["input"]
        said = self.script((len(items) - 1) // 2 if isinstance(items, list) else 0)
        if said is None:
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            output: Any = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
        else:
            name, arguments, call_id = said
            output = ResponseFunctionToolCall(
                type="function_call", name=name, arguments=json.dumps(arguments), call_id=call_id
            )
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class OpenAIAgentsPeer(Peer):
    def prepare(self) -> None:
        self.agent = Agent(name="bench", model=ScriptedModel(self.script), tools=self._tools())

    async def open(self) -> None:
        if self.script.guarded:
            self.states = sqlite3.connect(self.path, isolation_level=None, timeout=30)
            self.states.execute("PRAGMA journal_mode=WAL")
            self.states.execute("PRAGMA synchronous=FULL")
            self.states.execute("CREATE TABLE IF NOT EXISTS paused (id TEXT PRIMARY KEY, state TEXT)")

    def _tools(self) -> list[Any]:
        counts = self.counts

        @function_tool
        async def lookup(i: int) -> str:
            """Look a thing up."""
            counts["lookup"] += 1
            return tool_result(i)

        @function_tool(needs_approval=True)
        async def danger(i: int) -> str:
            """A guarded action."""
            counts["danger"] += 1
            return "sent"

        return [lookup, danger]

    async def _go(self, key: str, given: Any) -> Any:
        session = SQLiteSession(key, self.path)
        return await Runner.run(self.agent, given, session=session, max_turns=self.options.n + 10)

    async def run(self, key: str) -> None:
        result = await self._go(key, "go")
        assert result.final_output == "done"

    async def pause(self, key: str) -> None:
        result = await self._go(key, "go")
        assert len(result.interruptions) == 1
        self.states.execute("INSERT INTO paused VALUES (?, ?)", (key, result.to_state().to_string()))

    async def resume(self, key: str) -> None:
        (stored,) = self.states.execute("SELECT state FROM paused WHERE id = ?", (key,)).fetchone()
        state = await RunState.from_string(self.agent, stored)
        for asked in state.get_interruptions():
            state.approve(asked)
        result = await self._go(key, state)
        assert result.final_output == "done"
        self.states.execute("DELETE FROM paused WHERE id = ?", (key,))

    async def close(self) -> None:
        if self.script.guarded:
            self.states.close()


if __name__ == "__main__":
    main(OpenAIAgentsPeer)
