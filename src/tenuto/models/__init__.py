"""Models: where a question leaves the process and a reply comes back.

A `Request` flows in, a `Reply` flows out, and deltas are shown on the way (`tenuto.messages` has the
contract). `openai.py` speaks to any OpenAI-compatible endpoint and does the waiting and the retries; what
it receives goes through pure modules: `sse.py` cuts bytes into frames, `wire.py` decodes and renders,
`assemble.py` makes the reply, `failure.py` says what an error means, `reader.py` joins these.
`scripted.py` is the fake for tests and benchmarks.

Nothing here knows of threads, events or tools: a model does not decide what happens with its reply, does
not judge arguments, and keeps nothing between two questions but its connections.
"""

from tenuto.models.openai import OpenAIModel, Patience
from tenuto.models.scripted import ScriptedModel, call

__all__ = ["OpenAIModel", "Patience", "ScriptedModel", "call"]
