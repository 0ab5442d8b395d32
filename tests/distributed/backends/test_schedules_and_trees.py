"""The pure plans: schedules and the shard tree, run on lists of integers."""

import extent
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin.distributed.wire import schedules, shard_tree
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


ALL_REDUCE = (schedules.doubling_all_reduce, schedules.direct_all_reduce, schedules.halving_all_reduce)


@given(RANKS)
def test_all_reduce_schedules_bring_every_rank_once_to_everybody(size):
    for schedule in ALL_REDUCE:
        for chunks in play([schedule(rank, size) for rank in range(size)], own(size)):
            assert all(sorted(chunk) == list(range(size)) for chunk in chunks)


@given(RANKS)
def test_direct_and_halving_sum_each_chunk_in_one_order_for_all_ranks(size):
    for schedule in ALL_REDUCE[1:]:
        states = play([schedule(rank, size) for rank in range(size)], own(size))
        assert all(state == states[0] for state in states)


@given(RANKS)
def test_reduce_scatter_completes_each_ranks_own_chunk_in_the_order_that_its_docstring_says(size):
    state = play([schedules.direct_reduce_scatter(rank, size) for rank in range(size)], own(size))
    assert all(state[rank][rank] == [(rank - k) % size for k in range(size)] for rank in range(size))


@given(RANKS, st.data())
def test_broadcast_and_reduce_meet_at_any_root(size, data):
    root = data.draw(st.integers(0, size - 1))
    for schedule in (schedules.binomial_broadcast, schedules.chain_broadcast):
        sent = play([schedule(rank, size, root) for rank in range(size)], own(size))
        assert all(chunk == [root] for chunks in sent for chunk in chunks)
    for schedule in (schedules.binomial_reduce, schedules.chain_reduce):
        summed = play([schedule(rank, size, root) for rank in range(size)], own(size))
        assert all(sorted(chunk) == list(range(size)) for chunk in summed[root])


def test_the_choice_of_a_schedule_goes_by_bytes_and_ranks_alone():
    def chosen(size, nbytes):
        steps = schedules.all_reduce(1, size, nbytes)
        return next(each.__name__ for each in ALL_REDUCE if each(1, size) == steps)

    assert chosen(2, 64 << 10) == chosen(4, 16 << 10) == "doubling_all_reduce"
    assert chosen(2, 25 << 20) == chosen(4, 1 << 20) == chosen(8, 1 << 20) == "direct_all_reduce"
    assert chosen(64, 1 << 20) == chosen(1024, 1 << 20) == "halving_all_reduce"
    assert schedules.broadcast(0, 4, 1000, 0) == schedules.binomial_broadcast(0, 4, 0)
    assert schedules.broadcast(0, 4, 25 << 20, 0) == schedules.chain_broadcast(0, 4, 0)
    assert schedules.reduce(0, 4, 25 << 20, 1) == schedules.chain_reduce(0, 4, 1)
    assert schedules.all_reduce(0, 1, 1000) == schedules.broadcast(0, 1, 1000, 0) == []


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
    plan = shard_tree.plan(shards, world_size)
    assert [s for rank in range(world_size) for s in plan.run(rank)] == list(range(shards))
    for rank in range(world_size):
        nodes = plan.subtrees(rank)
        assert [s for node in nodes for s in range(node.start, node.stop)] == list(plan.run(rank))
        assert len(nodes) <= 2 * max(1, (shards - 1).bit_length())


@settings(max_examples=extent.examples(60))
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 2**32))
def test_the_tree_gives_the_same_bits_for_every_world_size(shards, world_size, seed):
    values = np.random.default_rng(seed).standard_normal((shards, 5)).astype(np.float32)

    def total(node):
        children = node.children()
        return values[node.start] if children is None else total(children[0]) + total(children[1])

    plan = shard_tree.plan(shards, world_size)
    sums = {node: total(node) for rank in range(world_size) for node in plan.subtrees(rank)}
    for node, left, right in plan.joins:
        sums[node] = sums.pop(left) + sums.pop(right)
    assert list(sums) == [shard_tree.Subtree(0, shards)]
    assert (sums[shard_tree.Subtree(0, shards)] == total(shard_tree.Subtree(0, shards))).all()


def test_a_node_splits_at_the_largest_power_of_two_below_its_size():
    assert shard_tree.Subtree(0, 6).children() == (shard_tree.Subtree(0, 4), shard_tree.Subtree(4, 6))
    assert shard_tree.Subtree(4, 9).children() == (shard_tree.Subtree(4, 8), shard_tree.Subtree(8, 9))
    assert shard_tree.Subtree(3, 4).children() is None


def test_a_tree_without_shards_is_refused():
    with pytest.raises(UsageError):
        shard_tree.plan(0, 2)
