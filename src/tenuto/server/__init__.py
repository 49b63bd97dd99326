"""The HTTP server: a runtime's verbs for those who are not in its process.

access      who may do what: the approver's token and the submitter's, and which browsers are listened to
bodies      what comes in: one bounded JSON object, read strictly
contract    POST /api/agent/tasks and /api/agent/approve, which answer when the thread rests
v1          which path of /v1 leads where, and who may take it
threads     threads: start, list, send, cancel, extend
interrupts  the inbox: list, get, resolve
shapes      the bodies of /v1, in and out
events      a thread's events, as pages, as server-sent events and as they are stored
streaming   answers that go on, at the pace of their reader
waiting     answers that are put off until a thread rests
probes      /healthz and /readyz, for orchestrators
problems    what goes wrong, as problem details
app         all of it as one FastAPI application, for those who mount it themselves
listening   a process that serves it, or only works, and stops gracefully

Requests flow through to a `Runtime`, states and rows flow back. Nothing is kept here: a server that dies
loses connections, and no task, decision or answer. It decides nothing by itself, coerces nothing that it
was sent, and does not listen where strangers could connect without a token.
"""

from tenuto.server.access import Access
from tenuto.server.app import create_app
from tenuto.server.listening import serve, work

__all__ = ["Access", "create_app", "serve", "work"]
