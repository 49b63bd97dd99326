"""Break the logic of an agent into Jobs and handlers that form a tree.

A *Commander* is the root. A *Job* waits in its queue: Jobs run one after another, in the order in which
they were put. A *handler* runs at once, beside everything else. Both put further Jobs and call further
handlers, which become their children. A node has ended when its own work and all its children have; then
its callbacks run, and the end goes on to its parent. That is how a program knows that a fork has joined.

What flows through: calls to `put_job` and `call_handler` make nodes; the end of the last one, or `exit`,
ends the commander. A failure stays on its node and is told to `at_exception`; the tree goes on.

What it refuses to do: survive its process (that is the runtime's work), run Python in parallel (one
thread, one event loop), and hang: whatever a callback, a Job or a handler does, the tree ends.

Standard library only. Programs for agere 0.2 run here with their imports changed.
"""

from tenuto.flow._commander import CommanderAsync, CommanderAsyncInterface
from tenuto.flow._exceptions import (
    AttributeNotSetError,
    CommanderAlreadyRunningError,
    CommanderException,
    CommanderNotRunError,
    CycleError,
    FlowError,
    HandlerException,
    HandlerTerminatedError,
    JobException,
    NestedLoopError,
    NoCommanderError,
    NotHandlerError,
    NotTaskerError,
    TaskNodeException,
    TooManyJobsError,
)
from tenuto.flow._null_logger import get_null_logger
from tenuto.flow.adapter import LLMAsyncAdapter
from tenuto.flow.callbacks import Callback, CallbackDict, CallbackType, Params, RequiredCallbackDict
from tenuto.flow.edge import add_conditional_edge, add_edge
from tenuto.flow.handler import HandlerCoroutine, handler
from tenuto.flow.job import BasicJob, Job, tasker
from tenuto.flow.node import TaskNode
from tenuto.flow.scheduler import CallbackFailure
from tenuto.flow.tree import NodeView
from tenuto.flow.watchdog import Blockage
from tenuto.flow.work import PASS_WORD
from tenuto.splitter import async_dispatcher_tools_call_for_openai

Commander = CommanderAsync

__all__ = [
    "PASS_WORD",
    "AttributeNotSetError",
    "BasicJob",
    "Blockage",
    "Callback",
    "CallbackDict",
    "CallbackFailure",
    "CallbackType",
    "Commander",
    "CommanderAlreadyRunningError",
    "CommanderAsync",
    "CommanderAsyncInterface",
    "CommanderException",
    "CommanderNotRunError",
    "CycleError",
    "FlowError",
    "HandlerCoroutine",
    "HandlerException",
    "HandlerTerminatedError",
    "Job",
    "JobException",
    "LLMAsyncAdapter",
    "NestedLoopError",
    "NoCommanderError",
    "NodeView",
    "NotHandlerError",
    "NotTaskerError",
    "Params",
    "RequiredCallbackDict",
    "TaskNode",
    "TaskNodeException",
    "TooManyJobsError",
    "add_conditional_edge",
    "add_edge",
    "async_dispatcher_tools_call_for_openai",
    "get_null_logger",
    "handler",
    "tasker",
]
