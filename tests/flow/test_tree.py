"""The tree: who is whose child, what ends when, which callback runs when, and what people can see of it."""

import asyncio
import gc
import json
from typing import Any

import pytest

from tenuto.flow import (
    PASS_WORD,
    AttributeNotSetError,
    BasicJob,
    Callback,
    Commander,
    HandlerCoroutine,
    Job,
    TaskNode,
    get_null_logger,
    handler,
    tasker,
)


class Work(Job):
    def __init__(self, name: str, log: list[str], *then: Any, raises: bool = False) -> None:
        super().__init__(callback=told(log, name))
        self.name = name
        self.log = log
        self.then = then
        self.raises = raises

    @tasker(PASS_WORD)
    async def task(self) -> Any:
        self.log.append(f"{self.name} works")
        for one in self.then[:-1]:
            await self.put_job(one) if isinstance(one, Job) else self.call_handler(one)
        if self.raises:
            raise ValueError(self.name)
        return self.then[-1] if self.then else None


def told(log: list[str], name: str) -> Callback:
    """A callback that writes every moment down."""
    moments = (
        "job_start",
        "handler_start",
        "exception",
        "terminate",
        "handler_end",
        "job_end",
        "commander_end",
    )
    return Callback(
        *([{"function": log.append, "params": {"args": (f"{name} {moment}",)}}] for moment in moments)
    )


@handler(PASS_WORD)
async def pause(
    self_handler: HandlerCoroutine[Any], name: str, log: list[str], seconds: float, callback: Callback
) -> str:
    log.append(f"{name} works")
    await asyncio.sleep(seconds)
    return name


def paused(name: str, log: list[str], seconds: float = 0.0) -> HandlerCoroutine[str]:
    return pause(name, log, seconds, told(log, name))


def test_order_of_a_job_with_a_returned_handler() -> None:
    log: list[str] = []
    Commander().run([Work("a", log, paused("h", log)), Work("b", log)], auto_exit=True)
    of_a = [line for line in log if line[0] in "ah"]
    assert of_a == [
        "a job_start",
        "a works",
        "h handler_start",
        "h works",
        "h handler_end",
        "a job_end",
        "a commander_end",
        "h commander_end",
    ]
    of_b = [line for line in log if line[0] == "b"]
    assert of_b == ["b job_start", "b works", "b job_end", "b commander_end"]
    assert log.index("a works") < log.index("b job_start"), "Jobs one after another"
    assert log.index("b job_end") < log.index("a commander_end"), "the commander's end is last"


def test_a_parent_ends_after_its_slowest_child() -> None:
    log: list[str] = []
    inner = Work("inner", log, paused("slow", log, 0.05))
    Commander().run(Work("outer", log, inner, paused("fast", log)), auto_exit=True)
    ends = [line for line in log if line.endswith(("handler_end", "job_end"))]
    assert ends == ["fast handler_end", "slow handler_end", "inner job_end", "outer job_end"]


def test_handlers_run_beside_each_other_and_jobs_do_not_wait_for_them() -> None:
    log: list[str] = []
    first = Work("first", log, paused("slow", log, 0.05), paused("fast", log, 0.0))
    Commander().run([first, Work("second", log)], auto_exit=True)
    assert log.index("fast handler_end") < log.index("slow handler_end")
    assert log.index("second job_end") < log.index("slow handler_end")


def test_a_failure_stays_on_its_node() -> None:
    log: list[str] = []
    child = Work("child", log, raises=True)
    parent = Work("parent", log, child, None)
    Commander(logger=get_null_logger()).run(parent, auto_exit=True)
    assert [line for line in log if line.startswith("child")] == [
        "child job_start",
        "child works",
        "child exception",
        "child job_end",
        "child commander_end",
    ]
    assert (child.state, parent.state) == ("EXCEPTION", "COMPLETED")
    assert str(child.exception) == "child"
    assert parent.exception is None


