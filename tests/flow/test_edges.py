"""Edges: nodes that follow each other, in lines, forks and circles."""

from itertools import pairwise
from typing import Any

import pytest

from tenuto.flow import (
    PASS_WORD,
    Commander,
    HandlerCoroutine,
    Job,
    add_conditional_edge,
    add_edge,
    get_null_logger,
    handler,
    tasker,
)
from tenuto.flow.edge import add_edge as add_edge_of_the_module

pytestmark = pytest.mark.timeout(5)


class Step(Job):
    def __init__(self, name: str, result: Any = None) -> None:
        super().__init__()
        self.name = name
        self.result_to_give = result

    @tasker(PASS_WORD)
    async def task(self) -> Any:
        self.data.append(self.name)
        if isinstance(self.result_to_give, Exception):
            raise self.result_to_give
        return self.result_to_give


@handler(PASS_WORD)
async def step(self_handler: HandlerCoroutine[Any], name: str, result: Any = None) -> Any:
    self_handler.data.append(name)
    return result


def run(first: Job, data: list[str]) -> Commander[Any]:
    first.data = data
    commander = Commander(logger=get_null_logger())
    commander.run(first, auto_exit=True)
    assert not commander.callback_failures
    return commander


def test_a_line_of_jobs_and_handlers() -> None:
    data: list[str] = []
    nodes: list[Any] = [Step("a"), step("b"), step("c"), Step("d")]
    for one, following in pairwise(nodes):
        add_edge(one, following, data)
    run(nodes[0], data)
    assert data == ["a", "b", "c", "d"]
    assert all(node.state == "COMPLETED" for node in nodes)


def test_the_next_node_is_a_root_and_waits_for_all_of_the_last_one() -> None:
    data: list[str] = []

    class Forks(Job):
        @tasker(PASS_WORD)
        async def task(self) -> None:
            child = Step("child")
            child.data = data
            await self.put_job(child)
            data.append("forks")

    first, last = Forks(), Step("last")
    add_edge(first, last, data)
    commander = run(first, data)
    assert data == ["forks", "child", "last"]
    assert last.parent is commander


def test_a_fork_and_a_meeting_point_that_runs_for_each() -> None:
    data: list[str] = []
    first, left, right, meet = Step("first"), step("left"), step("right"), Step("meet")
    for one, following in ((first, left), (first, right), (left, meet), (right, meet)):
        add_edge(one, following, data)
    run(first, data)
    assert data[0] == "first"
    assert sorted(data) == ["first", "left", "meet", "meet", "right"]


def test_a_circle_of_two_thousand_rounds() -> None:
    data: list[str] = []

    @handler(PASS_WORD)
    async def decide(self_handler: HandlerCoroutine[Any]) -> str:
        self_handler.data.append("decide")
        return "again" if len(self_handler.data) < 4_000 else "stop"

    work, decision = Step("work"), decide()
    add_edge(work, decision, data)
    add_conditional_edge(decision, {"again": work}, data)
    run(work, data)
    assert len(data) == 4_000
    assert data[-2:] == ["work", "decide"]


def test_a_job_that_follows_itself() -> None:
    data: list[str] = []

    class Again(Job):
        @tasker(PASS_WORD)
        async def task(self) -> bool:
            self.data.append("x")
            return len(self.data) < 5

    job = Again()
    add_conditional_edge(job, {True: job})
    run(job, data)
    assert data == ["x"] * 5


@pytest.mark.parametrize("result", ["unknown", None, ["a list is no key"], ValueError("failed")])
def test_a_result_that_leads_nowhere(result: Any) -> None:
    data: list[str] = []
    first = Step("first", result)
    add_conditional_edge(first, {"known": Step("never")}, data)
    run(first, data)
    assert data == ["first"]


def test_a_simple_edge_is_taken_after_a_failure_too() -> None:
    data: list[str] = []
    first = Step("first", ValueError("failed"))
    add_edge(first, Step("after"), data)
    run(first, data)
    assert data == ["first", "after"]


def test_what_is_no_node_is_refused() -> None:
    for wrong in (step, "job", None, Step):
        with pytest.raises(TypeError, match="an edge joins"):
            add_edge(Step("a"), wrong)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(TypeError, match="an edge joins"):
            add_conditional_edge(Step("a"), {"x": wrong})  # type: ignore[dict-item]  # that is the point
    assert add_edge_of_the_module is add_edge
