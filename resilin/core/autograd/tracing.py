"""Backward as spans of a trace: one for each node, its rule and the handing on of its gradients."""

from __future__ import annotations

from typing import Any

from resilin._base.trace import SpanKind, SpanRecorder
from resilin.core.autograd import node_names


class NodeSpans:
    """One span after the other, of the nodes that a backward comes to."""

    __slots__ = ("_recorder", "_token")

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._token = -1

    def next(self, node: Any) -> None:
        """The turn of `node` begins, and that of the one before has ended."""
        self.end()
        self._token = self._recorder.begin(_name(node), SpanKind.BACKWARD, node.seq)

    def end(self) -> None:
        """The turn of the last node has ended."""
        if self._token >= 0:
            self._recorder.end(self._token)
            self._token = -1


_names: dict[str, str] = {}  # of the ops whose nodes are all called the same


def _name(node: Any) -> str:
    op = getattr(node, "op", None)
    name = getattr(op, "name", None)
    if not isinstance(name, str) or node_names.varies(name):
        found: str = node.name()
        return found
    known = _names.get(name)
    if known is None:
        known = _names[name] = node.name()
    return known
