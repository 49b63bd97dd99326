"""Who plays the roles: an OpenAI-compatible endpoint, or without one a script with a clock and some dice."""

import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

from examples.flow_chat.provider import ask_provider, say
from examples.group_talk.talk import HOST, WANTS_TO_SPEAK

CHARACTERS = {
    "Ada": "You calculate everything and trust nothing that cannot be counted.",
    "Basil": "You contradict others, politely and always.",
    "Cleo": "You praise what the others say and add one small idea of your own.",
}
SPEECHES = {
    "Ada": [
        "I have counted: that happens seven times out of ten.",
        "Without numbers, I would not bet on it.",
    ],
    "Basil": [
        "I see it the other way round.",
        "With respect, that is too easy.",
        "Nobody has asked the cat.",
    ],
    "Cleo": [
        "How well put! And it would look lovely in green.",
        "I agree with all of you, and with the cat.",
    ],
}


def ask_endpoint(name: str, messages: list[dict[str, Any]]) -> Iterable[Any]:
    return ask_provider(messages, [])


class Script:
    """Roles that think for a moment, then want to speak more often than not."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a game, not a secret
        self._said = dict.fromkeys(CHARACTERS, 0)

    def __call__(self, name: str, messages: list[dict[str, Any]]) -> Iterator[Any]:
        if messages[-1]["content"] == f"{HOST} says: Yes, you have the floor.":
            lines = SPEECHES[name]
            line = lines[self._said[name] % len(lines)]
            self._said[name] += 1
            return say(line)
        return self._after_thinking(self._random.uniform(0, 0.2), self._random.random() < 0.8)

    def _after_thinking(self, seconds: float, wants: bool) -> Iterator[Any]:
        time.sleep(seconds)
        yield from say(WANTS_TO_SPEAK if wants else " ")
