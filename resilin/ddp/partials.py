"""Sums the contributions of a rank's shards along the canonical tree, as they come. No communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from resilin.ddp.flat import Flat
from resilin.dist.tree import Plan, Subtree


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


class Partials:
    """The partial sums of one flat array: `push` shards in order, then `parts()` are those of the rank's subtrees.

    Arrays come from `make` and are used again after `clear`.
    """

    def __init__(self, plan: Plan, rank: int, make: Callable[[], Flat]) -> None:
        self._subtrees = plan.subtrees(rank)
        self._merges = merges(plan, rank)
        self._make = make
        self._free: list[Flat] = []
        self._stack: list[Flat] = []

    def take(self) -> Flat:
        """An array that is not in use."""
        return self._free.pop() if self._free else self._make()

    def give(self, flat: Flat) -> None:
        """Take `flat` back for later use."""
        self._free.append(flat)

    def push(self, shard: int, flat: Flat) -> None:
        """Add the contribution of `shard`; `flat` belongs to this object from now on."""
        self._stack.append(flat)
        for _ in range(self._merges[shard]):
            right = self._stack.pop()
            np.add(self._stack[-1].array, right.array, out=self._stack[-1].array)
            self._free.append(right)

    def parts(self) -> dict[Subtree, Flat]:
        """Every subtree of the rank with its sum, once the last shard was pushed."""
        return dict(zip(self._subtrees, self._stack, strict=True))

    def steal(self) -> Flat:
        """The only part, in a world of one; the caller gives it back later."""
        (root,) = self._stack
        self._stack = []
        return root

    def clear(self, reuse: bool = True) -> None:
        """Forget the step's sums. reuse=False: somebody may still read them, so their memory is let go."""
        if reuse:
            self._free += self._stack
        self._stack = []
