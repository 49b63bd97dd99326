"""An agent under watch: its store, tools and model note in a ledger what happens, and stop where told.

`tenuto crashtest` stops with a signal, the `crash` fixture by never going on; the rest is theirs together.

A point is `before EVENT [TOOL]`, `after EVENT [TOOL]` or `after effect TOOL`, such as "after call_started
refund_order"; "#2" behind it means the second time. Without a tool it is the first event of this type.
"""

import asyncio
import hashlib
import importlib
import inspect
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tenuto.agent import Agent
from tenuto.clock import SystemClock
from tenuto.context import lint
from tenuto.errors import AlreadyDecided, ConfigurationError, ModelError, NotDone
from tenuto.events import Event, InterruptRaised, InterruptResolved, ModelReplied, ThreadId, encode
from tenuto.messages import CallRequest, Delta, Reply, Request
from tenuto.models.scripted import ScriptedModel, call
from tenuto.rows import ENDED, Appended, InterruptRow
from tenuto.runtime import Runtime
from tenuto.store.sqlite import SQLiteStore
from tenuto.tools import DidNotHappen, Happened, Tool, ToolContext, Unknown, error_text, result_text
from tenuto.tools.signature import definition_of

T = TypeVar("T")
LOOK_SECONDS = 0.02


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is said to the agent, what the model replies, and what people decide.

    `replies`: texts, objects with `text` and `calls` (each `name` and `arguments`), or what a `ScriptedModel`
    takes. `decisions`, by tool or in order: a verb, or an object with `verb` and what goes with it; what is
    not there is approved, and a question left alone. `reviews`: "truth" settles them by the ledger, "leave"
    not at all, a verb says that always.
    """

    replies: Sequence[Any]
    message: str = "Go."
    decisions: Mapping[str, Any] | Sequence[Any] = ()
    reviews: Literal["truth", "leave", "happened", "did_not_happen", "drop"] = "truth"


def named(name: str, what: str) -> Any:
    """What `MODULE:ATTRIBUTE` names. Raises `ConfigurationError` in one line."""
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigurationError(f"no {what} at {name!r}: {error_text(error)}") from error


def load_script(name: str) -> Script:
    """What `FILE.json`, or a function or value at MODULE:NAME, gives. Raises `ConfigurationError`."""
    try:
        if name.endswith(".json"):
            given = msgspec.json.decode(Path(name).read_bytes())
        else:
            given = named(name, "script")
            given = given() if callable(given) else given
        return given if isinstance(given, Script) else msgspec.convert(given, Script)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"script {name}: {error}") from error
    except Exception as error:
        raise ConfigurationError(f"script {name} raised {error_text(error)}") from error


class Ledger:
    """What happened, a line each, on disk before anything goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, kind: str, **facts: Any) -> None:
        line = msgspec.json.encode({"kind": kind, **facts, "pid": os.getpid()}) + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lines(self, *kinds: str) -> list[dict[str, Any]]:
        text = self.path.read_bytes() if self.path.exists() else b""
        lines: list[dict[str, Any]] = [msgspec.json.decode(line) for line in text.splitlines()]
        return [line for line in lines if not kinds or line["kind"] in kinds]

    def truth(self, key: str) -> Happened | DidNotHappen | Unknown:
        """What became of the call of this key; of a body that began and did not end, nobody knows."""
        kinds = [line for line in self.lines("start", "not_done", "raised", "end") if line["key"] == key]
        for line in kinds:
            if line["kind"] == "end":
                return Happened(line["result"])
        if not kinds or kinds[-1]["kind"] == "not_done":
            return DidNotHappen()
        return Unknown("the body began and did not end well")


