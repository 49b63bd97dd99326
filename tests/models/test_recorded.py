"""Every recorded provider answer, with what its bytes say: read off by hand, or joined in a few lines."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.models.reading import assemble, read_reply

from tenuto.errors import ModelError
from tenuto.messages import CallRequest, ReasoningDelta, Reply, TextDelta, Usage
from tenuto.models.failure import body_failure
from tenuto.models.reader import ReplyReader
from tenuto.models.wire import Chunk, decode_chunk


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    """The recorded streams all have one `data: ` line per event and LF line ends."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ") and b"[DONE]" not in line]
    return [json.loads(line) for line in lines]


def joined(body: bytes, field: str) -> str:
    parts = [choice["delta"].get(field) for chunk in chunks_of(body) for choice in chunk["choices"]]
    return "".join(part or "" for part in parts)


def message_of(body: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(body)["choices"][0]["message"]
    return message


def parallel_calls(body: bytes) -> Reply:
    return Reply(
        calls=(
            CallRequest("get_country", "{}", "call_q2UyBRP7eXNTzAoR8lEhjc9Z"),
            CallRequest("get_product_name", "{}", "call_b51ijcpFkDiTQG1bQzsrmtW5"),
        ),
        usage=Usage(input=364, output=40),
        model="gpt-4o-2024-08-06",
        finish="tool_calls",
    )


def moderation(body: bytes) -> Reply:
    usage = Usage(input=13, output=11)
    return Reply(text="Paris.", usage=usage, model="gpt-5-2025-08-07", finish="stop")


def one_call(body: bytes) -> Reply:
    return Reply(
        calls=(CallRequest("get_capital", '{"country":"UK"}', "call_ZR5UUuTt3pf61kjwAJIYdVMj"),),
        usage=Usage(input=53, output=15),
        model="gpt-4o-mini-2024-07-18",
        finish="tool_calls",
    )


def groq_whole_call(body: bytes) -> Reply:
    thought = 'We need to call the function with correct parameter "name". Provide a name, e.g., "example".'
    identifier = "fc_bfb39741-3748-4def-9886-a93fc9c64a90"
    return Reply(
        reasoning=thought,
        calls=(CallRequest("get_something_by_name", '{"name":"example"}', identifier),),
        usage=Usage(input=304, output=49, reasoning=23),
        model="openai/gpt-oss-120b",
        finish="tool_calls",
    )


def snowflake(body: bytes) -> Reply:
    lines = ["15 × 27 = **405**", "", "Here's the breakdown:", "- 15 × 20 = 300", "- 15 × 7 = 105"]
    return Reply(
        text="\n".join([*lines, "- 300 + 105 = **405**"]),
        reasoning="15 * 27 = 405",
        usage=Usage(input=45, output=73),
        model="claude-sonnet-4-6",
    )


def zai(body: bytes) -> Reply:
    return Reply(
        text="4",
        reasoning=joined(body, "reasoning_content"),
        usage=Usage(input=13, output=564, reasoning=561),
        model="glm-4.7",
        finish="stop",
    )


def crusoe(body: bytes) -> Reply:
    usage, model = Usage(input=46, output=14), "meta-llama/Llama-3.3-70B-Instruct"
    return Reply(text="1, 2, 3, 4, 5", usage=usage, model=model, finish="stop")


def gemini(body: bytes) -> Reply:
    message = message_of(body)
    return Reply(
        calls=(CallRequest("get_current_time", "{}", ""),),
        usage=Usage(input=35, output=12),
        model="gemini-2.5-pro-preview-05-06",
        finish="tool_calls",
        extra={name: message[name] for name in ("extra_content", "thought_signature")},
    )


def openrouter_null(body: bytes) -> Reply:
    return Reply(
        text="I'll search for education content for you.",
        calls=(CallRequest("find_education_content", None, "toolu_vrtx_015QAXScZzRDPttiPoc34AdD"),),
        usage=Usage(input=568, output=48),
        model="anthropic/claude-sonnet-4.5",
        finish="tool_calls",
    )


def deepseek(body: bytes) -> Reply:
    return Reply(
        text="Let me get your name and roll the die!",
        reasoning=message_of(body)["reasoning_content"],
        calls=(
            CallRequest("get_player_name", "{}", "call_00_6edlnw3Z1MgeMfey687g8451"),
            CallRequest("roll_dice", "{}", "call_01_km02sac7sHxNDPATKLZy7705"),
        ),
        usage=Usage(input=875, output=79, reasoning=26),
        model="deepseek-v4-flash",
        finish="tool_calls",
        extra={"reasoning_field": "reasoning_content"},
    )


def ollama(body: bytes) -> Reply:
    return Reply(
        reasoning=message_of(body)["reasoning"],
        calls=(CallRequest("final_result", '{"city":"Paris","country":"France"}', "call_o2vnpxrw"),),
        usage=Usage(input=206, output=194),
        model="gpt-oss:20b",
        finish="tool_calls",
    )


def mistral_parts(body: bytes) -> Reply:
    thinking, text = message_of(body)["content"]
    return Reply(
        text=text["text"],
        reasoning=thinking["thinking"][0]["text"],
        usage=Usage(input=664, output=747),
        model="magistral-medium-latest",
        finish="stop",
    )


def mistral_call(body: bytes) -> Reply:
    return Reply(
        calls=(CallRequest("get_image", "{}", "FI5qQGzDE"),),
        usage=Usage(input=65, output=16),
        model="pixtral-12b-latest",
        finish="tool_calls",
    )


def huggingface(body: bytes) -> Reply:
    return Reply(
        text=message_of(body)["content"],
        usage=Usage(input=4, output=100),
        model="deepseek-ai/DeepSeek-R1",
        finish="length",
    )


def azure(body: bytes) -> Reply:
    usage, model = Usage(input=14, output=9), "gpt-4o-2024-11-20"
    return Reply(text="The capital of France is **Paris**.", usage=usage, model=model, finish="stop")


EXPECTED: dict[str, Callable[[bytes], Reply]] = {
    "openai-parallel-tool-calls.sse": parallel_calls,
    "openai-moderation-empty-choices-mid.sse": moderation,
    "openai-stream-tool-then-text.sse": one_call,
    "groq-whole-tool-call-one-delta.sse": groq_whole_call,
    "snowflake-no-finish-reason.sse": snowflake,
    "zai-reasoning-stream.sse": zai,
    "crusoe-vllm-stream.sse": crusoe,
    "gemini-compat-toolcall-empty-id.json": gemini,
    "openrouter-args-null.json": openrouter_null,
    "deepseek-parallel-toolcalls-reasoning.json": deepseek,
    "ollama-toolcall.json": ollama,
    "mistral-content-list.json": mistral_parts,
    "mistral-toolcall-empty-args.json": mistral_call,
    "huggingface-tool_calls-empty-array.json": huggingface,
    "azure-call.json": azure,
}

# Status, whether to try again, and words that the provider itself used.
FAILURES: dict[str, tuple[int | None, bool, str]] = {
    "groq-tool-use-failed-midstream.sse": (400, True, "missing properties: 'name'"),
    "invalid-200-no-choices.json": (None, True, '"contentType": "application/json"'),
    "openrouter-http429.json": (429, True, "temporarily rate-limited upstream"),
    "openai-http404-model.json": (404, False, "The model `gpt-5.2-proo` does not exist"),
}
STREAMS = [name for name in [*EXPECTED, *FAILURES] if name.endswith(".sse")]


@pytest.fixture
def recorded(shared: Path) -> Path:
    return shared / "provider-streams"


def outcome(chunks: list[bytes]) -> Reply | tuple[str, bool]:
    reader = ReplyReader()
    try:
        for chunk in chunks:
            reader.feed(chunk)
        return reader.finish()
    except ModelError as error:
        return str(error), error.retryable


def test_every_recorded_answer_is_here(recorded: Path) -> None:
    index = json.loads((recorded / "INDEX.json").read_text())
    assert {entry["file"] for entry in index} == {*EXPECTED, *FAILURES}


@pytest.mark.parametrize("name", EXPECTED)
def test_reply(recorded: Path, name: str) -> None:
    body = (recorded / name).read_bytes()
    assert read_reply(body) == EXPECTED[name](body)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".sse")])
