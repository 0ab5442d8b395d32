"""The pure plans: schedules and the shard tree, run on lists of integers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin.dist import schedules, tree
from resilin.errors import UsageError

RANKS = st.integers(1, 9)


def play(per_rank, start):
    """Run all ranks' schedules on multisets: chunk -> list of the ranks whose data it holds."""
    state = [[list(chunk) for chunk in chunks] for chunks in start]
    at = [0] * len(per_rank)
    posted = {}
    done = False
    while not done:
        done, moved = True, False
        for rank, steps in enumerate(per_rank):
            if at[rank] == len(steps):
                continue
            done = False
            step = steps[at[rank]]
            if step.send and (rank, at[rank]) not in posted:
                part = step.send
                posted[rank, at[rank]] = (
                    part.peer,
                    part.start,
                    part.stop,
                    [list(c) for c in state[rank][part.start : part.stop]],
                )
                moved = True
            if step.recv:
                source = next(
                    (k for k, v in sorted(posted.items()) if k[0] == step.recv.peer and v is not None and v[0] == rank),
                    None,
                )
                if source is None:
                    continue
                _, first, stop, payload = posted[source]
                posted[source] = None
                assert (first, stop) == (step.recv.start, step.recv.stop)
                for chunk, got in zip(range(first, stop), payload, strict=True):
                    state[rank][chunk] = state[rank][chunk] + got if step.combine else got
            at[rank] += 1
            moved = True
        assert done or moved, "deadlock"
    assert all(v is None for v in posted.values()), "a message was never received"
    return state


def own(size):
    return [[[rank] for _ in range(size)] for rank in range(size)]


@given(RANKS)
def test_all_reduce_schedules_bring_every_rank_once_to_everybody(size):
    for schedule in (schedules.ring_all_reduce, schedules.doubling_all_reduce):
        for chunks in play([schedule(rank, size) for rank in range(size)], own(size)):
            assert all(sorted(chunk) == list(range(size)) for chunk in chunks)


@given(RANKS)
def test_reduce_scatter_completes_each_ranks_own_chunk(size):
    state = play([schedules.ring_reduce_scatter(rank, size) for rank in range(size)], own(size))
    assert all(sorted(state[rank][rank]) == list(range(size)) for rank in range(size))


@given(RANKS, st.data())
def test_broadcast_and_reduce_meet_at_any_root(size, data):
    root = data.draw(st.integers(0, size - 1))
    sent = play([schedules.binomial_broadcast(rank, size, root) for rank in range(size)], own(size))
    assert all(chunk == [root] for chunks in sent for chunk in chunks)
    summed = play([schedules.binomial_reduce(rank, size, root) for rank in range(size)], own(size))
    assert all(sorted(chunk) == list(range(size)) for chunk in summed[root])


@given(RANKS)
def test_dissemination_lets_everybody_hear_of_everybody(size):
    heard = [{rank} for rank in range(size)]
    for step in range(len(schedules.dissemination(0, size))):
        before = [set(h) for h in heard]
        for rank in range(size):
            heard[rank] |= before[schedules.dissemination(rank, size)[step].recv.peer]
    assert all(h == set(range(size)) for h in heard)


@given(st.integers(0, 1000), RANKS)
def test_bounds_cover_evenly(count, chunks):
    cut = schedules.bounds(count, chunks)
    sizes = np.diff(cut)
    assert (cut[0], cut[-1]) == (0, count)
    assert sizes.min() >= count // chunks
    assert sizes.max() <= -(-count // chunks)


@given(st.integers(1, 40), st.integers(1, 12))
def test_runs_cover_the_shards_and_subtrees_cover_the_runs(shards, world_size):
    plan = tree.plan(shards, world_size)
    assert [s for rank in range(world_size) for s in plan.run(rank)] == list(range(shards))
    for rank in range(world_size):
        nodes = plan.subtrees(rank)
        assert [s for node in nodes for s in range(node.start, node.stop)] == list(plan.run(rank))
        assert len(nodes) <= 2 * max(1, (shards - 1).bit_length())


@settings(max_examples=60)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_the_tree_gives_the_same_bits_for_every_world_size(shards, world_size, seed):
    values = np.random.default_rng(seed).standard_normal((shards, 5)).astype(np.float32)

    def total(node):
        children = node.children()
        return values[node.start] if children is None else total(children[0]) + total(children[1])

    plan = tree.plan(shards, world_size)
    sums = {node: total(node) for rank in range(world_size) for node in plan.subtrees(rank)}
    for node, left, right in plan.joins:
        sums[node] = sums.pop(left) + sums.pop(right)
    assert list(sums) == [tree.Subtree(0, shards)]
    assert (sums[tree.Subtree(0, shards)] == total(tree.Subtree(0, shards))).all()


def test_a_node_splits_at_the_largest_power_of_two_below_its_size():
    assert tree.Subtree(0, 6).children() == (tree.Subtree(0, 4), tree.Subtree(4, 6))
    assert tree.Subtree(4, 9).children() == (tree.Subtree(4, 8), tree.Subtree(8, 9))
    assert tree.Subtree(3, 4).children() is None


def test_a_tree_without_shards_is_refused():
    with pytest.raises(UsageError):
        tree.plan(0, 2)
