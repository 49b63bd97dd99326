"""A server's threads, with the verbs of a runtime: code moves from embedded to remote by changing one line.

client      the verbs; arguments, results and errors are those of `tenuto.Runtime`
transport   requests with a token and an idempotency key, sent again when it may help; problems as errors
following   a thread's event stream, taken up again where it broke off
bodies      what the server sends, as rows, entries and events
where       which URL and token, and what is wrong with them

Events come from the server as they are in its log, and are folded here: a `ThreadState` is the same thing on
both sides. Nothing is kept between two requests but connections, and nothing is decided here.
"""

from tenuto.client.client import Client

__all__ = ["Client"]
