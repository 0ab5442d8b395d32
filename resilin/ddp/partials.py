"""Sums the contributions of a rank's shards along the canonical tree, as they come. No communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from resilin.ddp.flat import Array, Flat
from resilin.dist.tree import Plan, Subtree

CHUNK_ELEMENTS = 1 << 15  # 128 KiB of float32: two pieces and a scratch stay in a core's own cache


def merges(plan: Plan, rank: int) -> Mapping[int, int]:
    """Per shard of `rank`: how many sums become complete with it. Each joins the two partial sums added last."""
    counts = dict.fromkeys(plan.run(rank), 0)

    def visit(node: Subtree) -> None:
        children = node.children()
        if children is not None:
            visit(children[0])
            visit(children[1])
            counts[node.stop - 1] += 1

    for node in plan.subtrees(rank):
        visit(node)
    return counts


def add_weighted(left: Array, left_weight: float | None, right: Array, right_weight: float | None) -> None:
    """`left = left_weight * left + right_weight * right` in place, each product rounded before the sum.

    Runs in pieces that stay in the cache, so that memory is read and written once. `right` keeps its value.
    """
    scratch = np.empty(min(CHUNK_ELEMENTS, left.size), left.dtype)
    for start in range(0, left.size, CHUNK_ELEMENTS):
        a, b = left[start : start + CHUNK_ELEMENTS], right[start : start + CHUNK_ELEMENTS]
        if left_weight is not None:
            np.multiply(a, left.dtype.type(left_weight), out=a)
        if right_weight is not None:
            b = np.multiply(b, right.dtype.type(right_weight), out=scratch[: b.size])
        np.add(a, b, out=a)


class Partials:
    """The partial sums of one flat array: `push` shards in order, then `parts()` are those of the rank's subtrees.

    Arrays come from `make` and are used again after `clear`.
    """

    def __init__(self, plan: Plan, rank: int, make: Callable[[], Flat]) -> None:
        self._subtrees = plan.subtrees(rank)
        self._merges = merges(plan, rank)
        self._make = make
        self._free: list[Flat] = []
        self._stack: list[tuple[Flat, float | None]] = []  # a sum, or a leaf with the weight it still lacks

    def take(self) -> Flat:
        """An array that is not in use."""
        return self._free.pop() if self._free else self._make()

    def give(self, flat: Flat) -> None:
        """Take `flat` back for later use."""
        self._free.append(flat)

    def push(self, shard: int, flat: Flat, weight: float) -> None:
        """Add `weight` times the contribution of `shard`; `flat` belongs to this object from now on."""
        self._stack.append((flat, weight))
        for _ in range(self._merges[shard]):
            right, right_weight = self._stack.pop()
            left, left_weight = self._stack.pop()
            add_weighted(left.array, left_weight, right.array, right_weight)
            self._stack.append((left, None))
            self._free.append(right)

    def parts(self) -> dict[Subtree, Flat]:
        """Every subtree of the rank with its sum, once the last shard was pushed."""
        for flat, weight in self._stack:
            if weight is not None:
                np.multiply(flat.array, flat.array.dtype.type(weight), out=flat.array)
        self._stack = [(flat, None) for flat, _ in self._stack]
        return dict(zip(self._subtrees, [flat for flat, _ in self._stack], strict=True))

    def steal(self) -> Flat:
        """The only part, in a world of one; the caller gives it back later."""
        (root,) = self.parts().values()
        self._stack = []
        return root

    def clear(self, reuse: bool = True) -> None:
        """Forget the step's sums. reuse=False: somebody may still read them, so their memory is let go."""
        if reuse:
            self._free += [flat for flat, _ in self._stack]
        self._stack = []