class Watch:
    """Counts what happens by name, and calls `stop` at the first point that `point` names; "" for none.

    `hold` is awaited before anything that a process which has stopped could not do any more.
    """

    def __init__(self, ledger: Ledger, point: str, stop: Callable[[], Awaitable[None]]) -> None:
        self.ledger = ledger
        self.point = point
        self._stop = stop
        self._counts: Counter[str] = Counter()
        self._names: dict[str, str] = {}

    async def hold(self) -> None:
        """Nothing, where stopping really stops."""

    def counted(self, label: str) -> str:
        self._counts[label] += 1
        number = self._counts[label]
        return label if number == 1 else f"{label} #{number}"

    def label(self, event: Event) -> str:
        if isinstance(event, ModelReplied):
            self._names.update({call.id: call.name for call in event.calls})
        if isinstance(event, InterruptRaised):
            self._names[event.id] = event.name or event.kind
        about = getattr(event, "call_id", "") or getattr(event, "id", "")
        return self.counted(f"{event.__struct_config__.tag} {self._names.get(about, '')}".strip())

    async def reached(self, when: str, labels: Iterable[str]) -> None:
        if self.point and any(f"{when} {label} ".startswith(f"{self.point} ") for label in labels):
            self.point = ""
            await self._stop()


class WatchedStore(SQLiteStore):
    """The real store. What it confirms is in the ledger before the caller hears of it."""

    def __init__(self, path: Path, watch: Watch, ahead_ms: int) -> None:
        super().__init__(str(path), clock=_Ahead(ahead_ms))
        self._watch = watch

    async def create(self, thread_id: ThreadId, events: Sequence[Event], *, append_id: str) -> Appended:
        create = super().create
        return await self._watched(events, lambda: create(thread_id, events, append_id=append_id))

    async def append(self, thread_id: ThreadId, events: Sequence[Event], **options: Any) -> Appended:
        append = super().append
        return await self._watched(events, lambda: append(thread_id, events, **options))

    async def resolve(
        self, event: InterruptResolved, *, append_id: str, digest: str | None = None
    ) -> tuple[ThreadId, Appended]:
        resolve = super().resolve
        return await self._watched([event], lambda: resolve(event, append_id=append_id, digest=digest))

    async def at_rest(self) -> None:
        """Until no transaction is open here, which would keep others out while this process is frozen."""
        if self._commits is not None:
            await self._commits._idle.wait()

    async def _watched(self, events: Sequence[Event], work: Callable[[], Awaitable[T]]) -> T:
        labels = [self._watch.label(event) for event in events]
        await self._watch.reached("before", labels)
        done = await work()
        where: Any = done[1] if isinstance(done, tuple) else done
        digests = [hashlib.sha256(encode(event)).hexdigest() for event in events]
        self._watch.ledger.note("append", labels=labels, first_seq=where.first_seq, digests=digests)
        await self._watch.reached("after", labels)
        return done

    async def _write(self, operation: Callable[[Any], T]) -> T:
        await self._watch.hold()
        return await super()._write(operation)


class _Ahead(SystemClock):
    """The wall clock of a process that is started later."""

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


@dataclass(frozen=True, eq=False, repr=False)
class WatchedTool(Tool):
    """A tool whose body's start and end are in the ledger."""

    watch: Watch | None = None

    async def run(self, arguments: str, context: ToolContext) -> object:
        assert self.watch is not None
        await self.watch.hold()
        note, about = self.watch.ledger.note, self._about(context.idempotency_key)
        note("start", **about, arguments=arguments)
        try:
            value = await super().run(arguments, context)
        except NotDone:
            note("not_done", **about)
            raise
        except Exception as error:
            note("raised", **about, error=error_text(error))
            raise
        label = self.watch.counted(f"effect {self.name}")
        note("end", **about, result=result_text(value), label=label)
        if self.effect != "read":
            await self.watch.reached("after", [label])
        return value

    async def verify(self, arguments: str, key: str) -> Happened | DidNotHappen | Unknown:
        assert self.watch is not None
        verdict = await super().verify(arguments, key)
        self.watch.ledger.note("verify", **self._about(key), said=type(verdict).__name__)
        return verdict

    def _about(self, key: str) -> dict[str, str]:
        return {"tool": self.name, "effect": self.effect, "call": key.split(":")[1], "key": key}


