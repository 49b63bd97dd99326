"""The talk: two Jobs and two handlers."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from tenuto.flow import PASS_WORD, HandlerCoroutine, Job, LLMAsyncAdapter, handler, tasker

WANTS_TO_SPEAK = "Can I speak?"
HOST = "HOST"

Message = dict[str, Any]
# Blocks while it talks to the provider, and so is called in a thread: role name and messages to a stream.
AskModel = Callable[[str, list[Message]], Iterable[Any]]


class Role:
    """One who takes part, with a memory of its own."""

    def __init__(self, name: str, character: str, ask_model: AskModel) -> None:
        self.name = name
        self.messages: list[Message] = [{"role": "system", "content": instructions(name, character)}]
        self._ask_model = ask_model

    async def reply(self, text: str, speaker: str) -> str:
        """Hear something and answer, out of a stream."""
        self.messages.append({"role": "user", "content": f"{speaker} says: {text}"})
        response = await asyncio.to_thread(self._ask_model, self.name, list(self.messages))
        parts = [text_of(chunk) async for chunk in LLMAsyncAdapter().llm_to_async_iterable(response)]
        answer = "".join(parts).strip()
        self.messages.append({"role": "assistant", "content": answer or "(silent)"})
        return answer


class GroupTalk(Job):
    """The whole talk: every speech is a child of it, so that it ends with the last one."""

    def __init__(self, opening: str, roles: list[Role], speeches: int, show: Callable[[str], None]) -> None:
        super().__init__()
        self.opening = opening
        self.roles = roles
        self.speeches_left = speeches
        self.show = show
        self.speaking: str | None = None

    @tasker(PASS_WORD)
    async def task(self) -> None:
        await self.put_job(TalkToAll(self, self.opening, HOST))

    def take_the_floor(self, name: str) -> bool:
        """Whoever comes first; no lock is needed, since all of this is one thread."""
        if self.speaking is not None or self.speeches_left == 0:
            return False
        self.speaking = name
        self.speeches_left -= 1
        return True


class TalkToAll(Job):
    """One speech, told to everybody but the speaker."""

    def __init__(self, talk: GroupTalk, text: str, speaker: str) -> None:
        super().__init__()
        self.talk = talk
        self.text = text
        self.speaker = speaker

    @tasker(PASS_WORD)
    async def task(self) -> HandlerCoroutine[None]:
        self.talk.show(f"{self.speaker}: {self.text}")
        self.talk.speaking = None
        return collect(self.talk, self.text, self.speaker)


@handler(PASS_WORD)
async def collect(self_handler: HandlerCoroutine[None], talk: GroupTalk, text: str, speaker: str) -> None:
    for role in talk.roles:
        if role.name != speaker:
            self_handler.call_handler(listen(talk, role, text, speaker))


@handler(PASS_WORD)
async def listen(
    self_handler: HandlerCoroutine[None], talk: GroupTalk, role: Role, text: str, speaker: str
) -> None:
    if WANTS_TO_SPEAK not in await role.reply(text, speaker):
        return
    if not talk.take_the_floor(role.name):
        role.messages.append({"role": "user", "content": f"{HOST} says: No, {talk.speaking} is speaking."})
        return
    speech = await role.reply("Yes, you have the floor.", HOST)
    # Under the talk, not under this handler: the tree stays as flat as the talk is long.
    await self_handler.put_job(TalkToAll(talk, speech, role.name), parent=talk)


def instructions(name: str, character: str) -> str:
    return (
        f"You take part in a conversation of several people. You are {name}. {character} If you have "
        f"something to say, first answer only {WANTS_TO_SPEAK!r} and wait for the host to give you the "
        "floor; then say it in one or two sentences. If you have nothing to say, answer with a space."
    )


def text_of(chunk: Any) -> str:
    """The text in a chunk of the OpenAI library, or in the same as a dict."""
    if isinstance(chunk, dict):
        return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
    return "".join(choice.delta.content or "" for choice in chunk.choices)