def test_a_parent_fails_with_its_child_if_it_asks_to() -> None:
    log: list[str] = []
    child = Work("child", log, raises=True)
    parent = Work("parent", log, child, None)
    parent.fails_with_children = True
    grandparent = Work("grandparent", log, parent, None)
    Commander(logger=get_null_logger()).run(grandparent, auto_exit=True)
    assert (parent.state, parent.exception) == ("EXCEPTION", child.exception)
    assert log.index("child job_end") < log.index("parent exception") < log.index("parent job_end")
    assert grandparent.state == "COMPLETED"


def test_states_ids_and_ancestors() -> None:
    seen: list[Any] = []

    class Look(Job):
        @tasker(PASS_WORD)
        async def task(self) -> HandlerCoroutine[Any]:
            seen.append((self.state, self.children_num))
            return look()

    @handler(PASS_WORD)
    async def look(self_handler: HandlerCoroutine[Any]) -> str:
        seen.append([type(node) for node in self_handler.ancestor_chain])
        seen.append(self_handler.ancestor_chain[0] is self_handler)
        return "result"

    job = Look()
    assert job.state == "PENDING"
    for name in ("id", "commander", "parent"):
        with pytest.raises(AttributeNotSetError):
            getattr(job, name)
    named = Look()
    named.id = "mine"
    commander = Commander[Any]()
    assert commander.id == 1
    commander.run([job, named], auto_exit=True)
    assert seen[0] == ("ACTIVE", 1), "its own work counts"
    assert seen[1] == [HandlerCoroutine, Look, Commander]
    assert seen[2] is True
    assert (job.state, job.children, job.parent, job.commander) == ("COMPLETED", [], commander, commander)
    assert named.id == "mine"
    assert isinstance(job.id, int)
    assert job.id != commander.id
    assert isinstance(job.result, HandlerCoroutine)
    assert job.result.result == "result"


