"""DBOS alone: an async workflow with a step for the model and a step for the tool in each round.

Its system database, SQLite or PostgreSQL, all defaults. Approval is `DBOS.recv_async`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID

from measuring import Peer, main, tool_result


def launch(database: str) -> None:
    """Start DBOS on this file or URL; paused workflows of a process that is gone begin to recover."""
    DBOS(
        config=DBOSConfig(
            name="bench",
            application_version="1",
            log_level="ERROR",
            system_database_url=database if "://" in database else f"sqlite:///{database}",
        )
    )
    DBOS.launch()


class WorkflowPeer(Peer):
    """What both DBOS peers share: a workflow per thread, registered before the start."""

    needs_kill = True

    def prepare(self) -> None:
        self.paused: dict[str, asyncio.Event] = {}
        self.thread = self.workflow()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self.options.workload.startswith("long"):
            self.paused["t0"] = asyncio.Event()
        launch(self.path)

    def workflow(self) -> Callable[[str], Any]:
        """The workflow of a thread: takes its key, calls `waits` before it waits, returns the answer."""
        raise NotImplementedError

    def waits(self, key: str) -> None:
        """The workflow of this key is about to wait. Recovery runs it on a loop of its own."""
        if key in self.paused:
            self._loop.call_soon_threadsafe(self.paused[key].set)

    async def _start(self, key: str) -> Any:
        with SetWorkflowID(key):
            return await DBOS.start_workflow_async(self.thread, key)

    async def run(self, key: str) -> None:
        handle = await self._start(key)
        assert await handle.get_result() == "done"

    async def pause(self, key: str) -> None:
        self.paused[key] = asyncio.Event()
        await self._start(key)
        await self.paused[key].wait()

    async def recovered(self, key: str) -> None:
        await self.paused[key].wait()
        await asyncio.sleep(0.05)

    async def resume(self, key: str) -> None:
        await DBOS.send_async(key, True, "approval")
        handle = await DBOS.retrieve_workflow_async(key)
        assert await handle.get_result() == "done"

    async def close(self) -> None:
        DBOS.destroy()


class DBOSPeer(WorkflowPeer):
    def workflow(self) -> Callable[[str], Any]:
        script, counts, waits = self.script, self.counts, self.waits

        @DBOS.step()
        async def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
            said = script((len(messages) - 1) // 2)
            if said is None:
                return {"role": "assistant", "content": "done"}
            return {"role": "assistant", "tool": said[0], "args": said[1], "id": said[2]}

        @DBOS.step()
        async def lookup(i: int) -> str:
            counts["lookup"] += 1
            return tool_result(i)

        @DBOS.step()
        async def danger(i: int) -> str:
            counts["danger"] += 1
            return "sent"

        @DBOS.workflow()
        async def thread(key: str) -> str:
            messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
            while True:
                reply = await ask_model(messages)
                messages.append(reply)
                if "tool" not in reply:
                    return reply["content"]
                if reply["tool"] == "danger":
                    waits(key)
                    assert await DBOS.recv_async("approval", timeout_seconds=3600)
                    result = await danger(reply["args"]["i"])
                else:
                    result = await lookup(reply["args"]["i"])
                messages.append({"role": "tool", "id": reply["id"], "content": result})

        return thread


if __name__ == "__main__":
    main(DBOSPeer)
