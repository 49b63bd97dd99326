"""An agent that opts in talks to the user out of the arguments of its calls, while they arrive."""

import asyncio
import json
from collections.abc import Callable

import pytest

from tenuto import Agent, ConfigurationError, Runtime, tool
from tenuto.context.to_user import Speaker, spoken
from tenuto.events import Entry, ModelReplied
from tenuto.messages import (
    AttemptFailed,
    CallDelta,
    CallRequest,
    Delta,
    ReasoningDelta,
    Reply,
    Request,
    TextDelta,
)

ran: list[str] = []


@tool(effect="read")
async def look(place: str) -> str:
    """Look."""
    ran.append(place)
    return "seen"


ARGUMENTS = json.dumps({"to_user": 'I "look" …\n', "place": "attic"}, ensure_ascii=True)


class Slow:
    """Streams a call in single characters, and waits before the last of them."""

    name = "slow"

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.requests: list[Request] = []

    async def reply(self, request: Request, emit: Callable[[Delta], None]) -> Reply:
        self.requests.append(request)
        if len(self.requests) > 1:
            return Reply(text="done", finish="stop")
        for character in ARGUMENTS[:-10]:
            emit(CallDelta(0, "look", character))
        await self.finish.wait()
        return Reply(calls=(CallRequest("look", ARGUMENTS),), finish="tool_calls")


async def test_the_text_arrives_before_the_arguments_are_complete():
    ran.clear()
    model = Slow()
    agent = Agent("ops", tools=[look], model=model, to_user=True)
    async with Runtime([agent], "sqlite://:memory:") as runtime, asyncio.timeout(10):
        thread = await runtime.start("ops", "go")
        said, events = "", []
        async for item in runtime.follow(thread, rest=True):
            if isinstance(item, TextDelta) and not model.finish.is_set():
                said += item.text
                if said == 'I "look" …\n':
                    model.finish.set()
            elif isinstance(item, Entry):
                events.append(item.event)
        assert said == 'I "look" …\n'
        reply = next(event for event in events if isinstance(event, ModelReplied))
        assert reply.text == said
        assert json.loads(reply.calls[0].exact) == {"place": "attic"}
        assert ran == ["attic"]
        first, second = model.requests
        assert list(first.tools[0].parameters["properties"]) == ["to_user", "place"]
        assert first.tools[0].parameters["required"] == ["place"]
        assert second.messages[1].text == said


async def test_without_opting_in_nothing_is_taken_out():
    agent = Agent("ops", tools=[look])
    assert list(agent.schemas[0].parameters["properties"]) == ["place"]


def test_a_tool_with_such_an_argument_of_its_own_is_refused():
    @tool(effect="read")
    def tell(to_user: str) -> None:
        """Tell."""

    with pytest.raises(ConfigurationError, match="to_user"):
        _ = Agent("ops", tools=[tell], to_user=True).schemas


def test_what_streams_is_what_is_recorded():
    calls = (
        CallRequest("a", '{"x": 1, "to_user": "one"}'),
        CallRequest("b", '{"to_user": "two \\u4f60"}'),
        CallRequest("c", '{"y": [1, {"to_user": "no"}]}'),
    )
    shown: list[Delta] = []
    speak = Speaker(shown.append)
    speak(TextDelta("Hm. "))
    for index, call in enumerate(calls):
        for character in call.arguments or "":
            speak(CallDelta(index, call.name, character))
    reply = spoken(Reply(text="Hm. ", calls=calls))
    assert reply.text == "Hm. one\ntwo \u4f60"
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == reply.text
    assert [json.loads(call.arguments or "") for call in reply.calls] == [
        {"x": 1},
        {},
        {"y": [1, {"to_user": "no"}]},
    ]


@pytest.mark.parametrize("arguments", ["", None, "{", "[1]", '{"to_user": "cut', "nonsense"])
def test_what_is_no_object_is_left_for_the_check_of_arguments(arguments):
    reply = spoken(Reply(calls=(CallRequest("a", arguments),)))
    assert reply.calls[0].arguments == arguments


def test_an_attempt_that_failed_begins_again():
    shown: list[Delta] = []
    speak = Speaker(shown.append)
    speak(CallDelta(0, "a", '{"to_user": "wro'))
    failed = AttemptFailed("cut", 0.5)
    speak(failed)
    speak(ReasoningDelta("hm"))
    speak(CallDelta(0, "a", '{"to_user": "right"}'))
    assert shown == [TextDelta("wro"), failed, ReasoningDelta("hm"), TextDelta("right")]