def test_the_pure_function_alone(recorded: Path, name: str) -> None:
    body = (recorded / name).read_bytes()
    chunks: list[Chunk] = [decode_chunk(json.dumps(chunk).encode()) for chunk in chunks_of(body)]
    assert assemble(chunks) == EXPECTED[name](body)


@pytest.mark.parametrize("name", FAILURES)
def test_failure(recorded: Path, name: str) -> None:
    status, retryable, words = FAILURES[name]
    body = (recorded / name).read_bytes()
    index = json.loads((recorded / "INDEX.json").read_text())
    http_status = next(entry["status"] for entry in index if entry["file"] == name)
    if http_status == 200:
        with pytest.raises(ModelError) as caught:
            read_reply(body)
        error = caught.value
    else:
        error = body_failure(body, http_status)
    assert (error.status, error.retryable) == (status, retryable)
    assert words in str(error)


@pytest.mark.parametrize("name", ["zai-reasoning-stream.sse", "snowflake-no-finish-reason.sse"])
def test_what_is_shown_is_what_is_replied(recorded: Path, name: str) -> None:
    body = (recorded / name).read_bytes()
    shown: list[Any] = []
    reader = ReplyReader(shown.append)
    reader.feed(body)
    reply = reader.finish()
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == reply.text
    assert "".join(delta.text for delta in shown if isinstance(delta, ReasoningDelta)) == reply.reasoning
    assert reply.text == joined(body, "content")


@pytest.mark.parametrize("name", STREAMS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(data=st.data())
def test_any_chunking_gives_the_same_reply(recorded: Path, name: str, data: st.DataObject) -> None:
    body = (recorded / name).read_bytes()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=60)))
    chunks = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    assert outcome(chunks) == outcome([body])


@pytest.mark.parametrize("name", STREAMS)
def test_byte_by_byte(recorded: Path, name: str) -> None:
    body = (recorded / name).read_bytes()
    assert outcome([body[i : i + 1] for i in range(len(body))]) == outcome([body])


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".sse")])
def test_a_stream_cut_anywhere_is_the_whole_reply_or_an_error(recorded: Path, name: str) -> None:
    """Never a part of the reply. Only the token counts may be missing, as they come after the end."""
    body = (recorded / name).read_bytes()
    whole = EXPECTED[name](body)
    for place in range(0, len(body), 7):
        found = outcome([body[:place]])
        if isinstance(found, Reply):
            assert (found.text, found.reasoning, found.calls) == (whole.text, whole.reasoning, whole.calls)
        else:
            assert found[1], "a cut stream may be asked for again"
