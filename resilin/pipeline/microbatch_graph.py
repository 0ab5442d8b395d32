"""One micro-batch at one stage, between its forward and the last half of its backward: what must be kept for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin.core.autograd import engine
from resilin.core.autograd.split_backward import Parts, split_backward
from resilin.core.autograd.tape import edge_of
from resilin.core.ops.lazy_gradients import written_out
from resilin.core.tensor import Tensor, wrap

Gradients = list[Any]
"""For each tensor of a message its gradient: a tensor, None, or for one that has other uses a list of contributions."""


class Source:
    """Where inputs came from: the leaves that stand for the tensors of one message."""

    __slots__ = ("apart", "leaves")

    def __init__(self, leaves: Sequence[Tensor], apart: Sequence[bool]) -> None:
        self.leaves = list(leaves)
        self.apart = list(apart)

    def wanted(self, whole: bool) -> list[Tensor]:
        """The leaves that get gradients: those to be summed here, or (`whole` False) those that are not."""
        pairs = zip(self.leaves, self.apart, strict=True)
        return [leaf for leaf, apart in pairs if leaf._rg and apart is not whole]


class MicrobatchGraph:
    """The graph of a stage's forward on one micro-batch. Methods are called in their order, each at most once."""

    __slots__ = ("_finish", "_roots", "_sources", "_tied")

    def __init__(self, sources: Sequence[Source], tied: Sequence[Tensor]) -> None:
        self._sources = list(sources)
        self._tied = list(tied)
        self._roots: dict[str, list[Tensor]] = {}
        self._finish: Callable[[], dict[Tensor, Parts]] | None = None

    def keep(self, name: str, tensors: Sequence[Tensor]) -> None:
        """Keep the way back of `tensors`, which were handed on under a name: not their elements."""
        self._roots[name] = [_way_back(tensor) for tensor in tensors]

    def _begin(self, gradients: Sequence[tuple[str, Gradients]]) -> tuple[list[Tensor], list[Tensor | None]]:
        tensors: list[Tensor] = []
        found: list[Tensor | None] = []
        for name, grads in gradients:
            for root, grad in zip(self._roots.get(name, ()), grads, strict=True):
                for part in grad if isinstance(grad, list) else [grad]:
                    if part is not None and root._rg:
                        tensors.append(root)
                        found.append(part)
        self._roots = {}
        return tensors, found

    def backward(
        self, gradients: Sequence[tuple[str, Gradients]], loss: Tensor | None
    ) -> tuple[list[Gradients], dict[Tensor, Parts]]:
        """Do a whole backward: the gradients of the inputs by source, the contributions to tied weights.

        gradients: of what was kept, by name, in the order in which a backward without pipeline comes to them.
        """
        if self._tied or any(source.wanted(whole=False) for source in self._sources):
            found = self.backward_inputs(gradients, loss)
            return found, self.backward_weights()
        tensors, grads = self._begin(gradients)
        if loss is not None:
            tensors, grads = [loss], [None]
        if tensors:
            engine.run_backward(tensors, grads, retain_graph=False, create_graph=False)
        sources, self._sources = self._sources, []
        return [[_taken(leaf) for leaf in source.leaves] for source in sources], {}

    def backward_inputs(self, gradients: Sequence[tuple[str, Gradients]], loss: Tensor | None) -> list[Gradients]:
        """Do the first half: the gradients of the inputs by source."""
        tensors, grads = self._begin(gradients)
        if loss is not None:
            tensors, grads = [loss], [None]
        sources, self._sources = self._sources, []
        summed = [leaf for source in sources for leaf in source.wanted(whole=True)]
        apart = [leaf for source in sources for leaf in source.wanted(whole=False)]
        if not tensors:
            self._finish = dict
            return [[None] * len(source.leaves) for source in sources]
        found, weights = split_backward(tensors, grads, [*summed, *apart], [*apart, *self._tied])
        by_leaf: dict[Tensor, Any] = dict(zip(summed, found[: len(summed)], strict=True))
        for leaf in apart:
            by_leaf[leaf] = [wrap(written_out(part), leaf._dev) for part in weights.parts(leaf)]
        self._finish = weights.run
        return [[by_leaf.get(leaf) for leaf in source.leaves] for source in sources]

    def backward_weights(self) -> dict[Tensor, Parts]:
        """Do the second half: the contributions to tied weights."""
        finish, self._finish = self._finish, None
        assert finish is not None, "a plan has I before W"
        found = finish()
        return {leaf: found[leaf] for leaf in self._tied if leaf in found}

    def defer(self, run: Callable[..., None]) -> None:
        """Have `run` be the second half, all else having been done."""

        def finish() -> dict[Tensor, Parts]:
            run()
            return {}

        self._finish = finish


def _taken(leaf: Tensor) -> Tensor | None:
    found, leaf._grad = leaf._grad, None
    return found


def _way_back(tensor: Tensor) -> Tensor:
    """A tensor at the place of `tensor` in the graph, with its shape and dtype, and hardly any memory."""
    edge = edge_of(tensor)
    if edge is None or isinstance(edge, Tensor) or not isinstance(tensor._array, np.ndarray):
        return tensor
    shown = np.broadcast_to(np.zeros((), tensor._array.dtype), tensor._array.shape)
    made = wrap(shown, tensor._dev)
    made._node, made._rg = edge, True
    return made
