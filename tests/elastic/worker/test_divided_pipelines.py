"""Pipelines in worlds that change: whoever dies at whatever moment, the bits are those of the model that is not cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generations import At, Change, play

import resilin
from resilin import checkpoint, nn, optim
from resilin import distributed as dist
from resilin.amp import GradScaler
from resilin.core import rng
from resilin.core.machine import memory
from resilin.data import ElasticSampler
from resilin.distributed.pipelining import ElasticPipeline, SplitPoint, pipeline
from resilin.elastic.worker.state import State
from resilin.errors import StateError, UsageError
from resilin.testing.ranks import run_ranks

STEPS, MICROBATCHES = 4, 4
KINDS = {
    "AdamW": (optim.AdamW, {"lr": 0.05}),
    "SGD": (optim.SGD, {"lr": 0.05}),  # has no state at all
    "Adafactor": (optim.Adafactor, {"lr": 0.05}),
}


def net_of(seed: int) -> nn.Module:
    resilin.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 16)), nn.Linear(16, 3)
    )


def loss_of(output: Any, target: Any) -> Any:
    return (output - target).square().mean()


def make(seed: int, kind: str = "AdamW", cut: bool = True, stages: int = 3, checkpoint: str = "never") -> State:
    net = net_of(seed)
    paths = {2: ("2",), 3: ("1", "3"), 4: ("1", "2", "3")}[stages]
    model: Any = net
    if cut:
        pipe = pipeline(net, (), split_spec=dict.fromkeys(paths, SplitPoint.BEGINNING))
        model = ElasticPipeline(pipe, MICROBATCHES, loss_of, checkpoint=checkpoint)
    cls, options = KINDS[kind]
    optimizer = cls(model.parameters(), **options)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    return State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=ElasticSampler(8, 8), seen=0)


def batch(step: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(step)
    return tuple(resilin.from_numpy(draw.standard_normal((8, size)).astype(np.float32)) for size in (6, 3))


def backward_uncut(model: nn.Module, x: Any, y: Any, step: int) -> None:
    for number, (xs, ys) in enumerate(zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True)):
        with rng.keyed(step, number):
            loss = loss_of(model(xs), ys)
        loss.backward()
    for param in model.parameters():
        param.grad /= MICROBATCHES


def train(state: State, at: At, until: int = STEPS) -> None:
    cut = isinstance(state.model, ElasticPipeline)
    while state.step < until:
        for plan in state.sampler.steps(0, 1):
            state.optimizer.zero_grad()
            x, y = batch(state.step)
            at("forward")
            if cut:
                state.model.step(x, target=y)
            else:
                backward_uncut(state.model, x, y, state.step)
            at("backward")
            state.optimizer.step()
            at("applied")
            state.scheduler.step()
            state.seen += 1
            state.commit(plan)
            at("committed")
            if state.step == until:
                return


@cache
def undisturbed(kind: str = "AdamW") -> str:
    """One worker with the module itself."""
    (one,) = play(partial(make, kind=kind, cut=False), train, 1)
    return one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_in_every_world_the_bits_are_those_of_the_module_that_is_not_cut(size: int, stages: int, kind: str) -> None:
    assert set(play(partial(make, kind=kind, stages=stages), train, size)) == {undisturbed(kind)}


@pytest.mark.parametrize("checkpoint", ["except_last", "always"])
def test_in_every_mode_of_checkpointing_the_bits_are_the_same_after_a_loss(checkpoint: str) -> None:
    changes = [Change(1, "backward", (1,), 3), Change(2, "committed", (0,), 2)]
    assert set(play(partial(make, checkpoint=checkpoint), train, 3, changes)) == {undisturbed()}


@pytest.mark.parametrize("site", ["forward", "backward", "applied", "committed"])
def test_whoever_is_lost_of_whatever_world_and_whatever_comes_after(site: str, turns: Callable[..., int]) -> None:
    for size in (2, 3, 4):
        for lost, after in list(product(range(size), (size - 1, size, size + 2)))[:: turns(short=6, full=1)]:
            change = Change(1, site, (lost,), after)
            assert set(play(make, train, size, [change])) == {undisturbed()}, (size, change)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_optimizer_outlives_losses(kind: str) -> None:
    changes = [Change(1, "backward", (2,), 3), Change(2, "applied", (0,), 2)]
    assert set(play(partial(make, kind=kind), train, 3, changes)) == {undisturbed(kind)}


def test_worlds_grow_and_shrink_at_commits_and_lose_ranks_between() -> None:
    changes = [
        Change(1, "committed", (), 4), Change(2, "applied", (1,), 3), Change(3, "committed", (), 2),
    ]  # fmt: skip
    assert set(play(make, train, 1, changes)) == {undisturbed()}


def test_a_death_at_every_moment_of_a_step_and_of_a_recovery(turns: Callable[..., int]) -> None:
    for moment in count(0, turns(short=23, full=1)):
        change = Change(1, f"moment {moment}", (1,), 3)
        ended = play(make, train, 3, [change])
        assert set(ended) == {undisturbed()}, moment
        if moment > turns(short=120, full=400):
            return


def test_a_rank_and_its_buddy_lost_at_once_is_said() -> None:
    with pytest.raises(StateError, match=r"is lost.*both copies of what rank 0 \(buddy 1\) held"):
        play(make, train, 3, [Change(1, "backward", (0, 1), 2)])


def test_whole_and_sliced_state_is_that_of_the_module_that_was_cut() -> None:
    def told(state: State, at: At) -> None:
        train(state, at, until=2)
        whole = state.model.state_dict()
        assert list(whole) == list(net_of(0).state_dict())
        optimizer = state.model.optimizer_state(state.optimizer)
        saved = optimizer.state_dict()
        assert set(saved["state"]) == set(range(len(list(state.model.parameters()))))
        sliced = state.model.sharded_state_dict()
        here = {name for name, part in sliced.items() if part.tensor.numel()}
        assert dist.get_world_size() == 1 or here != set(whole)
        for name in here:
            assert np.array_equal(sliced[name].tensor.numpy(), whole[name].reshape(-1).numpy())
        state.model.load_state_dict({name: value * 0 + 1 for name, value in whole.items()})
        optimizer.load_state_dict(saved)
        assert all((value == 1).all() for value in state.model.state_dict().values())
        again = optimizer.state_dict()["state"]
        for number, entry in saved["state"].items():
            for name, value in entry.items():
                assert np.array_equal(np.asarray(value), np.asarray(again[number][name]))

    play(make, told, 3)


def test_states_that_do_not_fit_and_schedules_for_other_ranks_are_refused() -> None:
    state = make(0)
    whole = net_of(0).state_dict()
    with pytest.raises(UsageError, match=r"missing \['0.weight'\]"):
        state.model.load_state_dict({name: value for name, value in whole.items() if name != "0.weight"})
    with pytest.raises(UsageError, match=r"0.weight: \[2\] in the state, \[16, 6\] here"):
        state.model.load_state_dict({**whole, "0.weight": resilin.ones(2)})
    with pytest.raises(UsageError, match="3 stages cannot be 2 on each rank"):
        ElasticPipeline(state.model.pipe, 4, loss_of, "Interleaved1F1B")
    with pytest.raises(UsageError, match="1F1B has 1 stage on each rank, got 3"):
        ElasticPipeline(state.model.pipe, 4, loss_of, stages_per_rank=3)
    with pytest.raises(UsageError, match=r"Number of microbatches \(2\) must be greater"):
        ElasticPipeline(state.model.pipe, 2, loss_of)
    with pytest.raises(UsageError, match='redo: expected "unfinished" or "step", got \'all\''):
        ElasticPipeline(state.model.pipe, 4, loss_of, redo="all")
    with pytest.raises(UsageError, match="LBFGS"):
        state.model.optimizer_state(optim.LBFGS(state.model.parameters()))


def alone(size: int, stages: int, copies: bool = False) -> tuple[ElasticPipeline, optim.Optimizer]:
    """A pipeline outside of elastic.run, whose ranks begin with other values."""
    paths = {2: ("2",), 3: ("1", "3"), 4: ("1", "2", "3")}[stages]
    pipe = pipeline(net_of(dist.get_rank()), (), split_spec=dict.fromkeys(paths, SplitPoint.BEGINNING))
    same = (lambda module, group: module) if copies else None
    model = ElasticPipeline(pipe, MICROBATCHES, loss_of, data_parallel=same)
    return model, optim.AdamW(model.parameters(), lr=0.05)


def trained(model: ElasticPipeline, optimizer: optim.Optimizer, steps: range) -> dict[str, bytes]:
    for step in steps:
        x, y = batch(step)
        optimizer.zero_grad()
        model.step(x, target=y)
        optimizer.step()
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def test_checkpoints_load_at_any_number_of_stages_and_ranks(tmp_path: Path) -> None:
    def save(rank: int) -> dict[str, bytes]:
        model, optimizer = alone(2, 2)
        trained(model, optimizer, range(2))
        checkpoint.save(str(tmp_path), {"model": model, "optimizer": model.optimizer_state(optimizer)})
        return trained(model, optimizer, range(2, 4))

    def load(rank: int, stages: int, before: int) -> dict[str, bytes]:
        model, optimizer = alone(dist.get_world_size(), stages)
        trained(model, optimizer, range(before))
        checkpoint.load(str(tmp_path), {"model": model, "optimizer": model.optimizer_state(optimizer)})
        model.steps = 2
        return trained(model, optimizer, range(2, 4))

    expected = run_ranks(2, save).results()[0]
    for size, stages, before in [(1, 2, 0), (2, 3, 0), (2, 3, 1), (4, 4, 0), (3, 2, 1)]:
        assert run_ranks(size, load, stages, before).results() == [expected] * size


def test_a_job_that_was_stopped_wholly_goes_on_from_the_checkpoint_of_its_state(tmp_path: Path) -> None:
    def save(rank: int) -> dict[str, bytes]:
        model, optimizer = alone(2, 2)
        trained(model, optimizer, range(2))
        checkpoint.save(str(tmp_path), State(model=model, optimizer=optimizer))
        return trained(model, optimizer, range(2, 4))

    def load(rank: int) -> dict[str, bytes]:
        model, optimizer = alone(3, 3)
        checkpoint.load(str(tmp_path), State(model=model, optimizer=optimizer))
        assert model.steps == 2
        return trained(model, optimizer, range(2, 4))

    expected = run_ranks(2, save).results()[0]
    assert run_ranks(3, load).results() == [expected] * 3


def test_every_replica_of_a_stage_loads_a_checkpoint(tmp_path: Path) -> None:
    def run(rank: int) -> bool:
        model, optimizer = alone(4, 2, copies=True)
        x, y = batch(0)
        model.step(x[:4], target=y[:4])
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        checkpoint.save(str(tmp_path), {"model": model, "optimizer": model.optimizer_state(optimizer)})
        model.load_state_dict({name: value * 0 for name, value in saved.items()})
        checkpoint.load(str(tmp_path), {"model": model, "optimizer": model.optimizer_state(optimizer)})
        here = [name for name, part in model.sharded_state_dict().items() if part.tensor.numel()]
        loaded = model.sharded_state_dict()
        return bool(here) and all(resilin.equal(loaded[name].tensor, saved[name].reshape(-1)) for name in here)

    resilin.manual_seed(0)
    assert run_ranks(4, run).results() == [True] * 4


@pytest.mark.parametrize("size", [1, 2, 3])
def test_clipping_a_pipeline_has_the_bits_of_clipping_the_module(size: int) -> None:
    def norms(rank: int) -> tuple[bytes | None, dict[str, bytes]]:
        resilin.manual_seed(0)
        net = net_of(0)
        pipe = pipeline(net, (), split_spec={"2": SplitPoint.BEGINNING})
        model = ElasticPipeline(pipe, MICROBATCHES, loss_of)
        x, y = batch(0)
        model.step(x, target=y)
        with pytest.raises(UsageError, match=r"clip_grad_norm_: parameter 0 is of an ElasticPipeline.*pipeline"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with pytest.raises(UsageError, match=r"GradScaler: parameter 0 is of an ElasticPipeline.*ShardedGradScaler"):
            GradScaler("cpu").unscale_(optim.SGD(model.parameters(), lr=0.1))
        total = model.clip_grad_norm_(0.1)
        grads = {name: p.grad.numpy().tobytes() for name, p in model.named_parameters() if p.grad is not None}
        return None if total is None else total.numpy().tobytes(), grads

    net = net_of(0)
    backward_uncut(net, *batch(0), 0)
    total = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
    found = run_ranks(size, norms).results()
    assert [one for one, _ in found[:2]] == [total.numpy().tobytes()] * min(size, 2)
    assert size < 3 or found[2] == (None, {})
    grads = {name: value for _, each in found for name, value in each.items()}
    assert grads == {name: param.grad.numpy().tobytes() for name, param in net.named_parameters()}


def test_memory_of_stages_elsewhere_goes_back_to_the_system() -> None:
    width = 2048  # 16 MiB a layer
    nets = [nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(8))) for _ in range(2)]

    def run(rank: int) -> None:
        pipe = pipeline(nets[rank], (), split_spec={"4": SplitPoint.BEGINNING})
        ElasticPipeline(pipe, 2).step(resilin.zeros(2, width))
        dist.barrier()

    before = memory.stats()["reserved"]
    run_ranks(2, run).results()
    assert memory.stats()["reserved"] <= before - (64 << 20)
