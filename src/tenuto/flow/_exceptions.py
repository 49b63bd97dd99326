"""What the flow can raise at a caller.

    FlowError
    ├── TaskNodeException
    │   ├── NoCommanderError, AttributeNotSetError, CycleError
    │   ├── JobException ── NotTaskerError
    │   └── HandlerException ── NotHandlerError, HandlerTerminatedError
    └── CommanderException
        └── CommanderNotRunError, CommanderAlreadyRunningError, NestedLoopError, TooManyJobsError

A failure inside a Job, a handler or a callback is not raised here: it is kept on its node, logged, and
told to `at_exception`.
"""

from tenuto.errors import TenutoError


class FlowError(TenutoError):
    """Something went wrong in a flow."""


class TaskNodeException(FlowError):
    """Something is wrong with a node."""


class CommanderException(FlowError):
    """Something is wrong with a commander."""


class JobException(TaskNodeException):
    """Something is wrong with a Job."""


class HandlerException(TaskNodeException):
    """Something is wrong with a handler."""


class NoCommanderError(TaskNodeException):
    """The node has no commander yet."""


class AttributeNotSetError(TaskNodeException):
    """The attribute of the node is not set yet."""


class CycleError(TaskNodeException):
    """The node would wait for itself."""


class NotTaskerError(JobException):
    """The task of a Job has to be decorated with @tasker(PASS_WORD)."""


class NotHandlerError(HandlerException):
    """A handler has to be decorated with @handler(PASS_WORD) and called."""


class HandlerTerminatedError(HandlerException):
    """The handler was terminated before it had a result."""


class CommanderNotRunError(CommanderException):
    """The commander does not run."""


class CommanderAlreadyRunningError(CommanderException):
    """The commander runs already."""


class NestedLoopError(CommanderException, RuntimeError):
    """The call would block the event loop that has to do the work."""


class TooManyJobsError(CommanderException):
    """More Jobs wait than the commander was told to hold."""
