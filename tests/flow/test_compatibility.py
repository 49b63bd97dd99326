"""A program as it was written for agere runs here with its imports changed and nothing else.

What the program prints is what it printed under agere 0.2.0, but for `is_empty` after the end.
"""

import contextlib
import io
import re
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from tenuto import flow
from tenuto.flow import Callback, Commander, HandlerCoroutine, Job, TaskNode, handler, tasker

pytestmark = pytest.mark.timeout(10)

PROGRAM = """
import asyncio
import json
from types import SimpleNamespace as Space

from agere.commander import PASS_WORD, BasicJob, Callback, CallbackDict, CommanderAsync, Job, handler, tasker
from agere.commander._commander import HandlerCoroutine
from agere.utils.dispatcher import async_dispatcher_tools_call_for_openai
from agere.utils.llm_async_converters import LLMAsyncAdapter


def chunk(content=None, calls=None, finish=None):
    return Space(choices=[Space(delta=Space(content=content, tool_calls=calls), finish_reason=finish)])


def call(index, arguments, id=None, name=None):
    kind = "function" if name else None
    return [Space(index=index, id=id, type=kind, function=Space(name=name, arguments=arguments))]


REPLIES = [
    [
        chunk(),
        chunk(calls=call(0, "", "c0", "weather")),
        chunk(calls=call(0, '{"to_user": "Looking')),
        chunk(calls=call(0, ' it up.", "city": "Par')),
        chunk(calls=call(0, 'is"}')),
        chunk(finish="tool_calls"),
    ],
    [chunk("It is "), chunk("22 degrees."), chunk(finish="stop")],
]
PROMPTS = ["And tomorrow?", "exit"]


def ask(context):
    return iter(REPLIES[len([m for m in context if m["role"] != "assistant"]) % 2 - 1])


class ChatJob(Job):
    def __init__(self, context):
        self.context = context
        super().__init__()

    @tasker(PASS_WORD)
    async def task(self):
        job = ResponseJob(ask(self.context), self.context)
        job.add_callback_functions(
            which="at_job_end", functions_info={"function": self.next_round, "inject_task_node": True}
        )
        await self.put_job(job)

    async def next_round(self, task_node: Job):
        prompt = PROMPTS.pop(0)
        if prompt == "exit":
            await self.exit_commander(return_result="QUIT")
            return
        self.context.append({"role": "user", "content": prompt})
        await task_node.put_job(job=ChatJob(context=self.context), parent=task_node.commander)


class ResponseJob(Job):
    def __init__(self, response, context):
        started = {"function": print, "params": {"args": ("[reply]",)}}
        super().__init__(callback=Callback(at_job_start=[started]))
        self.response = response
        self.context = context

    @tasker(PASS_WORD)
    async def task(self):
        return Reader(self.context).handle(response=self.response)


class Reader:
    def __init__(self, context):
        self.context = context

    @handler(PASS_WORD)
    async def handle(self, self_handler, response):
        ended: CallbackDict = {"function": print, "params": {"args": ("[received]",), "kwargs": {}}}
        make = await async_dispatcher_tools_call_for_openai(
            source=LLMAsyncAdapter(at_receiving_end=[ended]).llm_to_async_iterable(response=response),
        )
        self_handler.call_handler(self.user(make("to_user")))
        await self_handler.put_job(BasicJob(self.tools(function_call_gen=make("function_call"))))

    @handler(PASS_WORD)
    async def user(self, self_handler: HandlerCoroutine, user_gen):
        text = "".join([part async for part in user_gen])
        print("to user:", text)
        self.context.append({"role": "assistant", "content": text})

    @handler(PASS_WORD)
    async def tools(self, self_handler, function_call_gen):
        async for one in function_call_gen:
            one = json.loads(one)
            print("call:", one["tool_call_id"], one["name"], one["arguments"])
            self.context.append({"role": "tool", "content": "22"})
            await self_handler.put_job(ResponseJob(ask(self.context), self.context))


commander = CommanderAsync()
print(commander.run(ChatJob([{"role": "user", "content": "The weather?"}])))
print(commander.running_status, commander.is_empty())
"""


def ported(program: str) -> str:
    program = program.replace("agere.commander", "tenuto.flow")
    return re.sub(r"agere\.utils\.\w+", "tenuto.flow", program)


def test_a_chat_program_with_its_imports_changed() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ported(PROGRAM), "program", "exec"), {"__name__": "program"})
    lines = printed.getvalue().splitlines()
    one_round = [
        "[reply]",
        "call: c0 weather {'city': 'Paris'}",
        "to user: Looking it up.",
        "[received]",
        "[reply]",
        "to user: It is 22 degrees.",
        "[received]",
    ]
    assert sorted(lines[:-2]) == sorted(one_round * 2), (
        "within a round, the branches of a fork are not ordered"
    )
    assert lines[-2:] == ["QUIT", "False True"]


