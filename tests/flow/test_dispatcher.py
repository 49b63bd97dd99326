"""The splitter over OpenAI-format chunks: two streams out of one, whatever the provider does."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto.flow import async_dispatcher_tools_call_for_openai


def chunk(
    content: Any = None, calls: list[dict[str, Any]] | None = None, finish: str | None = None
) -> dict[str, Any]:
    return {
        "choices": [{"index": 0, "delta": {"content": content, "tool_calls": calls}, "finish_reason": finish}]
    }


def piece(
    index: int | None, arguments: Any = None, name: str | None = None, id: str | None = None
) -> dict[str, Any]:
    return {"index": index, "id": id, "function": {"name": name, "arguments": arguments}}


def as_object(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: as_object(inner) for key, inner in value.items()})
    if isinstance(value, list):
        return [as_object(inner) for inner in value]
    return value


async def stream(chunks: Iterable[Any], error: BaseException | None = None) -> AsyncIterator[Any]:
    for one in chunks:
        await asyncio.sleep(0)
        yield one
    if error is not None:
        raise error


async def collect(parts: AsyncIterator[str], into: list[str]) -> None:
    async for part in parts:
        into.append(part)  # noqa: PERF401 - what came before an error is wanted too


async def dispatched(chunks: Iterable[Any]) -> tuple[str, list[Any]]:
    make = await async_dispatcher_tools_call_for_openai(stream(chunks))
    async with asyncio.timeout(5):
        text = "".join([part async for part in make("to_user")])
        return text, [json.loads(call) async for call in make("tool_call")]


REPLY = [
    chunk("Well. "),
    chunk("", [piece(0, '{"to_user": "Loo', "look", "c0")]),
    chunk(None, [piece(0, 'king", "x": 1}'), piece(1, '{"y": "\\u4f60",', "find", "c1")]),
    chunk(None, [piece(1, ' "to_user": "and \\"finding\\""}')]),
    {"choices": []},
    None,
    chunk(None, None, "tool_calls"),
    {"choices": [], "usage": {"total_tokens": 7}},
]


@pytest.mark.parametrize("form", [lambda value: value, as_object], ids=["dicts", "objects"])
async def test_a_reply_of_text_and_two_calls(form: Any) -> None:
    text, calls = await dispatched([form(one) for one in REPLY])
    assert text == 'Well. Looking\nand "finding"'
    assert calls == [
        {"tool_call_index": 0, "tool_call_id": "c0", "name": "look", "arguments": {"x": 1}},
        {"tool_call_index": 1, "tool_call_id": "c1", "name": "find", "arguments": {"y": "你"}},
    ]


async def test_chunks_of_the_openai_library() -> None:
    from openai.types.chat import ChatCompletionChunk

    frame = {"id": "x", "created": 0, "model": "m", "object": "chat.completion.chunk"}
    sdk = [
        ChatCompletionChunk.model_validate({**frame, **one})
        for one in REPLY
        if one is not None and "usage" not in one
    ]
    text, calls = await dispatched(sdk)
    assert text == 'Well. Looking\nand "finding"'
    assert [call["arguments"] for call in calls] == [{"x": 1}, {"y": "你"}]


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "tool_calls", "function_call", None])
async def test_any_finish_reason_or_none(finish: str | None) -> None:
    chunks = [chunk(None, [piece(0, '{"to_user":"hi","x":1}', "look", "c0")]), chunk("bye", None, finish)]
    text, calls = await dispatched(chunks)
    assert text == "hibye"
    assert [call["arguments"] for call in calls] == [{"x": 1}]


async def test_a_cut_off_call_comes_with_its_error_and_raw_text() -> None:
    chunks = [chunk(None, [piece(0, '{"to_user":"hi","x', "look", "c0")]), chunk(None, None, "length")]
    text, (call,) = await dispatched(chunks)
    assert text == "hi"
    assert call["arguments"] == '{"to_user":"hi","x'
    assert "not valid JSON" in call["error"]


async def test_forms_that_single_providers_use() -> None:
    """No arguments, arguments as an object, the old function_call, content in parts, a second choice."""
    chunks = [
        chunk([{"type": "text", "text": "parts"}]),
        chunk(None, [piece(0, "", "bare", "c0")]),
        chunk(None, [piece(1, {"x": 1}, "whole", "c1")]),
        {"choices": [{"index": 1, "delta": {"content": "another answer"}}]},
        {"choices": [{"delta": {"function_call": {"name": "old", "arguments": '{"z"'}}}]},
        {"choices": [{"delta": {"function_call": {"arguments": ":2}"}}}]},
    ]
    text, calls = await dispatched(chunks)
    assert text == "parts"
    assert sorted((call["name"], call["tool_call_id"], str(call["arguments"])) for call in calls) == [
        ("bare", "c0", "{}"),
        ("old", None, "{'z': 2}"),
        ("whole", "c1", "{'x': 1}"),
    ]
    assert len({call["tool_call_index"] for call in calls}) == 3


@pytest.mark.timeout(5)
async def test_an_error_of_the_source_reaches_both_consumers_after_what_came() -> None:
    make = await async_dispatcher_tools_call_for_openai(
        stream([chunk("so far"), chunk(None, [piece(0, '{"x":', "look", "c0")])], OSError("gone"))
    )
    texts: list[str] = []
    calls: list[str] = []
    for name, into in (("to_user", texts), ("function_call", calls)):
        with pytest.raises(OSError, match="gone"):
            await collect(make(name), into)
    assert texts == ["so far"]
    assert json.loads(calls[0])["arguments"] == '{"x":'


@pytest.mark.timeout(5)
async def test_an_abandoned_consumer_blocks_nobody() -> None:
    make = await async_dispatcher_tools_call_for_openai(stream(REPLY * 50))
    abandoned = make("to_user")
    assert await anext(abandoned) == "Well. "
    await abandoned.aclose()
    never_started = make("to_user")
    calls = [call async for call in make("tool_call")]
    assert len(calls) >= 2
    del never_started


@pytest.mark.timeout(5)
async def test_two_generators_of_one_kind_both_see_everything() -> None:
    make = await async_dispatcher_tools_call_for_openai(stream(REPLY))

    async def read() -> str:
        return "".join([part async for part in make("to_user")])

    first, second = await asyncio.gather(read(), read())
    assert first == second == await read() == 'Well. Looking\nand "finding"'


@pytest.mark.timeout(5)
async def test_the_text_is_there_while_the_source_still_waits() -> None:
    gate = asyncio.Event()

    async def source() -> AsyncIterator[Any]:
        yield chunk(None, [piece(0, '{"to_user": "Look, ', "look", "c0")])
        await gate.wait()
        yield chunk(None, [piece(0, 'done"}')])

    make = await async_dispatcher_tools_call_for_openai(source())
    texts = make("to_user")
    assert await anext(texts) == "Look, "
    gate.set()
    assert await anext(texts) == "done"
    assert [json.loads(call)["arguments"] async for call in make("tool_call")] == [{}]


async def test_misuse_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="asynchronous iterable"):
        await async_dispatcher_tools_call_for_openai([chunk("x")])  # type: ignore[arg-type]  # that is the point
    make = await async_dispatcher_tools_call_for_openai(stream([]))
    with pytest.raises(ValueError, match="no generator 'user'"):
        make("user")