def watched_tool(tool: Tool, watch: Watch, fake: Any) -> WatchedTool:
    """`fake`: a function in place of the body, or that and one in place of `verify`; without the second one,
    `verify` is answered from the ledger. None leaves the tool as it is. Raises `ConfigurationError`.
    """
    if fake is not None:
        function, verify = fake if isinstance(fake, tuple) else (fake, None)
        try:
            inspect.signature(function).bind(**dict.fromkeys(tool.shape.parameters))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the fake of {tool.name} does not take its arguments: {error}"
            ) from error
        if verify is None and tool.verifier is not None:
            verify = partial(_verify, watch.ledger)
        shape = replace(tool.shape, is_async=inspect.iscoroutinefunction(definition_of(function)))
        tool = replace(tool, function=function, shape=shape, verifier=verify)
    return WatchedTool(**{field.name: getattr(tool, field.name) for field in fields(tool)}, watch=watch)


def _verify(ledger: Ledger, _arguments: Any, key: str) -> Happened | DidNotHappen | Unknown:
    return ledger.truth(key)


class _Replies:
    """The model: as many replies as the log has were given; so a restarted process goes on with the next."""

    name = "scripted"

    def __init__(self, of: "Watched") -> None:
        self._of = of

    async def reply(self, request: Request, emit: Callable[[Delta], None] | None = None) -> Reply:
        if repairs := lint(list(request.messages))[1]:
            self._of.ledger.note("malformed", repairs=repairs)
        entries = await self._of.store.read(self._of.thread_id)
        given = sum(isinstance(entry.event, ModelReplied) for entry in entries)
        replies = self._of.script.replies
        if given >= len(replies):
            raise ModelError(f"the script has {len(replies)} replies, and the model was asked once more")
        said = replies[given]
        if isinstance(said, dict):
            said = _reply(said)
        return await ScriptedModel([said], record=False).reply(request, emit)


def _called(replies: Sequence[Any]) -> Iterator[tuple[int, str]]:
    """The tools that the replies of a script call, each with the number of its reply."""
    for number, said in enumerate(replies, 1):
        if isinstance(said, dict):
            calls = said.get("calls") if isinstance(said.get("calls"), list) else ()
            names = [each.get("name") for each in calls or () if isinstance(each, dict)]
        else:
            calls = said.calls if isinstance(said, Reply) else said if isinstance(said, list) else [said]
            names = [each.name for each in calls if isinstance(each, CallRequest)]
        yield from ((number, name) for name in names if isinstance(name, str))


def _reply(said: dict[str, Any]) -> Reply:
    """A reply as JSON has it. Raises `ModelError`, which the run without a crash shows."""
    try:
        calls = [call(each["name"], **each.get("arguments", {})) for each in said.get("calls", ())]
        if unknown := set(said) - {"text", "reasoning", "calls"}:
            raise ValueError(f"{min(unknown)!r} is not known")  # noqa: TRY301 - caught with what JSON may hold
        return Reply(said.get("text", ""), said.get("reasoning", ""), tuple(calls))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ModelError(f"reply {said!r} of the script: {error_text(error)}") from error