@pytest.mark.parametrize(
    "name",
    [
        "PASS_WORD",
        "CommanderAsyncInterface",
        "CommanderAsync",
        "tasker",
        "handler",
        "Callback",
        "Job",
        "BasicJob",
        "AttributeNotSetError",
        "NotHandlerError",
        "NotTaskerError",
        "CommanderNotRunError",
        "CommanderAlreadyRunningError",
        "CallbackDict",
        "LLMAsyncAdapter",
        "async_dispatcher_tools_call_for_openai",
    ],
)
def test_every_public_name_of_agere_is_here(name: str) -> None:
    assert name in flow.__all__
    assert hasattr(flow, name)


def test_commander_is_commander_async() -> None:
    assert flow.Commander is flow.CommanderAsync


@pytest.mark.parametrize("decorate", [tasker, handler])
def test_a_wrong_password_is_an_assertion_error(decorate: Any) -> None:
    with pytest.raises(AssertionError, match="I assure all time-consuming tasks are delegated externally"):
        decorate("I promise nothing")
    assert flow.PASS_WORD == "I assure all time-consuming tasks are delegated externally."


def test_only_coroutine_functions_are_handlers_and_arguments_are_checked_at_the_call() -> None:
    def plain(self_handler: Any) -> None: ...

    with pytest.raises(TypeError, match="coroutine function"):
        handler(flow.PASS_WORD)(plain)  # type: ignore[arg-type]  # that is the point

    @handler(flow.PASS_WORD)
    async def two(self_handler: HandlerCoroutine[Any], value: int) -> None: ...

    with pytest.raises(TypeError, match="value"):
        two()


def test_a_plain_function_may_be_a_task() -> None:
    class Plain(Job):
        @tasker(flow.PASS_WORD)
        def task(self) -> str:  # type: ignore[override]  # as in agere
            return "plain"

    job = Plain()
    Commander[None]().run(job, auto_exit=True)
    assert job.result == "plain"


def test_the_lock_of_a_callbacks_node() -> None:
    nodes = [TaskNode() for _ in range(5)]
    free, three, given = (
        Callback(),
        Callback(task_node_auto_lock_num=3),
        Callback(task_node=TaskNode(), task_node_auto_lock_num=3),
    )
    for callback in (free, three, given):
        for node in nodes:
            callback._task_node = node
    assert [callback.task_node for callback in (free, three, given)] == [nodes[4], nodes[2], nodes[1]]
    three.task_node_unlock()
    free.task_node_lock()
    free._task_node = nodes[0]
    assert free.task_node is nodes[4]
    with pytest.raises(TypeError):
        Callback(task_node_auto_lock_num="3")  # type: ignore[arg-type]  # that is the point


def test_callbacks_are_updated_and_merged() -> None:
    entries: list[Any] = [{"function": print, "params": {"args": (number,)}} for number in range(3)]
    one, two = Callback(at_job_end=[entries[0]]), Callback(at_job_end=[entries[1]], at_exception=[entries[2]])
    merged = Callback.merge([one, None, two])
    assert merged.at_job_end == entries[:2]
    assert one.at_job_end == [entries[0]]
    assert one.update(two) is one
    assert one.update(None) is one
    assert (one.at_job_end, one.at_exception) == (entries[:2], [entries[2]])


def test_a_commander_end_callback_gets_the_node_that_its_lock_kept() -> None:
    seen: list[Any] = []
    callback = Callback(
        at_commander_end=[{"function": lambda task_node: seen.append(task_node), "inject_task_node": True}],
        task_node_auto_lock_num=1,
    )

    class Empty(Job):
        @tasker(flow.PASS_WORD)
        async def task(self) -> None: ...

    first, second = Empty(callback), Empty(callback)
    Commander[None]().run([first, second], auto_exit=True)
    assert seen == [first, first]


async def test_nodes_with_commanders_that_are_mocks() -> None:
    """What tests of agere programs lean on: the names by which a node speaks to its commander."""
    node: HandlerCoroutine[Any] = HandlerCoroutine()
    commander = AsyncMock()
    commander._call_handler = Mock()
    node._commander = commander
    job, call = Mock(), Mock()
    await node.put_job(job)
    node.call_handler(call)
    commander._put_job.assert_called_with(job=job, parent=node, requester=None)
    commander._call_handler.assert_called_with(handler=call, parent=node, requester=None)
    callback = Mock()
    node._callback = callback
    node._parent = parent = Mock(del_child=AsyncMock())
    await node.terminate_task_node()
    commander._callback_handle.assert_called_with(callback=callback, which="at_terminate", task_node=node)
    parent.del_child.assert_called_with(node)
    assert (node.state, node.children) == ("TERMINATED", [])
