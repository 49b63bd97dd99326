"""The synchronous core: plain values of a reply go in, typed pieces come out."""

from __future__ import annotations

from typing import NamedTuple

from tenuto.splitter.tokenizer import Tokenizer, problem_of


class UserText(NamedTuple):
    """Text for the user. `call` is the index of the call it came out of, None for plain content."""

    text: str
    call: int | None


class CallFinished(NamedTuple):
    """A call is complete. Without a `problem`, `arguments` is valid JSON without `to_user`.

    With a `problem`, `arguments` is the raw text exactly as it came, `to_user` included. `call` is unique
    in the reply, even where the provider's index is not.
    """

    call: int
    id: str | None
    name: str
    arguments: str
    problem: str | None


Piece = UserText | CallFinished


class _Call:
    """One tool call while it arrives."""

    __slots__ = ("finished", "held", "id", "index", "kept", "name", "raw", "stray", "tokenizer")

    def __init__(self, index: int, spoken_key: str | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.raw: list[str] = []
        self.kept: list[str] = []
        self.held: list[str] = []  # text that waits until another call's text has ended
        self.tokenizer = Tokenizer(spoken_key)
        self.finished = False
        self.stray = False  # text came after the call was handed on as finished

    def finish(self) -> CallFinished:
        self.finished = True
        raw = "".join(self.raw)
        problem = problem_of(raw)
        arguments = "".join(self.kept) if problem is None else raw
        return CallFinished(self.index, self.id, self.name, arguments, problem)


class Splitter:
    """The synchronous core: feed it what arrives, get what that adds.

    Not thread-safe; one instance reads one reply. No method raises on what a model sends. `close`
    may be called more than once; nothing is reported twice.
    """

    def __init__(self, to_user: str | None = "to_user") -> None:
        self._to_user = to_user
        self._open: list[_Call] = []  # not handed on yet
        self._latest: _Call | None = None
        self._numbers: set[int] = set()
        self._next_index = 0
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._speaker: _Call | None = None  # whose text is being spoken
        self._waiting: list[_Call] = []  # who has text to speak after the speaker
        self._last_speaker: _Call | None = None

    def feed_text(self, text: str) -> list[Piece]:
        """Plain content of the reply."""
        return [UserText(text, None)] if text else []

    def feed_call(
        self,
        index: int | None,
        id: str | None = None,
        name: str | None = None,
        arguments: str | None = None,
    ) -> list[Piece]:
        """A fragment of a tool call. `id` and `name` may come once, late or with every fragment.

        Calls are told apart by `index`; by `id` where a provider gives none, or gives the same one to
        several calls.
        """
        fragment = arguments or ""
        pieces: list[Piece] = []
        call = self._latest if index is None else self._by_index.get(index)
        if id or name or call is None:
            call = self._which(call, id, name, fragment)
            if call is None:
                pieces.extend(self.settle())
                call = self._begin(index)
            if id and not call.id:
                call.id = id
                self._by_id[id] = call
            call.name = call.name or name or ""
        if not fragment:
            return pieces
        call.raw.append(fragment)
        if call.finished:
            if not call.stray and not fragment.isspace():
                call.stray = True
                self._open.append(call)  # it is handed on once more, with its problem
            return pieces
        kept, spoken = call.tokenizer.feed(fragment)
        if spoken or self._speaker is call:
            self._say(call, spoken, pieces)
        if kept:
            call.kept.append(kept)
        return pieces

    def settle(self) -> list[Piece]:
        """The provider gave a finish reason: every call that is complete is handed on."""
        over = [call for call in self._open if call.tokenizer.complete]
        if over:
            self._open = [call for call in self._open if not call.tokenizer.complete]
        return [call.finish() for call in over]

    def close(self) -> list[Piece]:
        """The reply is over: every call is handed on, with its problem if it is not complete."""
        pieces: list[Piece] = []
        self._speaker = None
        for call in self._waiting:
            self._utter(call, "".join(call.held), pieces)
        self._waiting.clear()
        pieces.extend(call.finish() for call in self._open)
        self._open.clear()
        return pieces

    def _which(self, there: _Call | None, id: str | None, name: str | None, fragment: str) -> _Call | None:
        """The call that a fragment belongs to, given the one at its index; None for a new one."""
        if id and id in self._by_id:
            return self._by_id[id]
        if there is None:
            return None
        begins_again = there.tokenizer.complete and bool(fragment.strip())
        if id and there.id:
            # Another id at the same place: some providers make up a new one for every fragment, but
            # then they do not name the tool again.
            return None if name or begins_again else there
        return None if name and begins_again else there

    def _begin(self, index: int | None) -> _Call:
        number = index if index is not None and index not in self._numbers else self._next_index
        self._numbers.add(number)
        self._next_index = max(self._next_index, number + 1)
        call = _Call(number, self._to_user)
        self._open.append(call)
        self._latest = call
        self._by_index[number if index is None else index] = call
        return call

    def _say(self, call: _Call, text: str, pieces: list[Piece]) -> None:
        if self._speaker is not None and self._speaker is not call:
            if call not in self._waiting:
                self._waiting.append(call)
            call.held.append(text)
            return
        self._utter(call, text, pieces)
        self._speaker = call if call.tokenizer.speaking else None
        while self._speaker is None and self._waiting:
            following = self._waiting.pop(0)
            self._utter(following, "".join(following.held), pieces)
            following.held.clear()
            self._speaker = following if following.tokenizer.speaking else None

    def _utter(self, call: _Call, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        if self._last_speaker is not None and self._last_speaker is not call:
            text = "\n" + text
        self._last_speaker = call
        pieces.append(UserText(text, call.index))
