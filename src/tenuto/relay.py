"""Deltas for those who follow a thread in another process than the one that runs it.

Events need none of this: they come out of the store. What a reply says while it arrives is in no store, so
the processes tell each other, by `Store.publish`: who follows says every few seconds which threads it wants,
and who runs one of those says at most ten times a second what has come since. Where nobody wants a thread,
nothing is said.

All of it may get lost, come twice, or come after the event that supersedes it. So each piece of a reply tells
which reply it is of, at which place in it, and after which event. Who misses a piece shows no more of that
reply until it has been told again from its beginning, and asks for that; a reply whose event may be in the
log already is not begun. Nothing here waits: what cannot be said now is dropped.
"""

import asyncio
import itertools
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tenuto import limits
from tenuto.events import ThreadId
from tenuto.follower import Followed, Reply
from tenuto.messages import (
    AttemptFailed,
    CallDelta,
    Live,
    ReasoningDelta,
    ReplySoFar,
    StatusLine,
    TextDelta,
    ToolProgress,
)
from tenuto.rows import Change
from tenuto.store.base import Store

_HALVES: Final = re.compile("[\ud800-\udfff]")  # of characters; UTF-8 cannot carry them


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """Something that happens in a thread whose log went up to `head`. Of a reply (`reply` is its number, else
    0) it begins after so many characters of its text and of its reasoning.
    """

    thread: ThreadId
    head: int
    item: Live
    reply: int = 0
    text_at: int = 0
    reasoning_at: int = 0


class Want(msgspec.Struct, array_like=True, frozen=True):
    """A thread is followed at the origin, whose log is known there up to `head`. `anew`: what arrives is
    needed from its beginning.
    """

    thread: ThreadId
    head: int
    anew: bool


class Said(msgspec.Struct, array_like=True, frozen=True):
    """One publication."""

    origin: str
    pieces: list[Piece] = []
    wants: list[Want] = []


@dataclass(slots=True)
class _Wanted:
    """A thread that others follow, until they say so no more."""

    head: int = 0
    until: float = 0.0


