"""The agent: two Jobs, three handlers and one callback."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from examples.flow_chat.tools import SCHEMAS, run_tool
from tenuto.flow import (
    PASS_WORD,
    HandlerCoroutine,
    Job,
    LLMAsyncAdapter,
    async_dispatcher_tools_call_for_openai,
    handler,
    tasker,
)

Message = dict[str, Any]
# Blocks while it talks to the provider, and so is called in a thread.
AskModel = Callable[[list[Message], list[dict[str, Any]]], Iterable[Any]]


class Chat:
    """What a conversation needs: the model, the person, and what was said."""

    def __init__(
        self,
        ask_model: AskModel,
        next_prompt: Callable[[], Awaitable[str | None]],
        show: Callable[[str], None],
    ) -> None:
        self.ask_model = ask_model
        self.next_prompt = next_prompt
        self.show = show
        self.messages: list[Message] = []

    async def ask(self) -> Iterable[Any]:
        return await asyncio.to_thread(self.ask_model, list(self.messages), SCHEMAS)


class ChatJob(Job):
    """One round: what the person said, up to the last word of the answer."""

    def __init__(self, chat: Chat) -> None:
        super().__init__()
        self.chat = chat
        self.add_callback_functions("at_job_end", {"function": self.next_round, "inject_task_node": True})

    @tasker(PASS_WORD)
    async def task(self) -> None:
        prompt = await self.chat.next_prompt()
        if prompt is None:
            await self.exit_commander("goodbye")
            return
        self.chat.messages.append({"role": "user", "content": prompt})
        await self.put_job(ResponseJob(self.chat))

    async def next_round(self, task_node: Job) -> None:
        # A new root: the tree of a conversation of a thousand rounds is as deep as that of one.
        await task_node.put_job(ChatJob(self.chat), parent=task_node.commander)


class ResponseJob(Job):
    """One reply of the model."""

    def __init__(self, chat: Chat) -> None:
        super().__init__()
        self.chat = chat

    @tasker(PASS_WORD)
    async def task(self) -> HandlerCoroutine[None]:
        return Responder(self.chat).handle_response()


class Responder:
    def __init__(self, chat: Chat) -> None:
        self.chat = chat

    @handler(PASS_WORD)
    async def handle_response(self, self_handler: HandlerCoroutine[None]) -> None:
        """Fork: text goes to the user while tool calls are collected."""
        try:
            response = await self.chat.ask()
        except Exception as error:  # noqa: BLE001 - the person is told, and may say something else
            self.chat.show(f"[no answer: {error}]\n")
            return
        stream = LLMAsyncAdapter().llm_to_async_iterable(response)
        make_generator = await async_dispatcher_tools_call_for_openai(stream)
        speaking = self.user_handler(make_generator("to_user"))
        self_handler.call_handler(speaking)
        self_handler.call_handler(self.function_call_handler(make_generator("tool_call"), speaking))

    @handler(PASS_WORD)
    async def user_handler(self, self_handler: HandlerCoroutine[str], text: AsyncIterator[str]) -> str:
        said = []
        async for part in text:
            self.chat.show(part)
            said.append(part)
        if said:
            self.chat.show("\n")
        return "".join(said)

    @handler(PASS_WORD)
    async def function_call_handler(
        self,
        self_handler: HandlerCoroutine[None],
        calls: AsyncIterator[str],
        speaking: HandlerCoroutine[str],
    ) -> None:
        """Run the tools; if there were any, their results go back to the model."""
        made, results = [], []
        async for text in calls:
            call = json.loads(text)
            made.append(_as_sent(call))
            result = call.get("error") or await asyncio.to_thread(run_tool, call["name"], call["arguments"])
            results.append({"role": "tool", "tool_call_id": call["tool_call_id"], "content": result})
        said = await speaking
        reply: Message = {"role": "assistant", "content": said or None}
        if made:
            reply["tool_calls"] = made
        self.chat.messages += [reply, *results]
        if made:
            await self_handler.put_job(ResponseJob(self.chat))


def _as_sent(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "id": call["tool_call_id"],
        "type": "function",
        "function": {"name": call["name"], "arguments": text},
    }
