"""The live tree as data and as a drawing. Walks in loops, since a tree may be deeper than the stack."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tenuto.flow.node import TaskNode

if TYPE_CHECKING:
    from tenuto.flow._commander import CommanderAsync

MAX_NODES_SHOWN = 10_000


class NodeView:
    """A picture of the tree at the moment of asking. `str()` draws it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data

    def data(self) -> dict[str, Any]:
        """Plain data, ready for JSON: `id`, `kind`, `name`, `state`, `seconds`, `children`, `more`.

        `seconds` is since the node's own work began, None before. `more` counts the children that are
        left out, since the tree is too large.
        """
        return self._data

    def __str__(self) -> str:
        lines: list[str] = []
        waiting = [(self._data, "", "")]
        while waiting:
            node, before, below = waiting.pop()
            seconds = "" if node["seconds"] is None else f" {node['seconds']:.3f} s"
            more = f" (and {node['more']} more)" if node["more"] else ""
            lines.append(f"{before}{node['name']} #{node['id']} {node['state']}{seconds}{more}")
            branch, under = "└─ ", "   "
            for child in reversed(node["children"]):
                waiting.append((child, below + branch, below + under))
                branch, under = "├─ ", "│  "
        return "\n".join(lines)


def view_of(commander: CommanderAsync[Any]) -> NodeView:
    """A snapshot; may be taken from any thread, and then a node may be seen just before or after a change."""
    now = time.monotonic()
    waiting: list[tuple[TaskNode, dict[str, Any]]] = [(commander, _data_of(commander, now))]
    for node, data in waiting:  # grows while it is walked
        for child in list(node._children.values()):
            if child is node or not isinstance(child, TaskNode):
                continue
            if len(waiting) >= MAX_NODES_SHOWN:
                data["more"] += 1
                continue
            waiting.append((child, _data_of(child, now)))
            data["children"].append(waiting[-1][1])
    return NodeView(waiting[0][1])


def _data_of(node: TaskNode, now: float) -> dict[str, Any]:
    until = now if node._flow_until is None else node._flow_until
    return {
        "id": node._id,
        "kind": node._flow_kind,
        "name": node._label(),
        "state": node._state,
        "seconds": None if node._flow_since is None else until - node._flow_since,
        "children": [],
        "more": 0,
    }
