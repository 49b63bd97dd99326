"""LangGraph: `langchain.agents.create_agent` and `AsyncSqliteSaver`, with the default durability (async).

On PostgreSQL `AsyncPostgresSaver`, with a pool of connections as for a server of many users.

`--mode delta`: the messages are kept in a DeltaChannel (beta), which stores what is new instead of all.
Approval is `HumanInTheLoopMiddleware`.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.message import _messages_delta_reducer
from langgraph.types import Command

from measuring import Peer, Script, main, tool_result


class DeltaState(AgentState):
    messages: Annotated[list, DeltaChannel(_messages_delta_reducer)]


class ScriptedChat(BaseChatModel):
    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> "ScriptedChat":
        return self

    def _generate(self, messages: list, *args: Any, **kwargs: Any) -> ChatResult:
        script: Script = self.script
        said = script((len(messages) - 1) // 2)
        if said is None:
            message = AIMessage(content="done")
        else:
            name, arguments, call_id = said
            message = AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": call_id}])
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list, *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


def postgres_saver(url: str) -> Any:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    @asynccontextmanager
    async def opened() -> AsyncIterator[AsyncPostgresSaver]:
        # What its documentation asks of connections that one brings oneself.
        how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        async with AsyncConnectionPool(url, min_size=1, max_size=20, open=False, kwargs=how) as pool:
            yield AsyncPostgresSaver(pool)

    return opened()


class LangGraphPeer(Peer):
    def prepare(self) -> None:
        self.tools = self._tools()
        make = postgres_saver if "://" in self.path else AsyncSqliteSaver.from_conn_string
        self.opening = make(self.path)

    async def open(self) -> None:
        self._stack = AsyncExitStack()
        saver = await self._stack.enter_async_context(self.opening)
        await saver.setup()
        guard = HumanInTheLoopMiddleware(
            interrupt_on={"danger": {"allowed_decisions": ["approve", "reject"]}}
        )
        self.graph = create_agent(
            ScriptedChat(script=self.script),
            self.tools,
            checkpointer=saver,
            middleware=[guard] if self.script.guarded else [],
            **({"state_schema": DeltaState} if self.options.mode == "delta" else {}),
        )

    def _tools(self) -> list[Any]:
        counts = self.counts

        @tool
        async def lookup(i: int) -> str:
            """Look a thing up."""
            counts["lookup"] += 1
            return tool_result(i)

        @tool
        async def danger(i: int) -> str:
            """A guarded action."""
            counts["danger"] += 1
            return "sent"

        return [lookup, danger]

    async def _invoke(self, key: str, given: Any) -> dict[str, Any]:
        config = {"configurable": {"thread_id": key}, "recursion_limit": 4 * self.options.n + 50}
        return await self.graph.ainvoke(given, config)

    async def run(self, key: str) -> None:
        state = await self._invoke(key, {"messages": [("user", "go")]})
        assert len(state["messages"]) == 2 * self.script.n + 2

    async def pause(self, key: str) -> None:
        state = await self._invoke(key, {"messages": [("user", "go")]})
        assert "__interrupt__" in state

    async def resume(self, key: str) -> None:
        state = await self._invoke(key, Command(resume={"decisions": [{"type": "approve"}]}))
        assert state["messages"][-1].content == "done"

    async def close(self) -> None:
        await self._stack.aclose()


if __name__ == "__main__":
    main(LangGraphPeer)