def test_a_job_in_the_queue_is_pending() -> None:
    log: list[str] = []
    waiting = Work("waiting", log)
    states: list[str] = []

    class First(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            await self.put_job(waiting)
            states.append(waiting.state)
            states.append(str(waiting in self.children))

    Commander().run(First(), auto_exit=True)
    assert states == ["PENDING", "True"]
    assert waiting.state == "COMPLETED"


def test_a_child_that_is_put_by_an_end_callback_keeps_the_node_alive_once() -> None:
    log: list[str] = []
    job = Work("job", log)
    child = Work("child", log)

    async def more(task_node: Job) -> None:
        await task_node.put_job(child)

    job.add_callback_functions("at_job_end", {"function": more, "inject_task_node": True})
    outer = Work("outer", log, job, None)
    Commander().run(outer, auto_exit=True)
    assert [line for line in log if line.endswith("job_end")] == [
        "job job_end",
        "child job_end",
        "outer job_end",
    ]


def test_closing_tells_children_before_parents_and_never_ends() -> None:
    log: list[str] = []
    inner = Work("inner", log, paused("slow", log, 60.0))
    outer = Work("outer", log, inner, None)

    class Close(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            await asyncio.sleep(0.01)
            await outer.close_task_node()
            await outer.close_task_node()

    class Later(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            await self.put_job(Close())

    Commander().run([outer, Later()], auto_exit=True)
    assert [line for line in log if line.endswith("terminate")] == [
        "slow terminate",
        "inner terminate",
        "outer terminate",
    ]
    assert not [line for line in log if line.endswith(("handler_end", "job_end"))]
    assert {outer.state, inner.state} == {"TERMINATED"}


def test_closing_a_running_job_from_a_handler_lets_the_queue_go_on() -> None:
    log: list[str] = []

    class Stuck(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            await asyncio.sleep(60)

    stuck = Stuck()

    @handler(PASS_WORD)
    async def close(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(0.01)
        await stuck.terminate_task_node()

    Commander().run([BasicJob(close()), stuck, Work("next", log)], auto_exit=True)
    assert stuck.state == "TERMINATED"
    assert "next works" in log


def test_closing_oneself_does_not_return() -> None:
    log: list[str] = []

    class Closing(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            log.append("before")
            await self.close_task_node()
            log.append("after")

    job = Closing()
    job.add_callback(told(log, "job"))
    Commander().run([job, Work("next", log)], auto_exit=True)
    assert log[:4] == ["job job_start", "before", "job terminate", "next job_start"]
    assert job.state == "TERMINATED"


def test_a_chain_of_children_deeper_than_the_stack_ends() -> None:
    depth = 20_000
    ended: list[int] = []

    class Deep(Job):
        def __init__(self, left: int) -> None:
            super().__init__()
            self.left = left

        @tasker(PASS_WORD)
        async def task(self) -> None:
            if self.left:
                await self.put_job(Deep(self.left - 1))

    top = Deep(depth)
    top.add_callback_functions("at_job_end", {"function": lambda: ended.append(1)})
    commander = Commander[Any]()
    commander.run(top, auto_exit=True)
    assert ended == [1]
    assert commander.is_empty()


@pytest.mark.timeout(60)
def test_an_endless_conversation_keeps_the_tree_and_the_memory_flat() -> None:
    rounds = 100_000
    widest = 0
    deepest = 0
    objects: list[int] = []

    class Round(Job):
        def __init__(self, number: int) -> None:
            super().__init__(
                callback=Callback(at_job_end=[{"function": self.again, "inject_task_node": True}])
            )
            self.number = number

        @tasker(PASS_WORD)
        async def task(self) -> None:
            nonlocal widest, deepest
            widest = max(widest, self.commander.children_num)
            deepest = max(deepest, len(self.ancestor_chain))
            if self.number in (1_000, rounds - 1):
                gc.collect()
                objects.append(len(gc.get_objects()))

        async def again(self, task_node: Job) -> None:
            if self.number < rounds - 1:
                await task_node.put_job(Round(self.number + 1), parent=task_node.commander)

    Commander().run(Round(0), auto_exit=True)
    assert widest <= 2
    assert deepest == 2
    assert len(objects) == 2
    assert objects[1] < objects[0] + 100, "after 99 times as many rounds"


def test_the_tree_as_text_and_as_data() -> None:
    log: list[str] = []
    views: list[Any] = []

    @handler(PASS_WORD)
    async def look(self_handler: HandlerCoroutine[Any]) -> None:
        await asyncio.sleep(0.02)
        views.append(self_handler.commander.tree())

    class Waits(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            await asyncio.sleep(0.05)

    Commander().run(
        [Work("top", log, look(), paused("h", log, 0.05)), Waits(), Work("queued", log)], auto_exit=True
    )
    (view,) = views
    data = view.data()
    assert json.loads(json.dumps(data)) == data
    assert (data["kind"], data["state"]) == ("commander", "ACTIVE")
    top, waits, queued = data["children"]
    assert (top["name"], top["kind"], top["state"]) == ("Work", "job", "ACTIVE")
    assert [child["name"] for child in top["children"]] == ["look", "pause"]
    assert all(child["kind"] == "handler" and child["seconds"] >= 0.015 for child in top["children"])
    assert (waits["state"], waits["children"]) == ("ACTIVE", [])
    assert (queued["state"], queued["seconds"]) == ("PENDING", None)
    lines = str(view).splitlines()
    assert [line.split(" #")[0] for line in lines] == [
        "CommanderAsync",
        "├─ Work",
        "│  ├─ look",
        "│  └─ pause",
        "├─ Waits",
        "└─ Work",
    ]


async def test_nodes_alone_are_linked_and_unlinked() -> None:
    root, child, grandchild = TaskNode(), TaskNode(), TaskNode()
    root._parent = "Null"
    root.add_child(child)
    child.add_child(grandchild)
    assert grandchild.ancestor_chain == [grandchild, child, root]
    assert (child.state, child.parent) == ("ACTIVE", root)
    await child.del_child(child)
    assert child.state == "ACTIVE"
    await child.del_child(grandchild)
    assert child.state == "COMPLETED"
    assert child not in root.children
    assert root.children == [root]
