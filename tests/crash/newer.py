"""What `served` serves, by a worker of the next version: it writes events of version 2 and reads both."""

from tests.crash import served

from tenuto import events
from tenuto.store import postgres

events.VERSION = postgres.VERSION = 2  # type: ignore[misc]  # by this process for itself
events.UPCASTERS[1] = lambda event: event
agents = served.agents
