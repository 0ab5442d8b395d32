"""A rank's own part of the canonical tree."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resilin.core.tensor import Tensor
from resilin.distributed.wire import shard_tree
from resilin.distributed.wire.shard_tree import Subtree
from resilin.shards.buffers import Row
from resilin.shards.tree_sum import CHUNK_ELEMENTS, TreeSum, merges, put

BUFFERS = [Tensor._wrap(np.zeros(3, np.float32))]
WEIGHTS = np.random.default_rng(9).random(33).astype(np.float32)


def naive(node: Subtree, leaves: list[np.ndarray]) -> np.ndarray:
    """The node's value by its definition."""
    children = node.children()
    if children is None:
        return leaves[node.start] * WEIGHTS[node.start]
    return naive(children[0], leaves) + naive(children[1], leaves)


@given(st.integers(1, 33), st.integers(1, 9), st.integers(0, 1000))
def test_partial_sums_equal_the_trees_nodes_bit_for_bit(shards: int, world: int, seed: int) -> None:
    world = min(world, shards)
    leaves = list(np.random.default_rng(seed).standard_normal((shards, 3)).astype(np.float32))
    plan = shard_tree.plan(shards, world)
    for rank in range(world):
        made: list[Row] = []

        def make(made: list[Row] = made) -> Row:
            made.append(Row(BUFFERS))
            return made[-1]

        partials = TreeSum(plan, rank, make)
        for _ in range(2):  # the second step uses the first one's memory
            for shard in plan.run(rank):
                flat, fresh = partials.open(shard)
                put(flat.array, leaves[shard], float(WEIGHTS[shard]), fresh)
                partials.close(shard)
            parts = partials.parts()
            assert tuple(parts) == plan.subtrees(rank)
            for node, flat in parts.items():
                assert np.array_equal(flat.array, naive(node, leaves))
            partials.clear()
        assert len(made) <= 2 * max(1, shards.bit_length()) + 1


def test_a_sum_is_completed_by_the_last_shard_under_it() -> None:
    assert merges(shard_tree.plan(8, 1), 0) == {0: 0, 1: 1, 2: 0, 3: 2, 4: 0, 5: 1, 6: 0, 7: 3}
    assert merges(shard_tree.plan(6, 2), 1) == {3: 0, 4: 0, 5: 1}


def test_adding_in_pieces_gives_the_bits_of_adding_the_whole() -> None:
    rng = np.random.default_rng(0)
    for shape in ((0,), (1,), (CHUNK_ELEMENTS,), (3, CHUNK_ELEMENTS + 7)):
        before, value = rng.standard_normal((2, *shape)).astype(np.float32)
        for weight in (1.0, 0.25, 1 / 3):
            weighted = value * np.float32(weight)
            for fresh, expected in ((True, weighted), (False, before + weighted)):
                for layout in (value, np.asfortranarray(value)):
                    got = before.copy()
                    put(got, layout, weight, fresh)
                    assert np.array_equal(got, expected)
