"""Random programs: whatever they put, call, await, close, cancel and raise, they end and leave nothing."""

import asyncio
import random
import threading
from typing import Any

import pytest

from tenuto.flow import (
    PASS_WORD,
    Commander,
    CycleError,
    HandlerCoroutine,
    HandlerTerminatedError,
    Job,
    get_null_logger,
    handler,
    tasker,
)

MAX_NODES = 150
ENDED = {"COMPLETED", "EXCEPTION", "TERMINATED"}


class Program:
    """A program made up as it runs; the seed decides, apart from the event loop's own timing."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: list[Any] = []

    def job(self) -> Job:
        return self.with_callbacks(AnyJob(self))

    def call(self) -> HandlerCoroutine[Any]:
        return self.with_callbacks(any_handler(self))

    def with_callbacks(self, node: Any) -> Any:
        self.nodes.append(node)
        start, end = ("job_start", "job_end") if isinstance(node, Job) else ("handler_start", "handler_end")
        for moment in (start, "exception", "terminate", end):
            function = self.random.choice([None] * 8 + [self.fail, self.pause, self.close_any, self.put_more])
            if function is not None:
                node.add_callback_functions(f"at_{moment}", {"function": function, "inject_task_node": True})
        return node

    def fail(self, task_node: Any) -> None:
        raise ZeroDivisionError

    async def pause(self, task_node: Any) -> None:
        await asyncio.sleep(self.random.random() * 0.002)

    async def close_any(self, task_node: Any) -> None:
        await self.random.choice(self.nodes).close_task_node()

    async def put_more(self, task_node: Any) -> None:
        if len(self.nodes) < MAX_NODES:
            await task_node.put_job(self.job(), parent=self.random.choice([None, task_node._commander]))

    async def act(self, node: Any) -> None:
        """Up to three random things."""
        acts = [self.put, self.call_one, self.await_one, self.close_any, self.pause, self.put_again]
        acts += [self.put, self.call_one, self.cancel, self.raise_one]
        for _ in range(self.random.randint(0, 3)):
            if len(self.nodes) < MAX_NODES:
                await self.random.choice(acts)(node)

    async def put(self, node: Any) -> None:
        await node.put_job(self.job(), parent=self.random.choice([None, None, node.commander]))

    async def call_one(self, node: Any) -> None:
        node.call_handler(self.call(), parent=self.random.choice([None, None, node.commander]))

    async def await_one(self, node: Any) -> None:
        try:
            await self.call()
        except HandlerTerminatedError:
            return

    async def put_again(self, node: Any) -> None:
        again = self.random.choice([one for one in self.nodes if isinstance(one, Job)])
        try:
            await node.put_job(
                again, parent=self.random.choice([None, node.commander, self.random.choice(self.nodes)])
            )
        except CycleError:
            return

    async def cancel(self, node: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    async def raise_one(self, node: Any) -> None:
        raise ValueError


class AnyJob(Job):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    @tasker(PASS_WORD)
    async def task(self) -> Any:
        await self.program.act(self)
        return self.program.call() if self.program.random.random() < 0.3 else None


@handler(PASS_WORD)
async def any_handler(self_handler: HandlerCoroutine[Any], program: Program) -> None:
    await program.act(self_handler)


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_a_random_program_ends(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        program = Program(seed)
        commander = Commander[None](logger=get_null_logger(), exit_grace_seconds=0.2)
        thread = threading.Thread(
            target=commander.run, args=([program.job() for _ in range(3)], True), daemon=True
        )
        thread.start()
        thread.join(5)
        assert not thread.is_alive(), f"seed {seed} hangs:\n{commander.tree()}"
        assert commander.is_empty()
        assert not [node for node in program.nodes if node._flow_alive]
        assert {node.state for node in program.nodes if node._flow_run} <= ENDED
