"""Build one fixed binary tree over shard numbers: sums along it have the same bits whatever the number of ranks.

Node [a, b) splits at a + the largest power of two below (b - a). Rank r of W owns the shards
[r*V//W, (r+1)*V//W); it sums the maximal subtrees inside its run by itself, and the ranks complete the nodes above
together. Every node's value is left + right, computed once and rounded to the tensor's dtype. Pure: no arrays, no
sockets.

                  [0,6)                   V = 6 shards, W = 2 ranks: rank 0 runs [0,3), rank 1 runs [3,6)
              ┌─────┴──────┐              rank 0 sums [0,2) alone and gives [2,3)
            [0,4)        [4,6)            rank 1 sums [4,6) alone and gives [3,4)
          ┌───┴───┐      ┌─┴─┐            together: [2,4) = [2,3)+[3,4); [0,4) = [0,2)+[2,4); [0,6) = [0,4)+[4,6)
        [0,2)   [2,4)    4   5
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

from resilin._base.shard_ranges import run_of
from resilin.errors import UsageError


@dataclass(frozen=True, order=True)
class Subtree:
    """The node that covers shards [start, stop)."""

    start: int
    stop: int

    def children(self) -> tuple[Subtree, Subtree] | None:
        """Left and right child, or None for a leaf (one shard)."""
        size = self.stop - self.start
        if size <= 1:
            return None
        middle = self.start + (1 << ((size - 1).bit_length() - 1))
        return Subtree(self.start, middle), Subtree(middle, self.stop)


@dataclass(frozen=True)
class Plan:
    """The tree over `shards` shards, shared by `world_size` ranks."""

    shards: int
    world_size: int
    runs: tuple[range, ...] | None = None
    """The shards of each rank, where they are not cut evenly."""

    def run(self, rank: int) -> range:
        """The shards of `rank`, ascending; empty when there are more ranks than shards."""
        return run_of(rank, self.world_size, self.shards) if self.runs is None else self.runs[rank]

    def grouped(self, groups: Sequence[Sequence[int]]) -> Plan | None:
        """The same tree where each group of ranks acts as one; None when a group's shards are not one run."""
        runs = []
        for group in groups:
            own = sorted((run for run in map(self.run, group) if run), key=lambda run: run.start)
            if any(left.stop != right.start for left, right in pairwise(own)):
                return None
            runs.append(range(own[0].start, own[-1].stop) if own else range(0))
        return Plan(self.shards, len(groups), tuple(runs))

    def subtrees(self, rank: int) -> tuple[Subtree, ...]:
        """The maximal nodes of the tree inside the run of `rank`, ascending: what it sums alone."""
        return self._frontier[rank]

    @cached_property
    def root(self) -> Subtree:
        """The node over all shards."""
        return Subtree(0, self.shards)

    @cached_property
    def parts(self) -> tuple[tuple[int, Subtree], ...]:
        """(rank, subtree) of every partial sum that ranks bring, in shard order."""
        return tuple((rank, node) for rank in range(self.world_size) for node in self._frontier[rank])

    @cached_property
    def joins(self) -> tuple[tuple[Subtree, Subtree, Subtree], ...]:
        """(node, left, right) of every sum that completes the tree above the ranks' parts, children first."""
        return tuple(joins(self.root, {node for _, node in self.parts}))

    @cached_property
    def _frontier(self) -> tuple[tuple[Subtree, ...], ...]:
        return tuple(tuple(_maximal(self.root, self.run(rank))) for rank in range(self.world_size))


def joins(top: Subtree, owned: Collection[Subtree]) -> list[tuple[Subtree, Subtree, Subtree]]:
    """(node, left, right) of every sum that leads from the `owned` nodes up to `top`, children first."""
    if top in owned:
        return []
    children = top.children()
    assert children is not None, f"shard {top} belongs to no rank"
    left, right = children
    return [*joins(left, owned), *joins(right, owned), (top, left, right)]


def _maximal(node: Subtree, run: range) -> list[Subtree]:
    if run.start <= node.start and node.stop <= run.stop:
        return [node]
    if node.stop <= run.start or run.stop <= node.start:
        return []
    children = node.children()
    assert children is not None
    return _maximal(children[0], run) + _maximal(children[1], run)


@cache
def plan(shards: int, world_size: int) -> Plan:
    """The plan for `shards` shards over `world_size` ranks."""
    if shards < 1 or world_size < 1:
        raise UsageError(f"a tree needs at least one shard and one rank, got {shards} and {world_size}")
    return Plan(shards, world_size)
