"""Ranks that die while units are gathered and gradients reduced: the others hear of it at once and can go on."""

from __future__ import annotations

import copy
import signal
from pathlib import Path

import extent
import numpy as np
import pytest
from sharded_nets import Language, adamw, arrays, differences, train

from resilin import distributed as dist
from resilin._base.clock import SYSTEM
from resilin.errors import DistError, PeerLost
from resilin.testing.faults import FaultPlan
from resilin.testing.patience import PATIENCE_S
from resilin.testing.ranks import run_ranks, start_ranks
from resilin.zero import OptimizerState, ShardedModule, shard

CALLS = [("all_gather", 3), ("all_gather", 9), ("reduce_scatter", 0), ("reduce_scatter", 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "phase", "transport"), extent.pairwise(CALLS, ["start", "agreed", "end"], ["shm", "unix"])
)
def test_survivors_lose_the_peer_hold_nothing_half_done_and_train_on_in_a_new_group(
    place: tuple[str, int], phase: str, transport: str
) -> None:
    at, call = place
    net, survivors = Language(2), {}

    def before(rank: int) -> None:
        model = shard(copy.deepcopy(net), 3)
        optimizer = adamw(model.parameters())
        survivors[rank] = model, optimizer
        train(model, optimizer, rank, range(3))

    faults = FaultPlan().kill(rank=2, at=at, call=call, phase=phase)
    start = SYSTEM.monotonic()
    outcome = run_ranks(3, before, faults=faults, abort=False, transport=transport, timeout_s=2 * PATIENCE_S)
    assert faults.all_fired()
    assert SYSTEM.monotonic() - start < PATIENCE_S
    told = [outcome.errors[rank] for rank in (0, 1)]  # the third dies in a thread, and its main one hears of it somehow
    assert all(isinstance(error, PeerLost) and error.ranks == {2} for error in told)

    def after(rank: int) -> dict[str, np.ndarray]:
        model, optimizer = survivors[rank]
        assert isinstance(model, ShardedModule)
        assert not any(unit.here or unit.coming is not None or unit.gradients for unit in model.units)
        model.reshard(dist.default_group())
        optimizer.state.clear()
        model.load_state_dict(net.state_dict())
        train(model, optimizer, rank, range(3))
        return arrays(model.state_dict())

    def fresh(rank: int) -> dict[str, np.ndarray]:
        model = shard(copy.deepcopy(net), 3)
        train(model, adamw(model.parameters()), rank, range(3))
        return arrays(model.state_dict())

    assert not differences(run_ranks(2, fresh).results(), run_ranks(2, after).results())


@pytest.mark.parametrize("stage", [2, 3])
def test_a_group_of_the_same_size_goes_on_with_the_values_that_are_there(stage: int) -> None:
    net, models = Language(1), {}

    def first(rank: int) -> dict[str, np.ndarray]:
        model = shard(copy.deepcopy(net), stage)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank, range(1))
        models[rank] = model, optimizer
        return arrays(model.state_dict())

    def second(rank: int) -> dict[str, np.ndarray]:
        model, optimizer = models[rank]
        model.reshard(dist.default_group())
        before = arrays(model.state_dict())
        train(model, optimizer, rank, range(1, 2))
        return before

    assert not differences(run_ranks(2, first).results(), run_ranks(2, second).results())


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("world", [1, 3])
def test_pieces_are_cut_anew_for_another_number_of_ranks_and_must_be_loaded(stage: int, world: int) -> None:
    net, models, whole = Language(1), {}, []

    def first(rank: int) -> None:
        model = shard(copy.deepcopy(net), stage)
        optimizer = adamw(model.parameters())
        train(model, optimizer, rank, range(2))
        models[rank] = model, optimizer
        state = model.state_dict(), OptimizerState(model, optimizer).state_dict()
        if rank == 0:
            whole.extend(state)

    run_ranks(2, first).results()
    last = Language(1)  # of a rank that comes new

    def second(rank: int) -> dict[str, np.ndarray]:
        if rank < 2:
            model, optimizer = models[rank]
            pieces = list(model.parameters())
            model.reshard(dist.default_group())
            assert all(a is b for a, b in zip(pieces, model.parameters(), strict=True))
            assert all(np.isnan(piece.numpy(force=True)).all() for piece in pieces)
        else:
            model = shard(last, stage, init_sync=False)
            optimizer = adamw(model.parameters())
        model.load_state_dict(whole[0])
        OptimizerState(model, optimizer).load_state_dict(whole[1])
        seen = arrays(model.state_dict())
        train(model, optimizer, rank, range(1))
        return seen

    for seen in run_ranks(world, second).results():
        assert not differences([seen], [arrays(whole[0])])


_WORKER = """
import sys
from resilin import dist, nn, optim
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import join_from_environment
from resilin.core.tensor import Tensor
from resilin.errors import PeerLost
from resilin.zero import shard
import numpy as np, signal

group = join_from_environment(200.0)
model = shard(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 8)), {stage})
optimizer = optim.AdamW(model.parameters())
x = Tensor._wrap(np.ones((4, 64), np.float32))
plan = FaultPlan().signal(1, signal.SIGKILL, at="{at}", call={call}, phase="agreed")
print("ready", flush=True)
try:
    with plan.watching(group.rank()):
        for _ in range(5):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
except PeerLost as error:
    here = sum(unit.here for unit in model.units)
    print("lost", sorted(error.ranks), here, flush=True)
    sys.exit(3)
"""


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("stage", "at", "call"),
    extent.short([(3, "all_gather", 5), (3, "reduce_scatter", 4), (2, "reduce_scatter", 1)], of=[(3, "all_gather", 5)]),
)
def test_a_killed_process_is_named_by_the_others_at_once(stage: int, at: str, call: int, tmp_path: Path) -> None:
    source = _WORKER.format(stage=stage, at=at, call=call)
    ranks = start_ranks(3, source, str(tmp_path))
    try:
        assert all(rank.read_line() == "ready" for rank in ranks)
        start = SYSTEM.monotonic()
        code, _, _ = ranks[1].finish()
        assert code == -signal.SIGKILL
        for rank in (ranks[0], ranks[2]):
            code, out, err = rank.finish()
            assert (code, out.strip()) == (3, "lost [1] 0"), err
        assert SYSTEM.monotonic() - start < PATIENCE_S  # of the group's 200
    finally:
        for rank in ranks:
            with rank:
                pass


def test_a_failing_group_at_the_start_leaves_the_module_as_it_was() -> None:
    nets = [Language(1) for _ in range(3)]

    def run(rank: int) -> None:
        shard(nets[rank], 3)

    faults = FaultPlan().kill(rank=1, at="broadcast", call=2)
    outcome = run_ranks(3, run, faults=faults, abort=False)
    assert faults.all_fired()
    assert all(isinstance(error, DistError) for error in outcome.errors.values())
    for rank in outcome.errors:
        nets[rank].state_dict()
        assert nets[rank].norm.weight.numpy(force=True).tolist() == [1.0] * 8
    assert set(outcome.errors) == {0, 2}
