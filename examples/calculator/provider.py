"""Plays the model for the calculator, offline: one operation per request, such as "multiply 3 and 4"."""

import re
from typing import Any

from tenuto.messages import CallRequest
from tenuto.testing import call

OPERATIONS = {
    "add": "add",
    "plus": "add",
    "subtract": "subtract",
    "minus": "subtract",
    "multiply": "multiply",
    "times": "multiply",
    "divide": "divide",
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
NUMBER_LIKE = re.compile(r"\S*\d\S*")


def answer(body: dict[str, Any]) -> str | CallRequest:
    """The next reply to a chat-completions request."""
    messages = body["messages"]
    asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
    question = str(messages[asked]["content"])
    said = next((tool for word, tool in OPERATIONS.items() if word in question.lower()), None)
    if said is None:
        return "I can add, subtract, multiply and divide two numbers."
    results = [str(message["content"]) for message in messages[asked:] if message["role"] == "tool"]
    numbers = [word.strip(",.?!") for word in NUMBER_LIKE.findall(question)]
    # Each answer so far stands for the next garbled number, in order; a result behind them is the outcome.
    for place, number in enumerate(numbers):
        while not NUMBER.fullmatch(numbers[place]):
            if not results:
                return call("ask_person", question=f"{number!r} is not a number. Which number is meant?")
            numbers[place] = results.pop(0).strip()
    if len(numbers) != 2:
        return f"I need two numbers to {said}, and see {len(numbers)}."
    if not results:
        return call(said, a=float(numbers[0]), b=float(numbers[1]))
    if results[-1].startswith("Error"):
        return f"I cannot {said} {numbers[0]} and {numbers[1]}: {results[-1].removeprefix('Error: ')}"
    return f"The result is {float(results[-1]):g}."
