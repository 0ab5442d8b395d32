"""Sums the contributions of a rank's shards along the canonical tree, as they come. No communication."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from resilin.distributed.wire.shard_tree import Plan, Subtree

Array = NDArray[Any]
CHUNK_ELEMENTS = 1 << 15  # 128 KiB of float32: two pieces and a scratch fit in a core's own cache


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


def scaled(value: Any, factor: float) -> Any:
    """`value * factor`, of arrays on any device: the factor and the product each rounded to the dtype of `value`."""
    by = value.dtype.type(factor)
    if isinstance(value, np.ndarray):
        return value * by
    if value.dtype.kind == "V":  # bfloat16: the arrays of devices meet no number of it
        return (value.astype(np.float32) * float(by)).astype(value.dtype)
    return value * by.item()


def put(view: Array, value: Array, weight: float, fresh: bool) -> None:
    """`view = weight * value` when `fresh`, else `view += weight * value`, the product rounded before the sum.

    On the host the sum runs in pieces that stay in the cache, so that memory is read and written once.
    """
    if not isinstance(view, np.ndarray):
        product = scaled(value, weight)
        if fresh:
            view[...] = product
        else:
            view += product
        return
    factor = view.dtype.type(weight)
    if fresh:
        np.multiply(value, factor, out=view)
        return
    if value.size <= CHUNK_ELEMENTS or not (value.flags.c_contiguous and view.flags.c_contiguous):
        np.add(view, value * factor, out=view)
        return
    into, source = view.reshape(-1), value.reshape(-1)
    scratch = np.empty(CHUNK_ELEMENTS, view.dtype)
    for start in range(0, into.size, CHUNK_ELEMENTS):
        a, b = into[start : start + CHUNK_ELEMENTS], source[start : start + CHUNK_ELEMENTS]
        np.add(a, np.multiply(b, factor, out=scratch[: b.size]), out=a)


class Memory(Protocol):
    """What a partial sum lies in."""

    array: Any


M = TypeVar("M", bound=Memory)


class TreeSum(Generic[M]):
    """The partial sums of one bucket: `open` and `close` each shard in order, then `parts()` are the rank's subtrees.

    A shard that is the right child of a leaf's parent is added straight to its sibling's sum. Arrays come from `make`
    and are used again after `clear`.
    """

    def __init__(self, plan: Plan, rank: int, make: Callable[[], M]) -> None:
        self._subtrees = plan.subtrees(rank)
        self._merges = merges(plan, rank)
        self._make = make
        self._free: list[M] = []
        self._stack: list[M] = []

    def take(self) -> M:
        """An array that is not in use."""
        return self._free.pop() if self._free else self._make()

    def give(self, flat: M) -> None:
        """Take `flat` back for later use."""
        self._free.append(flat)

    def open(self, shard: int) -> tuple[M, bool]:
        """Where to `put` the contribution of `shard`, and whether that memory is fresh."""
        fresh = self._merges[shard] == 0 or not self._stack
        if fresh:
            self._stack.append(self.take())
        return self._stack[-1], fresh

    def close(self, shard: int) -> None:
        """The contribution of `shard` is all there: complete the sums above it."""
        for _ in range(self._merges[shard] - 1):
            right = self._stack.pop()
            left = self._stack[-1].array
            left += right.array
            self._free.append(right)

    def parts(self) -> dict[Subtree, M]:
        """Every subtree of the rank with its sum, once the last shard was closed."""
        return dict(zip(self._subtrees, self._stack, strict=True))

    def steal(self) -> M:
        """The only part, in a world of one; the caller gives it back later."""
        (root,) = self._stack
        self._stack = []
        return root

    def clear(self, reuse: bool = True) -> None:
        """Forget the step's sums. reuse=False: somebody may still read them, so their memory is let go."""
        if reuse:
            self._free += self._stack
        self._stack = []
