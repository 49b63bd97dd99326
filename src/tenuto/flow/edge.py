"""Edges: what runs next, said between nodes instead of inside them.

An edge is a callback at the end of a node that puts the next one under the commander. A node may be
reached again and again, by several edges or in a circle; each time is a run of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenuto.flow.handler import HandlerCoroutine
from tenuto.flow.job import Job

Node = Job | HandlerCoroutine[Any]


def add_edge(from_node: Node, to_node: Node, data: Any | None = None) -> None:
    """Run `to_node` whenever `from_node` has ended, even by an exception. Edges of one node fork.

    `data` becomes `to_node.data`; the first node has to be given its own. TypeError if either is no node.
    """
    _check(to_node)
    _follow(from_node, lambda: to_node)
    if data is not None:
        to_node.data = data


def add_conditional_edge(from_node: Node, map: Mapping[Any, Node], data: Any | None = None) -> None:  # noqa: A002 - as programs name it
    """Run the node that `map` gives for the result of `from_node`; none, if the result is not in it.

    The map is read at that moment, and may be changed until then. `data` becomes the `data` of the node.
    """
    for node in map.values():
        _check(node)

    def choose() -> Node | None:
        try:
            to_node = map.get(from_node.result)
        except TypeError:
            return None  # a result that cannot be a key
        if to_node is not None and data is not None:
            to_node.data = data
        return to_node

    _follow(from_node, choose)


def _check(node: object) -> None:
    if not isinstance(node, Job | HandlerCoroutine):
        raise TypeError(f"an edge joins Jobs and called handlers, not {node!r}")


def _follow(from_node: Node, choose: Callable[[], Node | None]) -> None:
    _check(from_node)

    async def follow() -> None:
        to_node = choose()
        if isinstance(to_node, Job):
            await from_node.put_job(to_node, parent=from_node.commander)
        elif to_node is not None:
            _check(to_node)
            from_node.call_handler(to_node, parent=from_node.commander)

    from_node.add_callback_functions(from_node._flow_end, {"function": follow})
