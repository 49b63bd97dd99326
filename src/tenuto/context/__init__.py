"""What the model reads: from a thread's state to a list of messages. Pure, and the user's to replace.

`render` walks the history once and goes on where it stopped, so that a step costs what is new. `lint`
mends a custom renderer's list where a provider would refuse it, and says what it mended. `to_user` is for
agents that talk to the user out of the arguments of their calls.
"""

from tenuto.context.render import Instructions, Rendering, instructed, lint, messages_of

__all__ = ["Instructions", "Rendering", "instructed", "lint", "messages_of"]
