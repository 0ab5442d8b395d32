"""Walk the graph of one worker in a backward whose gradients come one after another, from other workers.

A node runs once everything that may give it a gradient has run. Each gradient is summed in a fixed order, whatever
order its parts come in: parts of the last message of the program first, by places (`contexts.py`); of one message by
the order in which a local backward has them. A part that comes before its turn is kept until then.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from resilin.core.autograd import engine
from resilin.core.autograd.engine import Run
from resilin.core.autograd.nodes import PostHook
from resilin.core.autograd.tape import Node, Pick
from resilin.core.kernels import pack
from resilin.core.ops.lazy_gradients import Product
from resilin.core.tensor import Tensor, wrap
from resilin.rpc.autograd.nodes import RecvRpcBackward, SendRpcBackward

_ROOT = b"\xff" * 16  # behind all messages
Sink = Callable[[RecvRpcBackward, "list[Any] | None"], None]
"""Sends the gradients of what a message had brought; None: nothing flows there."""


class _Sum:
    """Parts of one gradient, given on in a fixed order."""

    __slots__ = ("_at", "_early", "_order")

    def __init__(self, order: Sequence[tuple[Node, int]]) -> None:
        self._order, self._at = order, 0
        self._early: dict[tuple[Node, int], Any] = {}

    def put(self, node: Node, position: int, part: Any) -> list[Any]:
        """Take the part of an input of `node`; return all whose turn it is."""
        self._early[node, position] = part
        ready = []
        while self._at < len(self._order) and self._order[self._at] in self._early:
            part = self._early.pop(self._order[self._at])
            self._at += 1
            if part is not None:
                ready.append(part.whole() if type(part) is Product else part)
        return ready


class LocalBackward(Run):
    """One worker's part of a backward. Not for several threads at once."""

    __slots__ = ("_aside", "_before", "_deps", "_heap", "_sink", "_stopped", "_sums_of", "left", "unreached")

    def __init__(
        self,
        keep: bool,
        roots: Sequence[Tensor],
        sends: Mapping[bytes, SendRpcBackward],
        receives: Mapping[bytes, RecvRpcBackward],
        sink: Sink,
        before: Mapping[Tensor, Tensor],
    ) -> None:
        """before: what the context's backwards have added up until now."""
        super().__init__(False, keep, None, True)
        self._sink, self._stopped, self._before = sink, False, before
        self._heap: list[tuple[int, Node]] = []
        self._deps: dict[Node, int] = {}
        self._aside: dict[Tensor, Tensor | None] = {}  # `grad` of leaves that have this backward's there meanwhile
        self._sums_of: dict[Any, _Sum] = {}
        edges = engine.start(self, roots, (None,) * len(roots))
        self._count(edges, sends)
        self.unreached = [node for node in receives.values() if node not in self._deps]
        """What came, and is not on a way from the roots."""
        for node in receives.values():
            node.sink = sink
        for edge in edges:
            if self._deps[edge] == 0 and (-edge.seq, edge) not in self._heap:
                self._ready(edge)

    def _count(self, roots: Sequence[Node], sends: Mapping[bytes, SendRpcBackward]) -> None:
        """Find all that may get a gradient, how many parts each waits for, and in which order they are summed."""
        labels: dict[Node, bytes] = {root: _ROOT for root in roots}
        labels.update((send, place) for place, send in sends.items())
        found, stack = set(labels), list(labels)
        while stack:
            for edge in stack.pop().edges:
                if isinstance(edge, Node) and edge not in found:
                    found.add(edge)
                    stack.append(edge)
        order = sorted(found, key=lambda node: node.seq, reverse=True)
        deps = dict.fromkeys(order, 0)
        parts: dict[Any, list[tuple[Node, int]]] = {}
        for node in order:
            label = labels[node]
            for position, edge in enumerate(node.edges):
                if edge is None:
                    continue
                if isinstance(edge, Node):
                    deps[edge] += 1
                    if labels.get(edge, b"") < label:
                        labels[edge] = label
                else:
                    self.uses[edge] = self.uses.get(edge, 0) + 1
                if not isinstance(node, Pick):
                    parts.setdefault(edge, []).append((node, position))
        for edge, contributors in parts.items():
            if len(contributors) > 1:
                contributors.sort(key=lambda each: labels[each[0]], reverse=True)  # stable: else as a local backward
                self._sums_of[edge] = _Sum(contributors)
        self._deps, self.left = deps, len(deps)

    def _ready(self, node: Node) -> None:
        heapq.heappush(self._heap, (-node.seq, node))

    def deliver(self, send: SendRpcBackward, gradients: list[Any] | None) -> None:
        """Take the gradients of what `send` has sent; None: nothing flows there."""
        if gradients is not None:
            self.grads[send] = gradients
        self._ready(send)

    def go_on(self) -> None:
        """Run all nodes that have what they wait for."""
        with engine.inside(self):
            while self._heap and not self._stopped:
                _, node = heapq.heappop(self._heap)
                self.left -= 1
                self.walk((node,))
                if isinstance(node, Pick):
                    self._one_less(node.edges[0])
            if not self.left:
                while self.callbacks:
                    self.callbacks.pop(0)()

    def stop(self) -> None:
        """Run no further nodes, and put back the `grad` of leaves. Any thread."""
        self._stopped = True
        while self._aside:
            leaf, before = self._aside.popitem()
            leaf._grad = before

    def finish(self, leaf: Tensor) -> None:
        """As of every backward; but hooks that read `grad` find the gradient of the context there, until its end.

        Those of DDP average it, also what earlier backwards of the context have left to this one (`no_sync`).
        """
        hooks = leaf._hooks
        if hooks is None or all(isinstance(hook, PostHook) for hook in hooks.post.values()):
            super().finish(leaf)
            return
        before = self._before.get(leaf)
        self._aside[leaf], leaf._grad = leaf._grad, None if before is None else before.clone()
        self.capture = False
        try:
            super().finish(leaf)
        finally:
            self.capture = True

    def _one_less(self, node: Any) -> None:
        self._deps[node] -= 1
        if not self._deps[node]:
            self._ready(node)

    def hand_on(self, node: Node, parts: Any) -> None:
        """As of every backward, but that parts wait for their turn."""
        if isinstance(node, Pick):
            return
        if isinstance(node, RecvRpcBackward):
            if parts is None:
                self._sink(node, None)
            return
        metas = node.metas
        for position, edge in enumerate(node.edges):
            if edge is None:
                continue
            part = None
            if parts is not None:
                part, parts[position] = parts[position], None
            if part is not None:
                shape, dtype = metas[position]  # type: ignore[misc]
                if part.shape != shape or part.dtype is not dtype:
                    part = engine.fitted(node, position, part)
            waiting: dict[Any, Any] = self.grads if isinstance(edge, Node) else self.sums
            turns = self._sums_of.get(edge)
            if turns is not None:
                for ready in turns.put(node, position, part):
                    self.add(edge, ready, waiting)
            elif part is not None:
                self.add(edge, part, waiting)
            del part
            if isinstance(edge, Node):
                self._one_less(edge)
            else:
                self.uses[edge] -= 1
                if not self.uses[edge]:
                    self.finish(edge)

    def commit(self, gradients: dict[Tensor, Tensor]) -> None:
        """Add what has come to the leaves to `gradients`, and tell their hooks."""
        told = set(self._aside)
        for leaf in told:
            found, leaf._grad = leaf._grad, self._aside.pop(leaf)
            if found is not None:
                self.captured[leaf] = found._array
        while self.captured:
            leaf, array = self.captured.popitem()
            held = [array]
            owned = leaf in self.owned
            del array
            before = None if leaf in told else gradients.get(leaf)  # else it is in it
            if before is not None:
                gradients[leaf] = wrap(pack.add(before._array, held[0]), leaf._dev)
            else:
                gradients[leaf] = wrap(_taken(held, owned, leaf), leaf._dev)
            hooks = leaf._hooks
            if hooks is not None and leaf not in told:
                for hook in tuple(hooks.post.values()):
                    if isinstance(hook, PostHook):
                        hook.fn((), (gradients[leaf],))


def _taken(held: list[Any], owned: bool, leaf: Tensor) -> Any:
    """The array in `held` itself, when nobody else has it; a copy else."""
    if isinstance(held[0], np.ndarray):
        alone = held[0].base is None and sys.getrefcount(held[0]) <= _ALONE
        if (owned or alone) and held[0].flags.c_contiguous:
            return held[0]
        return np.array(held[0], order="C")
    return held[0] if owned else leaf._dev.xp.array(held[0], copy=True)


def _references_when_alone() -> int:
    held = [np.zeros(1)]
    return sys.getrefcount(held[0])


_ALONE = _references_when_alone()
