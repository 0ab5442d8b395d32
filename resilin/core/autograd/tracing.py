"""Backward as spans of a trace: one for each node, its rule and the handing on of its gradients; one for each leaf that
takes its own.
"""

from __future__ import annotations

from typing import Any, Protocol

from resilin._base.trace import SpanKind, SpanRecorder
from resilin.core.autograd import node_names
from resilin.core.kernels.loader import native

LEAF = "torch::autograd::AccumulateGrad"
"""PyTorch's name."""


class BackwardSpans(Protocol):
    """One span after the other."""

    def next(self, node: Any) -> None:
        """The turn of `node` begins, and whatever was before has ended."""
        ...

    def leaf(self) -> None:
        """A leaf begins to take its gradient, and whatever was before has ended."""
        ...

    def end(self) -> None:
        """Whatever was before has ended."""
        ...


def backward_spans(recorder: SpanRecorder) -> BackwardSpans:
    """Return who marks what one backward does."""
    if native is not None and isinstance(recorder, native.Recorder):
        found: BackwardSpans = native.NodeSpans(recorder, _name_and_whether_it_stays, LEAF)
        return found
    return NodeSpans(recorder)


class NodeSpans:
    """The spans of any recorder."""

    __slots__ = ("_recorder", "_token")

    def __init__(self, recorder: SpanRecorder) -> None:
        self._recorder = recorder
        self._token = -1

    def next(self, node: Any) -> None:
        """See BackwardSpans."""
        self.end()
        self._token = self._recorder.begin(_name(node), SpanKind.BACKWARD, node.seq)

    def leaf(self) -> None:
        """See BackwardSpans."""
        self.end()
        self._token = self._recorder.begin(LEAF, SpanKind.BACKWARD)

    def end(self) -> None:
        """See BackwardSpans."""
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


def _name_and_whether_it_stays(node: Any) -> tuple[str, bool]:
    """The name, and whether all nodes of the op have it that lack the same edges, and the first parameter or not."""
    name = getattr(getattr(node, "op", None), "name", None)
    return node.name(), isinstance(name, str) and not node_names.varies_by_more(name)
