"""Standing in for a node that is to run but has no place in the tree yet."""

from __future__ import annotations

from collections.abc import Callable

from tenuto.flow.node import TaskNode


class StandIn(TaskNode):
    """Holds the place of a node that is to run but cannot be in the tree yet.

    It runs already and has to run again, or it runs in the tree of another commander.
    """

    def _label(self) -> str:
        return "waiting for another run"


def watch(node: TaskNode, watcher: Callable[[], None]) -> None:
    """Call this once, when the present or next run of the node has ended."""
    if node._flow_watchers is None:
        node._flow_watchers = []
    node._flow_watchers.append(watcher)
