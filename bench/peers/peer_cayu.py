"""Cayu: `CayuApp` on a `SQLiteSessionStore`, `run_to_completion`, `resolve_tool_approval`.

The leanest documented form: no task store, no budgets, no logging.
"""

from contextlib import aclosing
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    EventType,
    Message,
    RunRequest,
    Tool,
    ToolEffect,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.approvals import ToolApprovalDecision, ToolApprovalRequest
from cayu.evals import ScriptedModelProvider
from cayu.providers import ModelStreamEvent
from cayu.runtime import ExecutionProfileBehaviorIdentity
from cayu.sessions import PendingActionQuery
from cayu.storage import SQLiteSessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy

from measuring import Peer, main, tool_result

SCHEMA = {"type": "object", "properties": {"i": {"type": "integer"}}, "required": ["i"]}


def identity(name: str) -> ExecutionProfileBehaviorIdentity:
    return ExecutionProfileBehaviorIdentity(name=name, behavior_version="1", implementation_version="1")


class Forgetful(list):
    """The scripted provider keeps every request; a bench must not measure that."""

    def append(self, request: Any) -> None:
        pass


class Provider(ScriptedModelProvider):
    def __init__(self, peer: Peer) -> None:
        super().__init__(response_factory=self.respond)
        self.requests = Forgetful()
        self.peer = peer

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        return identity("bench-provider")

    def respond(self, request: Any) -> list[ModelStreamEvent]:
        said = self.peer.script((len(request.messages) - 1) // 2)
        if said is None:
            done = ModelStreamEvent.completed({"finish_reason": "stop"})
            return [ModelStreamEvent.text_delta("done"), done]
        call = ModelStreamEvent.tool_call(id=said[2], name=said[0], arguments=said[1])
        return [call, ModelStreamEvent.completed({"finish_reason": "tool_calls"})]


class Lookup(Tool):
    spec = ToolSpec(
        name="lookup",
        description="Look a thing up.",
        input_schema=SCHEMA,
        max_terminal_payload_bytes=65536,
        effect=ToolEffect.NONE,
        execution_profile_identity=identity("lookup"),
    )

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def run(self, ctx: Any, args: dict[str, Any]) -> ToolResult:
        self.peer.counts["lookup"] += 1
        return ToolResult(content=tool_result(args["i"]))


class Danger(Tool):
    spec = ToolSpec(
        name="danger",
        description="A guarded action.",
        input_schema=SCHEMA,
        max_terminal_payload_bytes=65536,
        effect=ToolEffect.IDEMPOTENT,
        execution_profile_identity=identity("danger"),
    )

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def run(self, ctx: Any, args: dict[str, Any]) -> ToolResult:
        self.peer.counts["danger"] += 1
        return ToolResult(content="sent")


class CayuPeer(Peer):
    async def open(self) -> None:
        self.store = SQLiteSessionStore(self.path)
        self.app = CayuApp(session_store=self.store, enable_logging=False, owned_resources=(self.store,))
        self.app.register_provider(Provider(self), default=True)
        self.app.register_agent(
            AgentSpec(name="bench", model="scripted-model"),
            tools=[Lookup(self), Danger(self)],
            tool_policy=AlwaysRequireApprovalToolPolicy(tools=["danger"]),
        )
        await self.app.__aenter__()

    async def _go(self, key: str) -> Any:
        request = RunRequest(agent_name="bench", session_id=key, messages=[Message.text("user", "go")])
        return await run_to_completion(self.app, request)

    async def run(self, key: str) -> None:
        outcome = await self._go(key)
        assert outcome.ok, outcome.status

    async def pause(self, key: str) -> None:
        outcome = await self._go(key)
        assert "interrupted" in str(outcome.status), outcome.status

    async def resume(self, key: str) -> None:
        page = await self.store.query_pending_actions(PendingActionQuery(session_id=key))
        (waiting,) = page.actions
        request = ToolApprovalRequest(
            session_id=key,
            approval_id=waiting.approval_id,
            tool_round_id=waiting.round_id,
            tool_call_id=waiting.tool_call_id,
            decision=ToolApprovalDecision.APPROVE,
        )
        last = None
        async with aclosing(self.app.resolve_tool_approval(request)) as events:
            async for event in events:
                last = event
        assert last is not None
        assert last.type == EventType.SESSION_COMPLETED, last.type

    async def close(self) -> None:
        await self.app.__aexit__(None, None, None)


if __name__ == "__main__":
    main(CayuPeer)
