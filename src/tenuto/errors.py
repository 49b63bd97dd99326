"""What can be raised at a caller.

    TenutoError
    ├── ConfigurationError        the agent, tool, URL or environment cannot work as given
    │   └── UnknownAgent          no agent of that name in this runtime
    ├── InvalidInput              an argument is not of the documented form; nothing was written
    ├── NotFound                  no thread, interrupt or event of that id
    │   ├── ThreadNotFound
    │   └── InterruptNotFound
    ├── Conflict                  the state has moved on; nothing was written
    │   ├── AlreadyDecided        somebody else decided this interrupt: says who, what and when
    │   ├── Stale                 the digest or head the caller saw is not the present one
    │   └── LeaseLost             another worker has the thread now (a worker sees it, a caller never)
    ├── AccessDenied              a server does not let this token do that, or wants one
    ├── StoreError                the database or the server refused: locked, full, corrupt, unreachable
    │   └── NewerSchema           a later version of Tenuto wrote this database
    ├── Undecodable               a stored event that this version cannot read
    ├── ModelError                the provider could not be made to answer; `retryable` says which kind
    └── NotDone                   raised BY a tool that knows that nothing happened

A tool's failure is not in this tree: it becomes a result that the model reads.

Over HTTP an error is a problem whose `type` (RFC 9457) names its class, so that a client raises the same.
"""

from typing import Any, Final


class TenutoError(Exception):
    """Something went wrong in Tenuto."""

    def __init__(self, message: str | None = None, **facts: Any) -> None:
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(message or (type(self).__doc__ or "").splitlines()[0])


class ConfigurationError(TenutoError):
    """This configuration cannot work."""


class UnknownAgent(ConfigurationError):
    """No agent of that name is known here."""


class InvalidInput(TenutoError):
    """The input is not of the documented form."""


class NotFound(TenutoError):
    """There is no such thing."""


class ThreadNotFound(NotFound):
    """There is no such thread."""


class InterruptNotFound(NotFound):
    """There is no such interrupt."""


class Conflict(TenutoError):
    """The state has moved on; nothing was written."""


class AlreadyDecided(Conflict):
    """This interrupt was decided already.

    Facts: `interrupt_id`, `outcome`, `by`, `at_ms`.
    """

    interrupt_id: str
    outcome: str
    by: str
    at_ms: int


class Stale(Conflict):
    """What the caller saw is not what is there now."""


class LeaseLost(Conflict):
    """Another worker has this thread now."""


class AccessDenied(TenutoError):
    """The server does not let this token do that."""


class StoreError(TenutoError):
    """The database refused."""


class NewerSchema(StoreError):
    """This database was written by a later version of Tenuto."""


class Undecodable(TenutoError):
    """A stored event cannot be read by this version.

    Facts: `seq`, which one it is; 0 where that is not known. `newer`: it is known that a newer version
    wrote it, which can read it; one that is read from a log and is not, is damaged or erased.
    """

    seq: int = 0
    newer: bool = False


class ModelError(TenutoError):
    """The model could not be made to answer.

    Facts: `retryable` (bool), `status` (HTTP status or None), `retry_after_seconds` (float or None),
    `attempts` (how often it was asked).
    The message carries the provider's own words.
    """

    retryable: bool = False
    status: int | None = None
    retry_after_seconds: float | None = None
    attempts: int = 1


class NotDone(TenutoError):
    """Raised by a tool that knows that nothing happened: the call failed, and is not in doubt."""


# The `type` of a problem, and what it is here. These names are part of the HTTP API.
PROBLEM_TYPES: Final[dict[str, type[TenutoError]]] = {
    "urn:tenuto:unknown-agent": UnknownAgent,
    "urn:tenuto:invalid-input": InvalidInput,
    "urn:tenuto:thread-not-found": ThreadNotFound,
    "urn:tenuto:interrupt-not-found": InterruptNotFound,
    "urn:tenuto:not-found": NotFound,
    "urn:tenuto:already-decided": AlreadyDecided,
    "urn:tenuto:stale": Stale,
    "urn:tenuto:conflict": Conflict,
    "urn:tenuto:undecodable": Undecodable,
    "urn:tenuto:store-error": StoreError,
}
