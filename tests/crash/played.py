"""The model: plays the calls of a workload, and says in the end what it was told of them.

For `tenuto.testing.provider`. The first line of the task names workload and index; how far it is, is seen
from the history alone, so that a runtime which died in the middle is answered the same again.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from tests.crash.workload import batches, bfcl, end_with_parent, retail_tasks

from tenuto.messages import CallRequest
from tenuto.testing import Answer, call

_hung = False
end_with_parent()


def play(body: dict[str, Any]) -> Answer | str | list[CallRequest]:
    """The next reply."""
    said = next(message["content"] for message in body["messages"] if message["role"] == "user")
    told = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    workload, name = said.split("\n")[0].split()
    if workload in ("desk", "fleet"):
        return _desk(name, told)
    plan = batches(workload, int(name))
    replies = sum(1 for message in body["messages"] if message.get("tool_calls"))
    if replies < len(plan):
        return [call(made["name"], **made["arguments"]) for made in plan[replies]]
    return json.dumps(wrongly_told(workload, int(name), told))


def wrongly_told(workload: str, index: int, told: list[str]) -> list[int]:
    """The places at which the model was not told what was recorded. BFCL has no record of results."""
    if workload == "bfcl":
        return [len(told)] if len(told) != len(bfcl()[index]["calls"]) else []
    recorded = [step["observation"] for step in retail_tasks()[index]["steps"]]
    most = max(len(told), len(recorded))
    return [place for place in range(most) if told[place : place + 1] != recorded[place : place + 1]]


def _desk(name: str, told: list[str]) -> Answer | str | list[CallRequest]:
    """`NAME` calls the tool of that name once, `NAME*3+OTHER` one three times and then another, a reply each;
    "stream" falls silent in the middle of its first answer.
    """
    global _hung
    if name == "stream":
        silent, _hung = not _hung, True
        return Answer(text="a word " * 20, piece_characters=7, hang_after=1500 if silent else None)
    plan = [tool for part in name.split("+") for tool in _times(*part.split("*"))]
    return f"told: {told[-1]}" if len(told) == len(plan) else [call(plan[len(told)], order_id="17")]


def _times(tool: str, times: str = "1") -> list[str]:
    return [tool] * int(times)


def note(body: dict[str, Any]) -> Answer | str | list[CallRequest]:
    """As `play`; ARRIVALS names a file that is told first when this was asked, after how many results, and
    what was said last.
    """
    now = time.monotonic()
    told = sum(1 for message in body["messages"] if message["role"] == "tool")
    said = [message["content"] for message in body["messages"] if message["role"] == "user"][-1]
    with Path(os.environ["ARRIVALS"]).open("a") as arrivals:
        arrivals.write(json.dumps([now, told, said.split("\n")[0]]) + "\n")
    return play(body)
