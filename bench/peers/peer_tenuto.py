"""Tenuto: one Runtime with its worker on a SQLite file or a PostgreSQL; approval by `resolve`.

`--mode once`: the look-up is declared as a tool with effects, not as one that only reads.
"""

import uuid
from contextlib import AsyncExitStack

from measuring import Peer, main, tool_result
from tenuto import Agent, Runtime, tool
from tenuto.messages import CallRequest, Reply, Request
from tenuto.store import open_store


def thread_of(key: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, key))


class TenutoPeer(Peer):
    @property
    def name(self) -> str:
        """The model's: this object is its own scripted model."""
        return "scripted"

    async def reply(self, request: Request, emit: object = None) -> Reply:
        # The system prompt and the first message come before the pairs of calls and results.
        said = self.script((len(request.messages) - 2) // 2)
        if said is None:
            return Reply(text="done", model="scripted", finish="stop")
        name, arguments, call_id = said
        call = CallRequest(name, f'{{"i":{arguments["i"]}}}', provider_id=call_id)
        return Reply(calls=(call,), model="scripted", finish="tool_calls")

    def prepare(self) -> None:
        self.database = self.path if "://" in self.path else f"sqlite:///{self.path}"
        open_store(self.database)  # imports the driver, and opens nothing yet
        self.agent = self._agent()
        for one in self.agent.tools:
            one.check()  # imports pydantic, as the peers do when they are imported

    async def open(self) -> None:
        self._stack = AsyncExitStack()
        runtime = Runtime([self.agent], database=self.database, model=self)
        self.runtime = await self._stack.enter_async_context(runtime)

    def _agent(self) -> Agent:
        counts = self.counts

        @tool(effect="once" if self.options.mode == "once" else "read")
        async def lookup(i: int) -> str:
            """Look a thing up."""
            counts["lookup"] += 1
            return tool_result(i)

        @tool(effect="once", approval=True)
        async def danger(i: int) -> str:
            """A guarded action."""
            counts["danger"] += 1
            return "sent"

        return Agent("bench", "Look things up.", [lookup, danger], max_steps=0)

    async def run(self, key: str) -> None:
        state = await self.runtime.wait(await self.runtime.start("bench", "go", thread_id=thread_of(key)))
        assert (state.status, state.step) == ("completed", self.script.n + 1), state.status

    async def pause(self, key: str) -> None:
        state = await self.runtime.wait(await self.runtime.start("bench", "go", thread_id=thread_of(key)))
        assert state.status == "awaiting_approval", state.status

    async def resume(self, key: str) -> None:
        thread_id = thread_of(key)
        (waiting,) = await self.runtime.interrupts(thread_id=thread_id)
        await self.runtime.resolve(waiting.id, "approve", by="bench", digest=waiting.digest)
        state = await self.runtime.wait(thread_id)
        assert state.status == "completed", state.status

    async def close(self) -> None:
        await self._stack.aclose()


if __name__ == "__main__":
    main(TenutoPeer)
