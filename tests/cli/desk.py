"""An agent for the tests of the command line, with its model in the process: `tests.cli.desk:agent`.

What the first word of a message says is what it does.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from tenuto import Agent, ModelError, ToolContext, ask_person, tool, wait_until
from tenuto.messages import Reply, Request, ToolMessage, UserMessage
from tenuto.models.scripted import ScriptedModel, call

NASTY = "\x1b]0;owned\x07\x1b[2J[bold red]mark[/] \u202egpj.exe\u202c \x9b31m 日本 👩‍👧"


def mark(line: str) -> None:
    with Path(os.environ["SENT"]).open("a", encoding="utf-8") as sent:
        sent.write(f"{line}\n")


async def script(request: Request) -> Any:
    asked = max(n for n, message in enumerate(request.messages) if isinstance(message, UserMessage))
    question = request.messages[asked]
    assert isinstance(question, UserMessage)
    word, _, rest = question.text.partition(" ")
    results = [message.text for message in request.messages[asked:] if isinstance(message, ToolMessage)]
    if results:
        if "SLOW" in os.environ:
            mark("slow")
            await asyncio.sleep(float(os.environ["SLOW"]))
        return "done: " + " & ".join(results)
    match word:
        case "send":
            return call("send", to="ana", text=rest)
        case "twice":
            return [call("send", to="ana", text=rest), call("send", to="bo", text=rest)]
        case "ask":
            return call("ask_person", question=rest)
        case "slow":
            return call("slow", seconds=float(rest))
        case "think":
            return Reply(text=f"# So\n\n{rest}", reasoning="first this\nthen that")
        case "work":
            return call("work")
        case "sleep":
            return call("wait_until", seconds=float(rest))
        case "fail":
            raise ModelError(f"the provider says: {rest}", retryable=False)
        case "noise":
            sys.stdout.write("noise\n")
            return "quiet " * 20_000
        case "nasty":
            return call("nasty", text=NASTY)
    return f"You said: {question.text}"


@tool(effect="once", approval=True)
def send(to: str, text: str) -> str:
    """Send a message; what was sent is in the file SENT."""
    mark(f"{to}: {text}")
    return f"sent to {to}"


@tool(effect="read")
def slow(seconds: float) -> str:
    """Take some time."""
    mark("slow")
    time.sleep(seconds)
    return "slept"


@tool(effect="read")
async def work(context: ToolContext) -> str:
    """Say how far it is."""
    for n in range(1, 4):
        context.progress(f"part {n}", n / 4)
        await asyncio.sleep(0.1)
    return "worked"


@tool(effect="once", approval=True)
def nasty(text: str) -> str:
    """Say something that no terminal should see."""
    return text


agent = Agent(
    "desk",
    tools=[send, slow, work, nasty, ask_person, wait_until],
    model=ScriptedModel(script),
)
short = Agent("short", tools=[slow], model=ScriptedModel(script), max_steps=1)
other = Agent("other", tools=[send], model=ScriptedModel(script))
agents = [agent, other]
nothing = 17
