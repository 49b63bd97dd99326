"""What was said, for traces that are told to record it: bounded, and in the shape of the conventions.

The attributes are JSON text, because attributes of spans have no structure (gen-ai-input-messages.json and
gen-ai-output-messages.json of the semantic conventions say which).
"""

from typing import Any

import msgspec

from tenuto.limits import MAX_TRACED_CHARACTERS, MAX_TRACED_MESSAGES
from tenuto.messages import AssistantMessage, Message, Reply, Request, SystemMessage, ToolMessage, UserMessage


def cut(text: str) -> str:
    """At most `MAX_TRACED_CHARACTERS` of it, with a mark where something is missing."""
    return text if len(text) <= MAX_TRACED_CHARACTERS else f"{text[: MAX_TRACED_CHARACTERS - 1]}…"


def of_request(request: Request) -> dict[str, str]:
    """The last `MAX_TRACED_MESSAGES` messages, and the instructions apart from them."""
    spoken = [message for message in request.messages if not isinstance(message, SystemMessage)]
    system = [message for message in request.messages if isinstance(message, SystemMessage)]
    found = {"gen_ai.input.messages": _json([_message(message) for message in spoken[-MAX_TRACED_MESSAGES:]])}
    if system:
        found["gen_ai.system_instructions"] = _json([_text(message.text) for message in system])
    return found


def of_reply(reply: Reply) -> dict[str, str]:
    """The one choice that there is."""
    calls = [_call(call.provider_id, call.name, call.arguments or "") for call in reply.calls]
    parts = ([_text(reply.text)] if reply.text else []) + calls
    message = {"role": "assistant", "parts": parts, "finish_reason": reply.finish}
    return {"gen_ai.output.messages": _json([message])}


def _message(message: Message) -> dict[str, Any]:
    match message:
        case UserMessage(text=text):
            return {"role": "user", "parts": [_text(text)]}
        case ToolMessage(call_id=call_id, text=text):
            part = {"type": "tool_call_response", "id": call_id, "response": cut(text)}
            return {"role": "tool", "parts": [part]}
        case AssistantMessage(text=text, calls=calls):
            made = [_call(call.id, call.name, call.arguments) for call in calls]
            return {"role": "assistant", "parts": ([_text(text)] if text else []) + made}
        case _:
            return {"role": "system", "parts": []}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": cut(text)}


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "arguments": cut(arguments)}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
