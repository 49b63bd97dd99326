"""Who answers: an OpenAI-compatible endpoint, or without one a script that sees the same messages."""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from typing import Any, cast

CHARACTERS_A_CHUNK = 4
SECONDS_A_CHUNK = 0.01


def ask_provider(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Iterable[Any]:
    """The streamed reply of the endpoint that PROVIDER_URL, _MODEL and _API_KEY name."""
    from openai import OpenAI

    client = OpenAI(base_url=os.environ["PROVIDER_URL"], api_key=os.environ.get("PROVIDER_API_KEY") or "none")
    options: dict[str, Any] = {"tools": tools} if tools else {}
    stream: Iterable[Any] = client.chat.completions.create(
        model=os.environ.get("PROVIDER_MODEL", ""), messages=cast("Any", messages), stream=True, **options
    )
    return stream


def ask_script(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Iterator[Any]:
    """Looks the weather up for every city in the question, then says what it has found."""
    asked_at = max(place for place, message in enumerate(messages) if message["role"] == "user")
    found = [json.loads(message["content"]) for message in messages[asked_at:] if message["role"] == "tool"]
    if found:
        parts = [f"{one['temperature']} degrees {one['unit']} in {one['location']}" for one in found]
        return say("It has " + " and ".join(parts) + ".")
    question = messages[asked_at]["content"]
    cities = re.findall(r"Paris|Beijing|San Francisco", question, re.IGNORECASE)
    if not cities:
        return say("I know the weather in Paris, Beijing and San Francisco.")
    return call(
        "get_current_weather", [{"to_user": f"Looking at {city} …", "location": city} for city in cities]
    )


def say(text: str) -> Iterator[Any]:
    """A streamed reply of plain text."""
    for part in _parts(text):
        yield _chunk({"content": part})
    yield _chunk({}, "stop")


def call(name: str, arguments: list[dict[str, Any]]) -> Iterator[Any]:
    """A streamed reply that calls a tool once for each of the arguments."""
    for index, one in enumerate(arguments):
        function = {"name": name, "arguments": ""}
        yield _chunk({"tool_calls": [{"index": index, "id": f"call_{index}", "function": function}]})
        for part in _parts(json.dumps(one)):
            yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    yield _chunk({}, "tool_calls")


def _parts(text: str) -> Iterator[str]:
    for at in range(0, len(text), CHARACTERS_A_CHUNK):
        time.sleep(SECONDS_A_CHUNK)
        yield text[at : at + CHARACTERS_A_CHUNK]


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