class Watched:
    """One thread of an agent in one process: its store, and the people who decide.

    `lives`: how many processes had it before. Each starts when, by its own wall clock, every deadline of the
    one before has passed, so that nobody has to wait for them.
    """

    def __init__(
        self, agent: Agent, script: Script, watch: Watch, *, thread_id: str, fakes: Any, lives: int
    ) -> None:
        if not isinstance(fakes or {}, Mapping):
            raise ConfigurationError(f"the fakes are a mapping of tool names, not {type(fakes).__name__}")
        fakes = dict(fakes or {})
        # A decision under a misspelt name would be one that is not made, and the call be approved.
        decided = set(script.decisions) if isinstance(script.decisions, Mapping) else set()
        if foreign := sorted(decided - set(agent.by_name) - {""}):
            raise ConfigurationError(f"decisions name tools that the agent has not: {', '.join(foreign)}")
        for number, name in _called(script.replies):
            if name not in agent.by_name:
                has = ", ".join(agent.by_name) or "none"
                raise ConfigurationError(
                    f"reply {number} of the script calls {name!r}, a tool that agent {agent.name} has not; "
                    f"it has: {has}"
                )
        if unknown := sorted(set(fakes) - set(agent.by_name)):
            raise ConfigurationError(f"agent {agent.name} has no tool {unknown[0]!r} that could be replaced")
        tools = [watched_tool(tool, watch, fakes.get(tool.name)) for tool in agent.tools]
        self.agent = replace(agent, tools=tools, model=_Replies(self))
        self.script = script
        self.ledger = watch.ledger
        self.thread_id = ThreadId(thread_id)
        longest_ms = max((tool.timeout_ms for tool in tools if tool.effect != "read"), default=0)
        path = watch.ledger.path.with_name("tenuto.db")
        self.store = WatchedStore(path, watch, (longest_ms + 1000) * lives)

    async def play(self, runtimes: Sequence[Runtime], seconds: float) -> str:
        """Start the thread, or go on with it, and decide what the script decides; its status once it ended,
        or waits for what the script leaves alone. The first runtime advances it; all of them decide.

        Raises TimeoutError when it is not at rest after so many seconds.
        """
        runtime, ends_at = runtimes[0], time.monotonic() + seconds
        await runtime.start(self.agent.name, self.script.message, thread_id=self.thread_id)
        while (left := ends_at - time.monotonic()) > 0:
            await runtime.wait(self.thread_id, left)
            status = (await self.store.thread(self.thread_id)).status
            to_decide = await self._to_decide(runtime)
            for row, verb, decision in to_decide:
                await self.resolve(runtimes, row, verb, decision)
            if status in ENDED or (status.startswith("awaiting") and not to_decide):
                return status
            if not to_decide:
                await asyncio.sleep(LOOK_SECONDS)  # it waits for a time, or the deadline of a call in doubt
        raise TimeoutError(f"the thread is not at rest after {seconds:g} s")

    async def _to_decide(self, runtime: Runtime) -> list[tuple[InterruptRow, str, dict[str, Any]]]:
        """What is pending and the script decides: interrupt, verb, and what goes with it."""
        rows = await runtime.interrupts(pending=None, thread_id=self.thread_id, limit=1000)
        asked = [row.id for row in rows if row.kind != "review"]
        pending = [row for row in rows if row.outcome is None]
        found = [
            (row, *self._decision(row, asked.index(row.id) if row.id in asked else 0)) for row in pending
        ]
        return [each for each in found if each[1] != "leave"]

    def _decision(self, row: InterruptRow, place: int) -> tuple[str, dict[str, Any]]:
        if row.kind == "review":
            verb = self.script.reviews
            truth = self.ledger.truth(f"{row.thread_id}:{row.call_id}")
            if isinstance(truth, Happened) and verb in ("truth", "happened"):
                return "happened", {"answer": str(truth.result)}
            if verb == "truth":
                return ("did_not_happen" if isinstance(truth, DidNotHappen) else "drop"), {}
            return verb, {}
        decisions = self.script.decisions
        given: Any = None
        if isinstance(decisions, Mapping):
            given = decisions.get(row.name)
        elif place < len(decisions):
            given = decisions[place]
        default = "approve" if row.kind == "approval" else "leave"
        given = {"verb": given or default} if isinstance(given, str | None) else dict(given)
        return given.pop("verb", "answer" if "answer" in given else default), given

    async def resolve(
        self, runtimes: Sequence[Runtime], row: InterruptRow, verb: str, decision: dict[str, Any]
    ) -> None:
        """Decide, through each of these runtimes at once; how many were accepted is in the ledger."""
        work = [runtime.resolve(row.id, verb, by="crashtest", **decision) for runtime in runtimes]
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        failed = [each for each in outcomes if isinstance(each, BaseException)]
        for error in failed:
            if not isinstance(error, AlreadyDecided):
                raise error
        self.ledger.note("decided", interrupt=row.id, verb=verb, accepted=len(outcomes) - len(failed))

    async def decide_again(self, runtime: Runtime) -> None:
        """Each decision once more, as a retry that comes late: it has to be refused."""
        for row in await runtime.interrupts(pending=None, thread_id=self.thread_id, limit=1000):
            verbs = {"approval": "approve", "question": "answer", "review": "drop"}
            await self.resolve([runtime], row, verbs[row.kind], {"answer": "again"})
