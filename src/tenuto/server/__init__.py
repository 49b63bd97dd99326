"""The HTTP server: a runtime's verbs for those who are not in its process.

access      roles and callers, the two secrets of the environment, and which browsers are listened to
tokens      stored tokens: made, kept as a hash, revoked
callers     who sends a request, and what their role and scope cover
bodies      what comes in: one bounded JSON object, read strictly
posts       requests that change something, each done once per Idempotency-Key
contract    POST /api/agent/tasks and /api/agent/approve, which answer when the thread rests
v1          which path of /v1 leads where, and which role it needs
threads     threads: start, list, send, cancel, extend
interrupts  the inbox: list, get, resolve
token_routes  stored tokens, for admins
listed      pages of lists, as far as they are in the caller's scope
events      a thread's events, as pages, as server-sent events and as they are stored
shapes      the bodies of /v1, in and out; contract_shapes those of the contract
described   all of it as OpenAPI
streaming   answers that go on, at the pace of their reader
waiting     answers that are put off until a thread rests
heads       HEAD beside GET, and which methods a path has
problems    what goes wrong, as problem details
probes      /healthz and /readyz, for orchestrators
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
