"""Split a streamed reply, while it arrives, into text for the user and tool calls.

A model can talk and call a tool in one breath when its tools take a `to_user` argument: the text
sits inside the JSON of the call's arguments. Here that text is taken out and decoded as it comes,
and what is left of the arguments stays valid JSON.

What flows through: plain values go in (`Splitter.feed_text`, `Splitter.feed_call`), typed pieces come
out. An incremental tokenizer follows the JSON of each call; every character is looked at a fixed
number of times, so the work is linear in the length of the reply, however it is cut. The asynchronous
`async_dispatcher_tools_call_for_openai` is a thin layer over this core for OpenAI-format chunks.

What it refuses to do: guess. Arguments that are not valid JSON are handed on as the raw text that
came, with the problem named; nothing is repaired and nothing is dropped.

Declared policies:

- `to_user` counts only as a key of the outermost object. A string is decoded and spoken; `null` says
  nothing; any other value is spoken as its raw JSON. A repeated key is spoken each time it comes.
- An escaped surrogate without its partner is spoken as U+FFFD, since no UTF-8 text can hold it. In
  the arguments the escape stays as it was written.
- The texts of two calls are separated by one newline. If calls are interleaved, a text that has begun
  is finished before the next one starts.
- `NaN` and `Infinity` are not JSON.
"""

from tenuto.splitter.core import CallFinished, Piece, Splitter, UserText
from tenuto.splitter.dispatcher import async_dispatcher_tools_call_for_openai

__all__ = [
    "CallFinished",
    "Piece",
    "Splitter",
    "UserText",
    "async_dispatcher_tools_call_for_openai",
]
