"""State that ZeRO divides: what four ranks save in one stage any number loads in any other, or undivided."""

import extent
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trained_states import build, digest, train

from resilin import checkpoint
from resilin.testing.ranks import run_ranks
from resilin.zero import OptimizerState

PLAIN, STAGES, WORLDS = 0, (0, 1, 2, 3), (1, 2, 3, 5)


def whole(stage, net, optimizer, rank):
    """The hash of all of it on rank 0, in the form of the undivided state."""
    if stage == 1:
        optimizer.consolidate_state_dict(to=0)
        state = optimizer.state_dict() if rank == 0 else None
    else:
        state = OptimizerState(net, optimizer).state_dict() if stage >= 2 else optimizer.state_dict()
    return digest({"net": net.state_dict(), "optimizer": state})


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@settings(max_examples=extent.examples(1), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.tuples(st.integers(1, 30), st.integers(1, 9)))
def test_what_four_ranks_save_loads_in_every_stage_and_world_with_equal_hashes(tmp_path, stage, sizes):
    path = tmp_path / "-".join(map(str, sizes))

    def save(rank):
        net, optimizer, state = build(stage, sizes)
        train(net, optimizer, 2)
        checkpoint.save(path, state, step=2)
        return whole(stage, net, optimizer, rank)

    expected = run_ranks(4, save).results()[0]
    assert digest(checkpoint.load(path)) == expected
    for world_size in WORLDS:
        for other in STAGES:
            steps = (stage + other + world_size) % 2  # into an optimizer without state, or with another one

            def load(rank, other=other, steps=steps):
                net, optimizer, state = build(other, sizes, seed=7)
                train(net, optimizer, steps)
                checkpoint.load(path, state)
                return whole(other, net, optimizer, rank)

            assert run_ranks(world_size, load).results()[0] == expected, (world_size, other, steps)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_training_goes_on_as_if_nothing_had_been_saved(tmp_path, stage):
    def straight(rank):
        net, optimizer, state = build(stage, (8, 4))
        train(net, optimizer, 2)
        checkpoint.save_async(tmp_path, state).wait()
        train(net, optimizer, 2)
        return whole(stage, net, optimizer, rank)

    def resumed(rank):
        net, optimizer, state = build(stage, (8, 4), seed=3)
        checkpoint.load(tmp_path, state)
        train(net, optimizer, 2)
        return whole(stage, net, optimizer, rank)

    assert run_ranks(2, straight).results()[0] == run_ranks(4, resumed).results()[0]  # exact means


def test_each_rank_writes_what_it_holds(tmp_path):
    def save(rank):
        net, optimizer, state = build(3, (30, 9))
        train(net, optimizer, 1)
        checkpoint.save(tmp_path, state)

    run_ranks(3, save).results()
    sizes = [file.stat().st_size for file in sorted(tmp_path.glob("data-*"))]
    assert len(sizes) == 3
    assert max(sizes) < 2.5 * min(sizes)
    assert checkpoint.verify(tmp_path) == []
