"""The live tree as data and as a drawing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenuto.flow.node import TaskNode

if TYPE_CHECKING:
    from tenuto.flow._commander import CommanderAsync

MAX_NODES_SHOWN = 10_000


@dataclass(slots=True)
class NodeView:
    """One node at the moment of asking. `seconds` is since its own work began, None before."""

    id: int | str | None
    kind: str
    name: str
    state: str
    seconds: float | None
    children: list[NodeView] = field(default_factory=list)
    more: int = 0  # children that are not shown, since the tree is too large

    def data(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        top: list[dict[str, Any]] = []
        waiting = [(self, top)]
        while waiting:
            view, into = waiting.pop()
            children: list[dict[str, Any]] = []
            into.append(
                {
                    "id": view.id,
                    "kind": view.kind,
                    "name": view.name,
                    "state": view.state,
                    "seconds": view.seconds,
                    "children": children,
                    "more": view.more,
                }
            )
            waiting.extend((child, children) for child in reversed(view.children))
        return top[0]

    def __str__(self) -> str:
        lines: list[str] = []
        waiting = [(self, "", "")]
        while waiting:
            view, before, below = waiting.pop()
            lines.append(before + view._line())
            last = len(view.children) - 1
            shown = [
                (
                    child,
                    below + ("└─ " if number == last else "├─ "),
                    below + ("   " if number == last else "│  "),
                )
                for number, child in enumerate(view.children)
            ]
            waiting.extend(reversed(shown))
        return "\n".join(lines)

    def _line(self) -> str:
        seconds = "" if self.seconds is None else f" {self.seconds:.3f} s"
        more = f" (and {self.more} more)" if self.more else ""
        return f"{self.name} #{self.id} {self.state}{seconds}{more}"


def view_of(commander: CommanderAsync[Any]) -> NodeView:
    """A snapshot; may be taken from any thread, and then a node may be seen just before or after a change."""
    now = time.monotonic()
    root = _view(commander, now)
    waiting: list[tuple[TaskNode, NodeView]] = [(commander, root)]
    shown = 1
    for node, view in waiting:  # grows while it is walked
        for child in list(node._children.values()):
            if child is node or not isinstance(child, TaskNode):
                continue
            if shown >= MAX_NODES_SHOWN:
                view.more += 1
                continue
            shown += 1
            child_view = _view(child, now)
            view.children.append(child_view)
            waiting.append((child, child_view))
    return root


def _view(node: TaskNode, now: float) -> NodeView:
    state: str = node._state
    kind = node._kind()
    if node._flow_root:
        state = "ACTIVE" if node._flow_since is not None else "PENDING"
    until = now if node._flow_until is None else node._flow_until
    seconds = None if node._flow_since is None else until - node._flow_since
    return NodeView(node._id, kind, node._label(), state, seconds)
