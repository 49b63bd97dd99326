"""The request as it goes out, beside the form that the API reference and the providers ask for."""

import json
from typing import Any

import pytest

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
from tenuto.models.wire import request_body

CALL = ToolCall("abcdefgh1", "f", '{"a":1}')
WIRE_CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}


def body_of(request: Request, parameters: dict[str, Any] | None = None, usage: bool = True) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request_body("m", request, parameters or {}, usage))
    return body


def test_a_whole_request() -> None:
    schema = ToolSchema("f", "Does f.", {"type": "object", "properties": {}})
    request = Request([SystemMessage("be brief"), UserMessage("hé")], tools=(schema,), parameters={"seed": 1})
    assert body_of(request, {"temperature": 0, "seed": 2}) == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hé"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "seed": 1,
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": "Does f.", "parameters": schema.parameters},
            }
        ],
    }


def test_no_field_that_says_nothing() -> None:
    assert body_of(Request([UserMessage("a")]), usage=False).keys() == {"model", "messages", "stream"}
    assert "stream_options" not in body_of(Request([UserMessage("a")]), {"stream": False})


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (ToolMessage("abcdefgh1", "ok"), {"role": "tool", "tool_call_id": "abcdefgh1", "content": "ok"}),
        (AssistantMessage("hi"), {"role": "assistant", "content": "hi"}),
        (AssistantMessage(""), {"role": "assistant", "content": ""}),
        (AssistantMessage("", (CALL,)), {"role": "assistant", "content": None, "tool_calls": [WIRE_CALL]}),
        (AssistantMessage("x", (CALL,)), {"role": "assistant", "content": "x", "tool_calls": [WIRE_CALL]}),
        (AssistantMessage("x", reasoning="hm"), {"role": "assistant", "content": "x"}),
    ],
)
def test_messages(message: Message, wire: dict[str, Any]) -> None:
    assert body_of(Request([message]))["messages"] == [wire]


def test_what_a_provider_wants_back() -> None:
    call_extra = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    call = ToolCall("abcdefgh1", "f", '{"a":1}', extra=call_extra)
    extra = {
        "reasoning_field": "reasoning_content",
        "reasoning_details": [{"type": "reasoning.text"}],
        "thought_signature": "c2ln",
        "extra_content": {"google": {}},
        "parts": [{"type": "image"}],
        "refusal": True,
    }
    message = AssistantMessage("x", (call,), reasoning="hm", extra=extra)
    assert body_of(Request([message]))["messages"] == [
        {
            "role": "assistant",
            "content": "x",
            "reasoning_content": "hm",
            "reasoning_details": [{"type": "reasoning.text"}],
            "thought_signature": "c2ln",
            "extra_content": {"google": {}},
            "tool_calls": [WIRE_CALL | call_extra],
        }
    ]