class Relay:
    """Of one hub, whose store publishes: `replies` are those that arrive here, also from elsewhere;
    `followed` are those who are told.
    """

    def __init__(
        self, store: Store, replies: dict[ThreadId, Reply], followed: Mapping[ThreadId, Followed]
    ) -> None:
        self._store = store
        self._replies = replies
        self._followed = followed
        self._name = secrets.token_hex(4)
        self._numbers = itertools.count(1)
        self._wanted: dict[ThreadId, _Wanted] = {}
        self._pending: dict[ThreadId, list[Piece]] = {}
        self._again: set[ThreadId] = set()
        self._anew: set[ThreadId] = set()
        self._heads: dict[ThreadId, int] = {}
        self._asked: dict[ThreadId, float] = {}
        self._flush: asyncio.TimerHandle | None = None
        self._refresh: asyncio.TimerHandle | None = None
        self._clean_at = 0.0
        store.on_published(self.heard)

    # -- what happens here -------------------------------------------------------------------------------

    def begin(self) -> Reply:
        """A reply of a thread that runs here."""
        return Reply(self._name, next(self._numbers))

    def runs_here(self, reply: Reply) -> bool:
        """Is it of a thread that runs here?"""
        return reply.id[0] == self._name

    def say(self, thread_id: ThreadId, item: Live, reply: Reply | None) -> None:
        """Something happens in a thread that runs here; costs little when nobody elsewhere follows it."""
        wanted = self._wanted.get(thread_id)
        if wanted is None or wanted.until < _now():
            return
        piece = Piece(thread_id, wanted.head, item)
        if reply is not None:
            text, reasoning = reply.text_size, reply.reasoning_size
            if isinstance(item, TextDelta):
                text -= len(item.text)
            elif isinstance(item, ReasoningDelta):
                reasoning -= len(item.text)
            piece = Piece(thread_id, wanted.head, item, reply.id[1], text, reasoning)
        self._pending.setdefault(thread_id, []).append(piece)
        self._flush_in(limits.LIVE_SECONDS)

    def grew(self, change: Change) -> None:
        """What is not said yet is superseded by the worker's event, and so is what others said."""
        thread_id = change.thread_id
        if wanted := self._wanted.get(thread_id):
            wanted.head = max(wanted.head, change.head_seq)
            if not change.external:
                self._pending.pop(thread_id, None)
        # A head that is told again supersedes nothing.
        if thread_id in self._followed and change.head_seq > self._heads.get(thread_id, 0):
            self._heads[thread_id] = change.head_seq
            self._drop(thread_id)

    def follow(self, thread_id: ThreadId) -> None:
        """Somebody follows it here now."""
        self._anew.add(thread_id)
        self._flush_in(0)
        if self._refresh is None:
            self._refresh = _later(limits.WANT_SECONDS, self._want_all)

    def leave(self, thread_id: ThreadId) -> None:
        """Nobody does any more."""
        self._anew.discard(thread_id)
        self._heads.pop(thread_id, None)
        self._asked.pop(thread_id, None)
        self._drop(thread_id)

    # -- what happens elsewhere --------------------------------------------------------------------------

    def heard(self, text: str) -> None:
        """What another process published; of a later version's what is not understood is left out."""
        try:
            said = msgspec.json.decode(text, type=Said)
        except msgspec.DecodeError:
            return
        if said.origin == self._name:
            return
        for want in said.wants:
            self._note(want)
        for piece in said.pieces:
            if followed := self._followed.get(piece.thread):
                self._take(said.origin, piece, followed)

    def _note(self, want: Want) -> None:
        now = _now()
        if now >= self._clean_at:
            self._clean_at = now + limits.WANTED_SECONDS
            for thread_id in [name for name, wanted in self._wanted.items() if wanted.until < now]:
                del self._wanted[thread_id]
                self._pending.pop(thread_id, None)
        wanted = self._wanted.get(want.thread)
        anew = want.anew or wanted is None or wanted.until < now
        if wanted is None:
            if len(self._wanted) >= limits.MAX_WANTED_THREADS:
                return
            wanted = self._wanted[want.thread] = _Wanted()
        wanted.head = max(wanted.head, want.head)
        wanted.until = now + limits.WANTED_SECONDS
        reply = self._replies.get(want.thread)
        if anew and reply is not None and self.runs_here(reply):
            self._again.add(want.thread)
            self._flush_in(limits.LIVE_SECONDS)

    def _take(self, origin: str, piece: Piece, followed: Followed) -> None:
        item, thread_id = piece.item, piece.thread
        if piece.head > self._heads.get(thread_id, 0):
            # The news of its log come later, or got lost: those who follow read that first.
            self._heads[thread_id] = piece.head
            self._drop(thread_id)
            followed.grew(piece.head)
        if isinstance(item, TextDelta | ReasoningDelta):
            self._take_text(origin, piece, item, followed)
        elif piece.head >= self._heads.get(thread_id, 0):
            if isinstance(item, AttemptFailed):
                self._drop(thread_id)
            followed.tell(item)

    def _take_text(
        self, origin: str, piece: Piece, item: TextDelta | ReasoningDelta, followed: Followed
    ) -> None:
        thread_id = piece.thread
        reply = self._replies.get(thread_id)
        if reply is not None and self.runs_here(reply):
            return  # another worker lost the thread and does not know it yet
        if reply is None or reply.id != (origin, piece.reply):
            if piece.head < self._known(thread_id):
                self._ask(thread_id)  # its event is told already; or a message came in between
                return
            if piece.text_at or piece.reasoning_at:
                self._miss(thread_id, followed)
                return
            if reply is not None:
                followed.miss()  # its worker died; this one begins again
            reply = self._replies[thread_id] = Reply(origin, piece.reply)
        if piece.text_at > reply.text_size or piece.reasoning_at > reply.reasoning_size:
            self._miss(thread_id, followed)
            return
        is_text = isinstance(item, TextDelta)
        known = reply.text_size - piece.text_at if is_text else reply.reasoning_size - piece.reasoning_at
        if (told := type(item)(item.text[known:])).text:
            reply.add(told)
            followed.tell(told)

    def _known(self, thread_id: ThreadId) -> int:
        """How far the log of a thread that is followed here has been heard of or read."""
        followed = self._followed.get(thread_id)
        read = max((each.after for each in followed.followers), default=0) if followed else 0
        return max(read, self._heads.get(thread_id, 0))

    def _miss(self, thread_id: ThreadId, followed: Followed) -> None:
        self._drop(thread_id)
        followed.miss()
        self._ask(thread_id)

    def _ask(self, thread_id: ThreadId) -> None:
        if _now() - self._asked.get(thread_id, float("-inf")) >= limits.ASK_AGAIN_SECONDS:
            self._asked[thread_id] = _now()
            self._anew.add(thread_id)
            self._flush_in(0)

    def _drop(self, thread_id: ThreadId) -> None:
        """The reply that arrives from elsewhere is over, or cannot be told any further."""
        reply = self._replies.get(thread_id)
        if reply is not None and not self.runs_here(reply):
            del self._replies[thread_id]

    # -- saying it ---------------------------------------------------------------------------------------

    def _flush_in(self, seconds: float) -> None:
        if self._flush is not None and seconds < self._flush.when() - _now():
            self._flush.cancel()
            self._flush = None
        if self._flush is None:
            self._flush = _later(seconds, self._say_all)

    def _say_all(self) -> None:
        self._flush = None
        pending, self._pending = self._pending, {}
        again, self._again = self._again, set()
        for thread_id in again:
            reply, wanted = self._replies.get(thread_id), self._wanted.get(thread_id)
            if reply is not None and wanted is not None and self.runs_here(reply):
                pending[thread_id] = _from_the_beginning(
                    reply, wanted.head, thread_id, pending.get(thread_id, ())
                )
        pieces = [part for each in pending.values() for piece in _joined(each) for part in _cut(piece)]
        self._publish(pieces, [Want(each, self._known(each), True) for each in self._anew])
        self._anew.clear()

    def _want_all(self) -> None:
        self._refresh = None
        if self._followed:
            self._publish([], [Want(each, self._known(each), False) for each in self._followed])
            self._refresh = _later(limits.WANT_SECONDS, self._want_all)

    def _publish(self, pieces: list[Piece], wants: list[Want]) -> None:
        if not pieces and not wants:
            return
        text = msgspec.json.encode(Said(self._name, pieces, wants)).decode()
        if len(text.encode()) < limits.MAX_NOTIFY_BYTES:
            self._store.publish(text)
        elif len(pieces) + len(wants) > 1:
            half_of_pieces, half_of_wants = (len(pieces) + 1) // 2, len(wants) // 2
            self._publish(pieces[:half_of_pieces], wants[:half_of_wants])
            self._publish(pieces[half_of_pieces:], wants[half_of_wants:])


