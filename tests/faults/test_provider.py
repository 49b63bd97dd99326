"""A provider that fails, over real HTTP through a runtime: what is logged, what runs, what goes on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.loop.world import Ledger, check, of_type, rest

from tenuto import Agent, Runtime, tool
from tenuto.events import CallFinished, CallStarted, ModelFailed, ModelReplied
from tenuto.models import reader
from tenuto.models.openai import OpenAIModel, Patience
from tenuto.testing import Answer, ScriptedProvider, call

CALL = call("pay", amount=10)
ERROR = {"error": {"message": "the backend is gone", "code": 502}}
BUSY = Answer(status=429, headers={"retry-after": "7"}, body={"error": {"message": "slow down"}})
CHUNK = 'data: {"choices":[{"delta":{"content":"and on and on "}}]}\n\n'
BEGUN = (
    'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"name":"pay",'
    '"arguments":"{\\"amount\\": 1"}}]}}]}\n\n'
)


class World:
    """A runtime in front of a scripted provider, with what was paid and how long it waited."""

    def __init__(self, runtime: Runtime, provider: ScriptedProvider, ledger: Ledger, waits: list[float]):
        self.runtime = runtime
        self.provider = provider
        self.paid = ledger
        self.waits = waits

    async def types(self, thread: str) -> list[str]:
        return [type(entry.event).__name__ for entry in await self.runtime.events(thread)]


@asynccontextmanager
async def behind(script: Any, **patience: Any) -> AsyncIterator[World]:
    ledger, waits = Ledger(), []

    @tool(effect="once")
    async def pay(amount: int) -> str:
        ledger[f"pay {amount}"] += 1
        return f"paid {amount}"

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    settled = Patience(**({"idle_seconds": 5.0, "sleep": sleep, "fraction": lambda: 0.0} | patience))
    async with ScriptedProvider(script) as provider:
        model = OpenAIModel("m", url=provider.url, patience=settled)
        agent = Agent("ops", tools=[pay])
        async with Runtime([agent], "sqlite://:memory:", model=model) as runtime:
            yield World(runtime, provider, ledger, waits)
            for row in await runtime.threads():
                await check(runtime, row.id)
        await model.aclose()


FAULTS = {
    "cut before the first byte": Answer(calls=[CALL], cut_after=0),
    "cut inside the arguments": Answer(calls=[CALL], piece_characters=4, cut_after=700),
    "ended inside the arguments": Answer(body=BEGUN),
    "200 with an error body": Answer(body=ERROR),
    "200 with an error in mid-call": Answer(body=BEGUN + 'data: {"error":{"message":"gone","code":502}}\n\n'),
    "429 with Retry-After": BUSY,
    "empty stream": Answer(body="data: [DONE]\n\n"),
    "empty body": Answer(body=b""),
    "reply without anything in it": Answer(text=""),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_one_failure_is_not_seen_in_the_log_and_runs_nothing(fault: Answer) -> None:
    async with behind([fault, CALL, "done"]) as world:
        state = await rest(world.runtime, await world.runtime.start("ops", "go"))
        assert (state.status, state.answer) == ("completed", "done")
        assert await world.types(state.id) == [
            "ThreadStarted",
            "MessageReceived",
            "ModelReplied",
            "CallStarted",
            "CallFinished",
            "ModelReplied",
            "ThreadCompleted",
        ]
        assert world.paid == {"pay 10": 1}
        # The same question again, to the letter.
        first, second, _ = (request.body for request in world.provider.requests)
        assert first == second


@pytest.mark.parametrize("go_on", ["extend", "send"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_failure_that_stays_fails_the_thread_which_goes_on_when_told(
    fault: Answer, go_on: str
) -> None:
    async with behind([fault, fault, fault, fault, CALL, "done"]) as world:
        thread = await world.runtime.start("ops", "go")
        state = await rest(world.runtime, thread)
        assert state.status == "failed"
        assert await world.types(thread) == [
            "ThreadStarted",
            "MessageReceived",
            "ModelFailed",
            "ThreadFailed",
        ]
        (failed,) = await of_type(world.runtime, thread, ModelFailed)
        assert failed.attempts == 4
        assert world.provider.url in failed.error
        assert state.error == failed.error
        assert not world.paid
        await (world.runtime.extend(thread) if go_on == "extend" else world.runtime.send(thread, "again"))
        state = await rest(world.runtime, thread)
        assert (state.status, state.answer) == ("completed", "done")
        assert world.paid == {"pay 10": 1}
        said = [message["content"] for message in world.provider.requests[-1].body["messages"]]
        assert said[0] == "go"
        assert ("again" in said) is (go_on == "send")


async def test_retry_after_is_what_is_waited() -> None:
    async with behind([BUSY, BUSY, "done"]) as world:
        assert (await rest(world.runtime, await world.runtime.start("ops", "go"))).answer == "done"
        assert world.waits == [7.0, 7.0]


async def test_a_cancel_does_not_wait_for_retry_after() -> None:
    async with behind(lambda _: BUSY, sleep=asyncio.sleep) as world:
        thread = await world.runtime.start("ops", "go")
        while not world.provider.requests:  # noqa: ASYNC110 - it comes over HTTP
            await asyncio.sleep(0.01)
        await world.runtime.cancel(thread, by="ana")
        assert (await rest(world.runtime, thread)).status == "cancelled"
        assert len(world.provider.requests) == 1


def _slowly(_: Any) -> Answer:
    return Answer(body=CHUNK * 10_000, piece_characters=len(CHUNK), pause_seconds=0.01)


def _fast(_: Any) -> Answer:
    return Answer(body=CHUNK * 10_000)


def _silent(_: Any) -> Answer:
    return Answer(text="and", hang_after=0)


@pytest.mark.parametrize(
    ("script", "patience", "said"),
    [
        (_slowly, {"total_seconds": 0.4}, "no reply within 0.4 seconds"),
        (_fast, {}, "1000"),
        (_silent, {"idle_seconds": 0.05}, "ReadTimeout"),
    ],
    ids=["slow", "fast", "silent"],
)
async def test_an_endless_stream_fails_the_thread(
    script: Callable[[Any], Answer], patience: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "MAX_STREAM_BYTES", 100_000)
    answers: list[Callable[[Any], Any]] = [script]

    async def provider(body: Any) -> Any:
        return answers[0](body)

    async with behind(provider, **patience) as world:
        thread = await world.runtime.start("ops", "go")
        state = await rest(world.runtime, thread)
        assert state.status == "failed"
        assert said in state.error
        assert not await of_type(world.runtime, thread, ModelReplied)
        answers[0] = lambda _: "done"
        await world.runtime.extend(thread)
        assert (await rest(world.runtime, thread)).answer == "done"


CUT = {
    "in the middle": '{"amount": 10, "no',
    "where it looks whole": '{"amount": 1}',
    "before anything": "",
}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("arguments", CUT.values(), ids=CUT)
async def test_arguments_cut_by_length_never_run(arguments: str, streamed: bool) -> None:
    cut = Answer(calls=[CALL, {"name": "pay", "arguments": arguments}], finish="length", piece_characters=3)
    async with behind([cut, "done"]) as world:
        if not streamed:
            world.runtime._model._parameters["stream"] = False  # type: ignore[union-attr]  # an OpenAIModel
        thread = await world.runtime.start("ops", "go")
        assert (await rest(world.runtime, thread)).answer == "done"
        assert world.paid == {"pay 10": 1}
        (started,) = await of_type(world.runtime, thread, CallStarted)
        results = await of_type(world.runtime, thread, CallFinished)
        refused = next(result for result in results if result.call_id != started.call_id)
        assert "cut off" in refused.text
        assert not refused.ok
        (reply, _) = await of_type(world.runtime, thread, ModelReplied)
        assert reply.finish == "length"
        # What the provider sees next is well formed all the same: an answer to each call.
        messages = world.provider.requests[1].body["messages"]
        asked = [made["id"] for made in messages[1]["tool_calls"]]
        assert [message["tool_call_id"] for message in messages[2:]] == asked


WHOLE = BEGUN.replace(": 1", ": 1}")


async def test_a_stream_that_ends_without_any_sign_of_its_end_runs_no_call() -> None:
    """The arguments look whole, and more may have been about to follow."""
    async with behind([Answer(body=WHOLE), "done"]) as world:
        assert (await rest(world.runtime, await world.runtime.start("ops", "go"))).answer == "done"
        assert not world.paid
        assert len(world.provider.requests) == 2


async def test_half_a_call_in_a_stream_that_says_it_is_whole_is_told_to_the_model() -> None:
    async with behind([Answer(body=BEGUN + "data: [DONE]\n\n"), "done"]) as world:
        thread = await world.runtime.start("ops", "go")
        assert (await rest(world.runtime, thread)).answer == "done"
        assert not world.paid
        (result,) = await of_type(world.runtime, thread, CallFinished)
        assert "not valid JSON" in result.text


async def test_others_go_on_while_one_waits_for_its_provider() -> None:
    release = asyncio.Event()

    async def provider(body: Any) -> Any:
        if body["messages"][-1]["content"] == "slow":
            await release.wait()
        return "done"

    async with behind(provider) as world:
        slow = await world.runtime.start("ops", "slow")
        quick = [await world.runtime.start("ops", f"quick {n}") for n in range(5)]
        waits: list[Awaitable[Any]] = [rest(world.runtime, thread) for thread in quick]
        assert {state.answer for state in await asyncio.gather(*waits)} == {"done"}
        assert (await world.runtime.state(slow)).status == "running"
        release.set()
        assert (await rest(world.runtime, slow)).answer == "done"
