"""An event in words, for a terminal: briefly while it happens, in full when it is looked up."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tenuto.cli.terminal import moment, now_ms, pretty, safe, span
from tenuto.events import (
    AgentChanged,
    AnyEvent,
    CallFinished,
    CallStarted,
    CancelRequested,
    ContextCompacted,
    Entry,
    HistoryRepaired,
    InterruptRaised,
    InterruptResolved,
    LimitsExtended,
    MessageReceived,
    ModelFailed,
    ModelReplied,
    ThreadCancelled,
    ThreadCompleted,
    ThreadFailed,
    ThreadHalted,
    ThreadStarted,
)
from tenuto.rows import InterruptRow, ThreadRow

if TYPE_CHECKING:
    from rich.text import Text

BRIEF_CHARACTERS = 200
Line = tuple[str, str]  # style, text that is safe to print


class View:
    """Puts the events of one thread, in order, into lines; knows what its calls are called."""

    def __init__(self, *, brief: bool) -> None:
        self._limit = BRIEF_CHARACTERS if brief else None
        self.names: dict[str, str] = {}

    def head(self, row: ThreadRow) -> str:
        """What is said before all events."""
        return f"thread {row.id}, agent {safe(row.agent)}, {row.status}"

    def learn(self, event: AnyEvent) -> None:
        """Remember what later events refer to."""
        if isinstance(event, ModelReplied):
            self.names |= {call.id: call.name for call in event.calls}

    def entry(self, entry: Entry) -> Iterator["Text"]:
        """A heading with seq, time and type, and the lines under it."""
        from rich.text import Text

        self.learn(entry.event)
        heading = Text(f"{entry.seq:>4}  {moment(entry.at_ms)}  ", "dim")
        yield heading.append(str(entry.event.__struct_config__.tag), "bold not dim")
        for style, text in self.lines(entry.event):
            for line in text.splitlines():
                yield Text(f"      {line}", style)

    def lines(self, event: AnyEvent) -> Iterator[Line]:
        """What there is to say of the event."""
        match event:
            case ThreadStarted():
                yield (
                    "",
                    f"agent {self._safe(event.agent)}" + (f", by {self._safe(event.by)}" if event.by else ""),
                )
            case MessageReceived():
                yield "", f"{self._safe(event.by)}: {self._safe(event.text)}"
            case ModelReplied() | ModelFailed() | HistoryRepaired():
                yield from self._decided(event)
            case CallStarted() | CallFinished():
                yield from self._acted(event)
            case InterruptRaised() | InterruptResolved():
                yield from self._asked(event)
            case AgentChanged():
                yield "yellow", "another version of the agent goes on"
            case LimitsExtended():
                more = ", ".join(f"{name} +{value:g}" for name, value in _given(event))
                yield "", f"{more}, by {self._safe(event.by) or 'unknown'}"
            case CancelRequested() | ThreadCancelled():
                why = f": {self._safe(event.reason)}" if event.reason else ""
                yield "yellow", f"by {self._safe(event.by) or 'unknown'}{why}"
            case ThreadFailed():
                yield "red", self._safe(event.error)
            case ThreadHalted():
                yield "yellow", f"the limit of {event.limit} is reached"
            case ContextCompacted():
                yield "", f"up to {event.upto_seq}: {self._safe(event.summary)}"
            case ThreadCompleted():
                pass  # the answer is the text of the reply before it

    def _decided(self, event: ModelReplied | ModelFailed | HistoryRepaired) -> Iterator[Line]:
        match event:
            case ModelReplied():
                if event.text:
                    yield "green", safe(event.text)
                for call in event.calls:
                    arguments = call.exact if not call.error else (call.raw or "")
                    yield "cyan", f"→ {self._safe(call.name)} {self._safe(arguments)}"
            case ModelFailed():
                tries = "" if event.attempts == 1 else f" after {event.attempts} attempts"
                yield "red", f"no reply{tries}: {self._safe(event.error)}"
            case HistoryRepaired():
                for repair in event.repairs:
                    yield "yellow", self._safe(repair)

    def _acted(self, event: CallStarted | CallFinished) -> Iterator[Line]:
        name = self._safe(self.names.get(event.call_id, event.call_id))
        match event:
            case CallStarted(until_ms=until_ms) if until_ms:
                yield "", f"… {name} waits until {moment(until_ms)}"
            case CallStarted():
                why = f" ({self._safe(event.why)})" if event.why else ""
                yield "dim", f"… {name}, attempt {event.attempt}{why}"
            case CallFinished():
                yield ("cyan" if event.ok else "yellow"), f"← {name} {self._safe(event.text)}"

    def _asked(self, event: InterruptRaised | InterruptResolved) -> Iterator[Line]:
        match event:
            case InterruptRaised():
                yield "magenta", f"{event.kind} {event.id}"
                if event.name and event.kind != "question":
                    yield "", f"{self._safe(event.name)} {self._safe(event.arguments)}"
                if event.prompt:
                    yield "", self._safe(event.prompt)
                if event.expires_at_ms and self._limit is None:
                    yield "dim", f"expires {moment(event.expires_at_ms)}"
            case InterruptResolved():
                yield "magenta", f"{event.outcome} by {self._safe(event.by) or 'unknown'}"
                for label, text in (("comment", event.comment), ("answer", event.answer)):
                    if text:
                        yield "", f"{label}: {self._safe(text)}"
                if event.arguments:
                    yield "", f"arguments: {self._safe(event.arguments)}"

    def _safe(self, text: str) -> str:
        return safe(text, self._limit)


def asked(kind: str, name: str, arguments: str, prompt: str) -> Iterator[Line]:
    """What a person has to decide about, with nothing left out."""
    if kind != "question":
        yield "bold", safe(name)
        yield "", pretty(arguments)
    if prompt:
        yield "yellow" if kind == "review" else "", safe(prompt)


def asked_briefly(row: InterruptRow) -> str:
    """The same on one line."""
    return row.arguments if row.kind == "approval" and not row.fault else row.prompt


def expires_in(row: InterruptRow) -> str:
    """How long is left to decide."""
    left_ms = row.expires_at_ms - now_ms()
    return "never" if not row.expires_at_ms else span(left_ms) if left_ms > 0 else "expired"


def _given(event: LimitsExtended) -> Iterator[tuple[str, float]]:
    for name in event.more.__struct_fields__:
        if value := getattr(event.more, name):
            yield name, value