def _from_the_beginning(
    reply: Reply, head: int, thread_id: ThreadId, pending: Iterable[Piece]
) -> list[Piece]:
    """All that the reply has said, in place of what was about to be said of it."""
    so_far = reply.so_far()
    if so_far is None:
        return list(pending)
    number, size = reply.id[1], reply.reasoning_size
    pieces = [Piece(thread_id, head, ReasoningDelta(so_far.reasoning), number)] if so_far.reasoning else []
    if so_far.text:
        pieces.append(Piece(thread_id, head, TextDelta(so_far.text), number, 0, size))
    return pieces + [each for each in pending if not isinstance(each.item, TextDelta | ReasoningDelta)]


def _same(piece: Piece) -> tuple[Any, ...]:
    item = piece.item
    match item:
        case TextDelta() | ReasoningDelta():
            return type(item), piece.reply
        case CallDelta():
            return CallDelta, piece.reply, item.index
        case ToolProgress():
            return ToolProgress, item.call_id
        case StatusLine():
            return (StatusLine,)
        case AttemptFailed() | ReplySoFar():
            return type(item), id(piece)


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The text of neighbours together; of lines that take each other's place, the last."""
    for _, group in itertools.groupby(pieces, _same):
        first, *rest = group
        item = first.item
        if isinstance(item, TextDelta | ReasoningDelta):
            texts = [getattr(each.item, "text", "") for each in (first, *rest)]
            yield msgspec.structs.replace(first, item=type(item)("".join(texts)))
        elif isinstance(item, CallDelta):
            arguments = "".join(getattr(each.item, "arguments", "") for each in (first, *rest))
            names = (getattr(each.item, "name", "") for each in (first, *rest))
            name = next(filter(None, names), "")
            yield msgspec.structs.replace(first, item=CallDelta(item.index, name, arguments))
        else:
            yield rest[-1] if rest else first


def _cut(piece: Piece) -> Iterator[Piece]:
    """In parts, each short enough for one publication. What is no text, and too long, is left out there."""
    item, most = piece.item, limits.LIVE_PIECE_CHARACTERS
    if isinstance(item, TextDelta | ReasoningDelta):
        name = "text_at" if isinstance(item, TextDelta) else "reasoning_at"
        for at in range(0, len(item.text), most):
            part = type(item)(_whole(item.text[at : at + most]))
            yield msgspec.structs.replace(piece, item=part, **{name: getattr(piece, name) + at})
    elif isinstance(item, CallDelta):
        for at in range(0, len(item.arguments) or 1, most):
            arguments = _whole(item.arguments[at : at + most])
            yield msgspec.structs.replace(piece, item=CallDelta(item.index, _whole(item.name), arguments))
    else:
        changes = {
            name: _whole(value)
            for name, value in msgspec.structs.asdict(item).items()
            if isinstance(value, str)
        }
        yield msgspec.structs.replace(piece, item=msgspec.structs.replace(item, **changes))


def _whole(text: str) -> str:
    """One character for each, so that places stay what they are."""
    return text if text.isascii() else _HALVES.sub("\ufffd", text)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _later(seconds: float, work: Any) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, work)
