"""Pydantic AI with DBOS: the `DBOSDurability` capability inside a `DBOS.workflow`, tools made `DBOS.step`s.

Its system database, SQLite or PostgreSQL, all defaults. Approval is `requires_approval` with
`DeferredToolRequests`, and the workflow waits for it in `DBOS.recv_async`.
"""

from collections.abc import Callable
from typing import Any

from dbos import DBOS
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import UsageLimits

from measuring import main, tool_result
from peer_dbos import WorkflowPeer

NO_LIMITS = UsageLimits(request_limit=None)


class PydanticAIPeer(WorkflowPeer):
    def workflow(self) -> Callable[[str], Any]:
        waits, agent = self.waits, self._agent()

        @DBOS.workflow(name="thread")
        async def thread(key: str) -> str:
            result: Any = await agent.run("go", usage_limits=NO_LIMITS)
            while isinstance(result.output, DeferredToolRequests):
                waits(key)
                allowed = await DBOS.recv_async("approval", timeout_seconds=3600)
                approvals = {call.tool_call_id: allowed for call in result.output.approvals}
                result = await agent.run(
                    message_history=result.all_messages(),
                    usage_limits=NO_LIMITS,
                    deferred_tool_results=DeferredToolResults(approvals=approvals),
                )
            return result.output

        return thread

    def _agent(self) -> Agent:
        script, counts = self.script, self.counts

        async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            said = script((len(messages) - 1) // 2)
            part = TextPart("done") if said is None else ToolCallPart(said[0], said[1], tool_call_id=said[2])
            return ModelResponse(parts=[part], model_name="scripted")

        agent = Agent(
            FunctionModel(reply),
            name="bench",
            output_type=[str, DeferredToolRequests] if script.guarded else str,
            capabilities=[DBOSDurability()],
        )

        @agent.tool_plain
        @DBOS.step(name="lookup")
        async def lookup(i: int) -> str:
            """Look a thing up."""
            counts["lookup"] += 1
            return tool_result(i)

        @agent.tool_plain(requires_approval=True)
        @DBOS.step(name="danger")
        async def danger(i: int) -> str:
            """A guarded action."""
            counts["danger"] += 1
            return "sent"

        return agent


if __name__ == "__main__":
    main(PydanticAIPeer)
