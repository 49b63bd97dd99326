"""Chunks become a reply: pure, and the one place for what providers do differently.

Seen in the wild, each recorded by a test:

- the index of a call is absent, starts at 1, or is 0 for every call; its id or name is repeated with each
  fragment, or comes once and is empty afterwards, or is empty throughout; a whole call comes in one delta;
  arguments are null, absent, or an object instead of text; `function_call` of the old form;
- reasoning comes in `reasoning_content`, `reasoning`, `reasoning_details` or parts of the content, and in
  several of these at once;
- content is a list of parts, some of unknown kinds;
- usage comes in the last chunk, in one without choices, beside choices, or in `x_groq`; in some streams
  chunks without choices carry other things;
- there is no finish reason; the error comes inside a chunk.

Arguments stay the text that the provider sent: whether they can be used is not decided here.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tenuto.errors import ModelError
from tenuto.events import clean
from tenuto.limits import MAX_CALLS_PER_REPLY, MAX_REPLY_BYTES
from tenuto.messages import CallDelta, CallRequest, ReasoningDelta, Reply, TextDelta, Usage
from tenuto.models.failure import provider_failure
from tenuto.models.wire import CallPart, Choice, Chunk, Part

Shown = TextDelta | ReasoningDelta | CallDelta


class Assembly:
    """A reply in the making. One that grows beyond `MAX_REPLY_BYTES` or `MAX_CALLS_PER_REPLY` is an error."""

    def __init__(self) -> None:
        self.finish = ""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._details: list[dict[str, Any]] = []
        self._extra: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._model = ""
        self._bytes = 0
        self._alternative: Any = None
        self._shown: list[Shown] = []

    def add(self, chunk: Chunk) -> list[Shown]:
        """Take in one chunk and return what it shows. Raises `ModelError` for an error inside it."""
        choices = chunk.choices
        if chunk.error:
            raise provider_failure(chunk.error)
        if not self._model:
            self._model = _text(chunk.model)
        usage = chunk.usage or (chunk.x_groq and _field(chunk.x_groq, "usage"))
        if isinstance(usage, dict):
            self._usage = usage
        if not choices:
            return []
        self._shown = []
        choice = choices[0]
        # Alternatives (n > 1) come in turn; the one that comes first is the answer.
        if self._alternative is None:
            self._alternative = choice.index
        if choice.index == self._alternative:
            self._choose(choice)
        return self._shown

    def reply(self, done: bool) -> Reply:
        """The whole reply. Raises a retryable `ModelError` when it was cut or says nothing at all."""
        if not (done or self.finish):
            raise ModelError("the provider's stream was cut before its end", retryable=True)
        text = _whole(self._text)
        calls = tuple(call.request() for call in self._calls if call.said())
        if not (text or calls):
            reason = f" (finish reason {self.finish})" if self.finish else ""
            raise ModelError(f"the provider sent neither text nor calls{reason}", retryable=True)
        if not calls:
            self._extra.pop("reasoning_field", None)
        elif self._details:
            self._extra["reasoning_details"] = self._details
        return Reply(
            text=text,
            reasoning=_whole(self._reasoning),
            calls=calls,
            usage=read_usage(self._usage),
            model=self._model,
            finish=self.finish,
            extra=self._extra or None,
        )

    def _choose(self, choice: Choice) -> None:
        part = choice.delta
        if part is not None:
            self._take(part)
        elif choice.message is not None:
            part = choice.message
            self._take(part, whole=True)
        finish = choice.finish_reason
        if choice.error or finish == "error":
            raise provider_failure(choice.error or "the provider broke off with finish reason 'error'")
        if finish:
            self.finish = _text(finish)

    def _take(self, part: Part, whole: bool = False) -> None:
        content = part.content
        if content:
            if isinstance(content, str):
                self._say(content)
            elif isinstance(content, list):
                self._read_parts(content)
        if part.refusal and isinstance(part.refusal, str):
            self._extra["refusal"] = True
            self._say(part.refusal)
        if part.reasoning_content or part.reasoning or part.reasoning_details:
            self._read_reasoning(part)
        if part.tool_calls:
            for piece in part.tool_calls:
                self._read_call(piece, whole)
        if part.function_call is not None:
            self._read_call(CallPart(index=0, function=part.function_call), whole)
        for name in ("extra_content", "thought_signature"):
            value = getattr(part, name)
            if value:
                self._extra[name] = self._hold(value)

    def _say(self, text: str) -> None:
        self._count(text)
        self._text.append(text)
        self._shown.append(TextDelta(clean(text)))

    def _think(self, text: Any) -> None:
        if text and isinstance(text, str):
            self._count(text)
            self._reasoning.append(text)
            self._shown.append(ReasoningDelta(clean(text)))

    def _read_parts(self, parts: list[Any]) -> None:
        for part in parts:
            kind = _field(part, "type")
            if isinstance(part, str):
                self._say(part)
            elif kind == "text" and isinstance(part.get("text"), str):
                self._say(part["text"])
            elif kind == "thinking":
                thinking = part.get("thinking")
                for piece in thinking if isinstance(thinking, list) else [thinking]:
                    self._think(_field(piece, "text") or piece)
            else:
                self._extra.setdefault("parts", []).append(self._hold(part))

    def _read_reasoning(self, part: Part) -> None:
        """Providers that send the same text in two fields mean it once."""
        listed = part.reasoning_details if isinstance(part.reasoning_details, list) else []
        details = [self._hold(detail) for detail in listed if isinstance(detail, dict)]
        if part.reasoning_content:
            self._extra["reasoning_field"] = "reasoning_content"
            self._think(part.reasoning_content)
        elif part.reasoning:
            self._think(part.reasoning)
        else:
            for detail in details:
                self._think(detail.get("text") or detail.get("summary"))
        for detail in details:
            self._join_detail(detail)

    def _join_detail(self, detail: dict[str, Any]) -> None:
        last = self._details[-1] if self._details else {}
        if any(last.get(key) != detail.get(key) for key in ("type", "index")) or "data" in detail:
            self._details.append(dict(detail))
            return
        for key, value in detail.items():
            if key in {"text", "summary"} and isinstance(value, str):
                last[key] = (last.get(key) or "") + value
            elif value is not None:
                last[key] = value

    def _read_call(self, piece: CallPart, whole: bool) -> None:
        function = piece.function
        name = _text(function.name) if function else ""
        arguments = function.arguments if function else None
        call = None if whole else self._find(piece, name, arguments)
        if call is None:
            if len(self._calls) == MAX_CALLS_PER_REPLY:
                raise ModelError(f"the provider sent more than {MAX_CALLS_PER_REPLY} calls in one reply")
            call = _Call()
            self._calls.append(call)
        if isinstance(piece.index, int):
            self._by_index[piece.index] = call
        call.id = call.id or _text(piece.id)
        call.name = call.name or name
        if arguments is not None:
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
                call.pieces.clear()
            self._count(arguments)
            call.pieces.append(arguments)
            self._shown.append(CallDelta(self._calls.index(call), call.name, clean(arguments)))
        if piece.extra_content:
            call.extra = {"extra_content": self._hold(piece.extra_content)}

    def _find(self, piece: CallPart, name: str, arguments: Any) -> "_Call | None":
        """The call that a fragment goes on with; None when it begins another one."""
        if isinstance(piece.index, int):
            call = self._by_index.get(piece.index)
        else:
            call = self._calls[-1] if self._calls else None
        if call is None:
            return None
        identifier = _text(piece.id)
        if identifier and call.id:
            goes_on = identifier == call.id or not name
        elif not name or not call.name:
            goes_on = True
        else:
            goes_on = name == call.name and not (arguments and call.complete())
        return call if goes_on else None

    def _hold(self, value: Any) -> Any:
        """`value` in a form that can be stored and sent back."""
        try:
            encoded = msgspec.json.encode(value)
        except UnicodeEncodeError:
            encoded = clean(json.dumps(value, ensure_ascii=False)).encode()
            value = json.loads(encoded)
        self._count(encoded)
        return value

    def _count(self, piece: str | bytes) -> None:
        if isinstance(piece, str) and not piece.isascii():
            piece = piece.encode("utf-8", "surrogatepass")
        self._bytes += len(piece)
        if self._bytes > MAX_REPLY_BYTES:
            raise ModelError(f"the provider sent a reply of more than {MAX_REPLY_BYTES} bytes")


@dataclass(slots=True, eq=False)
class _Call:
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    extra: dict[str, Any] | None = None

    def said(self) -> bool:
        """Some endpoints send an empty object where there is no call."""
        return bool(self.id or self.name or any(self.pieces))

    def complete(self) -> bool:
        text = "".join(self.pieces)
        try:
            return text.rstrip().endswith("}") and isinstance(json.loads(text), dict)
        except ValueError:
            return False

    def request(self) -> CallRequest:
        arguments = _whole(self.pieces) if self.pieces else None
        return CallRequest(name=self.name, arguments=arguments, provider_id=self.id, extra=self.extra)


def read_usage(said: dict[str, Any]) -> Usage:
    """The token counts in any of the known spellings; what is no sensible number counts as none."""
    prompt = said.get("prompt_tokens_details")
    completion = said.get("completion_tokens_details")
    cached = _field(prompt, "cached_tokens") or said.get("prompt_cache_hit_tokens")
    cost: Any = said.get("cost")
    return Usage(
        input=_tokens(said.get("prompt_tokens")),
        output=_tokens(said.get("completion_tokens")),
        cached=_tokens(cached or said.get("cached_tokens")),
        reasoning=_tokens(_field(completion, "reasoning_tokens")),
        cost=float(cost) if _is_number(cost) and 0 <= cost < math.inf else 0.0,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _tokens(value: Any) -> int:
    return int(value) if _is_number(value) and 0 <= value < 2**53 else 0


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def _whole(pieces: list[str]) -> str:
    """The text of all pieces; the halves of a character that was cut in two are joined first."""
    return clean("".join(pieces))
