"""The chat-completions wire: what arrives, as lenient structs, and what is sent.

What a field may hold differs between providers, so most are `Any` and looked at where they are used; a
field that is not named here is skipped by the decoder and costs next to nothing.

Some of what a provider says has to be sent back to it. `Reply.extra` and `AssistantMessage.extra` hold:

    extra_content, thought_signature   Gemini: sent back as they came, also `extra` of a call
    reasoning_details                  OpenRouter: sent back as they came, fragments joined
    reasoning_field                    DeepSeek, Kimi, GLM: where the reasoning came and goes back
    parts                              content parts of a kind unknown here, raw; not sent back
    refusal                            true when the text is a refusal; not sent back

The two about reasoning are kept only beside calls: that is where providers want them back, and some
refuse them elsewhere. An agent that changes its provider in mid-thread sends them to the new one, too.
"""

import json
from typing import Any, Final

import msgspec

from tenuto.messages import (
    AssistantMessage,
    Message,
    Request,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolSchema,
    UserMessage,
)

ECHOED: Final = ("extra_content", "thought_signature", "reasoning_details")

_encoder = msgspec.json.Encoder()


class FunctionPart(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class CallPart(msgspec.Struct):
    index: Any = None
    id: Any = None
    function: FunctionPart | None = None
    extra_content: Any = None


class Part(msgspec.Struct):
    """`message` of a whole answer or `delta` of a streamed one: the same fields."""

    content: Any = None
    refusal: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: list[CallPart] | None = None
    function_call: FunctionPart | None = None
    extra_content: Any = None
    thought_signature: Any = None


class Choice(msgspec.Struct):
    index: Any = 0
    delta: Part | None = None
    message: Part | None = None
    finish_reason: Any = None
    error: Any = None


class Chunk(msgspec.Struct):
    """One chunk of a stream, or a whole answer."""

    choices: list[Choice] | None = None
    model: Any = None
    usage: Any = None
    x_groq: Any = None
    error: Any = None


_chunk_decoder = msgspec.json.Decoder(Chunk)


def decode_chunk(data: bytes) -> Chunk:
    """Raises `ValueError` for what is not JSON or not of this form.

    Providers that cut a text between the halves of a surrogate pair send each half as an escape of its
    own, which the fast decoder rejects; the one of the standard library does not.
    """
    try:
        try:
            return _chunk_decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.convert(json.loads(data.decode("utf-8", "replace")), Chunk)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def request_body(model: str, request: Request, parameters: dict[str, Any], usage: bool) -> bytes:
    """The body to send; `usage` asks for the token counts at the end of a stream."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [_message(message) for message in request.messages],
        "stream": True,
    }
    if request.tools:
        body["tools"] = [_tool(schema) for schema in request.tools]
    body |= parameters
    body |= request.parameters
    if body["stream"] and usage:
        body.setdefault("stream_options", {"include_usage": True})
    return _encoder.encode(body)


def _tool(schema: ToolSchema) -> dict[str, Any]:
    function = {"name": schema.name, "description": schema.description, "parameters": schema.parameters}
    return {"type": "function", "function": function}


def _message(message: Message) -> dict[str, Any]:
    match message:
        case ToolMessage():
            return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
        case AssistantMessage():
            return _assistant(message)
        case UserMessage():
            return {"role": "user", "content": message.text}
        case SystemMessage():
            return {"role": "system", "content": message.text}
        case _:
            raise TypeError(f"no wire form for {type(message).__name__}")


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    # null beside calls, as OpenAI sends it; never null alone, which several endpoints refuse.
    body: dict[str, Any] = {"role": "assistant", "content": message.text or (None if message.calls else "")}
    if message.calls:
        body["tool_calls"] = [_call(call) for call in message.calls]
    if message.extra:
        body |= {name: message.extra[name] for name in ECHOED if name in message.extra}
        if message.reasoning and "reasoning_field" in message.extra:
            body[message.extra["reasoning_field"]] = message.reasoning
    return body


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    body: dict[str, Any] = {"id": call.id, "type": "function", "function": function}
    return body | call.extra if call.extra else body
