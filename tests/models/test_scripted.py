from typing import Any

import pytest

from tenuto.errors import ModelError
from tenuto.messages import CallRequest, ReasoningDelta, Reply, Request, TextDelta, UserMessage
from tenuto.models import ScriptedModel, call
from tenuto.models.scripted import Answer

ASK = Request([UserMessage("hi")])


async def test_answers_of_every_kind_in_their_order() -> None:
    whole = Reply(text="a", reasoning="hm")
    answers: list[Answer] = ["text", call("f", n=1), [call("f"), call("g", s="é")], whole, KeyError("broken")]
    model = ScriptedModel(answers)
    assert await model.reply(ASK) == Reply(text="text", finish="stop")
    assert await model.reply(ASK) == Reply(calls=(CallRequest("f", '{"n":1}'),), finish="tool_calls")
    assert (await model.reply(ASK)).calls == (CallRequest("f", "{}"), CallRequest("g", '{"s":"é"}'))
    assert await model.reply(ASK) is whole
    with pytest.raises(KeyError, match="broken"):
        await model.reply(ASK)
    with pytest.raises(ModelError, match="'scripted' has no more answers") as caught:
        await model.reply(ASK)
    assert not caught.value.retryable
    assert len(model.requests) == 6


async def test_a_function_sees_the_request() -> None:
    async def later(request: Request) -> str:
        return f"{len(request.messages)} later"

    assert (await ScriptedModel(lambda request: f"{len(request.messages)}").reply(ASK)).text == "1"
    assert (await ScriptedModel(later, name="m").reply(ASK)).text == "1 later"
    with pytest.raises(TypeError, match="not int"):
        await ScriptedModel(lambda request: 5).reply(ASK)  # type: ignore[arg-type, return-value]  # it is wrong


async def test_what_is_shown() -> None:
    shown: list[Any] = []
    await ScriptedModel([Reply(text="a", reasoning="hm")]).reply(ASK, shown.append)
    assert shown == [ReasoningDelta("hm"), TextDelta("a")]


async def test_recorded_requests_do_not_change_with_the_callers_list() -> None:
    request = Request([UserMessage("hi")])
    model = ScriptedModel(lambda _: "a")
    await model.reply(request)
    request.messages.append(UserMessage("more"))
    assert model.requests == [ASK]
    light = ScriptedModel(lambda _: "a", record=False)
    await light.reply(request)
    assert light.requests == []
