"""A thread as a Markdown document, to read, keep or send on: what was said, done, decided, by whom, when."""

import re
from collections.abc import Iterator

from tenuto.cli.terminal import moment, pretty, safe
from tenuto.cli.view import View
from tenuto.events import (
    AnyEvent,
    Call,
    CallFinished,
    CallStarted,
    Entry,
    InterruptRaised,
    InterruptResolved,
    MessageReceived,
    ModelReplied,
    ThreadCompleted,
)
from tenuto.rows import ThreadRow


class Transcript:
    """Puts the events of one thread, in order, into paragraphs."""

    def __init__(self) -> None:
        self._view = View(brief=False)

    def head(self, row: ThreadRow) -> str:
        """What the document begins with."""
        return f"# Thread {row.id}\n\nAgent {_inline(row.agent)}, {row.status}, {row.head_seq} events.\n"

    def learn(self, event: AnyEvent) -> None:
        """Remember what later events refer to."""
        self._view.learn(event)

    def entry(self, entry: Entry) -> Iterator[str]:
        """The paragraphs that an event makes, each with the line feed at its end."""
        self.learn(entry.event)
        when = f"*{entry.seq} · {moment(entry.at_ms)}*"
        match entry.event:
            case MessageReceived(text, by):
                yield f"## {_inline(by)}\n\n{when}\n"
                yield "\n".join(f"> {line}".rstrip() for line in safe(text).splitlines()) + "\n"
            case ModelReplied() as reply:
                yield f"## The agent\n\n{when}\n"
                if reply.text:
                    yield safe(reply.text) + "\n"
                for call in reply.calls:
                    yield f"→ {_inline(call.name)}\n\n{_arguments(call)}"
            case CallFinished() as done:
                mark = "←" if done.ok else "← failed:"
                name = self._view.names.get(done.call_id, done.call_id)
                yield f"{mark} {_inline(name)} {when}\n\n{_fenced(done.text)}"
            case InterruptRaised() as raised:
                yield f"**{raised.kind}** {_inline(raised.name)} {when}\n"
                if raised.prompt:
                    yield "\n".join(f"> {line}".rstrip() for line in safe(raised.prompt).splitlines()) + "\n"
            case InterruptResolved() as decided:
                yield f"**{decided.outcome}** by {_inline(decided.by or 'unknown')} {when}\n"
                for text in (decided.comment, decided.answer):
                    if text:
                        yield _fenced(text)
                if decided.arguments:
                    yield _fenced(pretty(decided.arguments), "json")
            case CallStarted() | ThreadCompleted():
                pass  # the call's result and the reply before say it
            case other:
                kind = str(other.__struct_config__.tag).replace("_", " ")
                said = "; ".join(text for _, text in self._view.lines(other))
                yield f"{kind}{': ' + _inline(said) if said else ''} {when}\n"


def _arguments(call: Call) -> str:
    return _fenced(call.raw or "") if call.error else _fenced(pretty(call.exact), "json")


def _fenced(text: str, language: str = "") -> str:
    """A code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{safe(text)}\n{fence}\n"


def _inline(text: str) -> str:
    """On one line, and no markup: what begins emphasis, a link or HTML stands for itself."""
    return re.sub(r"([\\`*_\[\]<>&#|~])", r"\\\1", " ".join(safe(text).split()))
