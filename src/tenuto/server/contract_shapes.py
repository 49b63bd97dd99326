"""The bodies of /api/agent/, for their description: `contract` reads and writes them itself."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from tenuto.server.shapes import Id, Time


class NewTask(msgspec.Struct):
    """A task for the server's agent. Further fields are not looked at."""

    task: Annotated[str, msgspec.Meta(min_length=1, pattern=r"\S")]


class Approval(msgspec.Struct):
    """A decision. Without `action_id` only an action that can alone be meant is decided."""

    task_id: Id
    approved: bool
    action_id: str | None = None


class Action(msgspec.Struct):
    """What waits for a person; `args` are the exact ones that will run. `kind` and `prompt` where it is no
    approval.
    """

    name: str
    args: dict[str, Any]
    action_id: Id
    kind: Literal["question", "review"] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET


class Answer(msgspec.Struct):
    """What became of a task; which fields there are depends on the status."""

    task_id: Id
    status: Literal[
        "completed",
        "awaiting_approval",
        "awaiting_review",
        "awaiting_answer",
        "step_limit",
        "halted",
        "failed",
        "cancelled",
        "sleeping",
        "running",
    ]
    answer: str | UnsetType = UNSET
    action: Action | UnsetType = UNSET
    actions: list[Action] | UnsetType = UNSET
    limit: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    steps: int | UnsetType = UNSET


class ContractProblem(msgspec.Struct):
    """Why it was refused. `actions`: what could be meant. `outcome`, `by`, `at`: how it was decided."""

    error: str
    actions: list[Action] | UnsetType = UNSET
    outcome: str | UnsetType = UNSET
    by: str | UnsetType = UNSET
    at: Time | UnsetType | None = UNSET


# What a status means here; what the others mean, they mean everywhere.
MEANS: Final = {
    200: "The thread rests: completed, awaiting_…, step_limit, halted, cancelled or sleeping",
    202: "The thread still runs",
    400: "The body or the key is not of this form",
    404: "No pending action for this task",
    409: "It is not clear which action is meant, or it was decided already",
    422: "The Idempotency-Key was used with another body",
    502: "The thread failed",
}

# path -> operationId, summary, body
CONTRACT: Final[dict[str, tuple[str, str, type]]] = {
    "/api/agent/tasks": ("submit_task", "Start a task and wait", NewTask),
    "/api/agent/approve": ("approve_action", "Decide an action and wait", Approval),
}
