"""Stages 2 and 3 in fixed shards: the bits of DistributedDataParallel in fixed shards, in every world."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import extent
import numpy as np
import pytest
from sharded_nets import State, arrays, differences

import resilin
from resilin import nn, optim
from resilin.core.autograd.checkpoint import checkpoint
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import ShardSums
from resilin.nn import functional as F
from resilin.testing.ranks import run_ranks
from resilin.zero import MixedPrecisionPolicy, ShardedModule, shard

SAMPLES, WIDTH, CLASSES, STEPS = 61, 6, 3, 10


class Cut(NamedTuple):
    """How steps are cut."""

    shards: int
    batch: int


EVEN, ODD, RAGGED = Cut(8, 24), Cut(6, 16), Cut(7, 26)  # of RAGGED the last step has 9 samples, for 4 of its shards


class Net(nn.Module):
    """What could depend on who computes it, and a list of blocks: batch norm, dropout, a parameter that comes late."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 16)
        self.norm = nn.BatchNorm1d(16)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Dropout(0.3)) for _ in range(2)])
        self.scale = nn.Parameter(Tensor._wrap(np.full(16, 0.5, np.float32)))
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        for block in self.blocks:
            x = x + block(x)
        return self.last(x * self.scale)


class Recomputed(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.last(x * self.scale)


class PartlyUsed(Net):
    """Which block is used depends on the samples: some shards leave one out, and nobody uses the last."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks.append(nn.Linear(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        which = int(float(x.sum().item()) > 0)
        x = self.norm(self.first(x)).relu()
        return self.last(self.blocks[which](x) * self.scale)


@cache
def data() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((SAMPLES, WIDTH)).astype(np.float32)
    return Tensor._wrap(x), Tensor._wrap(rng.integers(0, CLASSES, SAMPLES))


def compute(model: Any, plan: Any) -> None:
    x, y = data()
    for part in plan.shards:
        with model.shard(part):
            if len(part):
                F.cross_entropy(model(x[part.indices]), y[part.indices]).backward()


def train(model: Any, optimizer: optim.Optimizer, sampler: ElasticSampler, rank: int, world: int) -> None:
    while sampler.step < STEPS:
        plan = next(sampler.steps(rank, world))
        optimizer.zero_grad()
        compute(model, plan)
        optimizer.step()
        sampler.advance(plan)


def trained(
    make: Callable[[], nn.Module],
    world: int,
    stage: int | None,
    cut: Cut,
    loop: Callable[..., Any] = train,
    **more: Any,
) -> list[State]:
    """Every rank's whole state after training; stage None: DistributedDataParallel. What the loop returns is in it."""
    transport = more.pop("transport", "shm")
    resilin.manual_seed(7)
    net = make()
    resilin.manual_seed(5)

    def run(rank: int) -> State:
        own = copy.deepcopy(net)
        if stage is None:
            model: Any = DDP(own, shards=cut.shards, **more)
        else:
            model = shard(own, stage, shards=cut.shards, **more)
        optimizer = optim.AdamW(model.parameters(), lr=0.02)
        sampler = ElasticSampler(SAMPLES, cut.batch, cut.shards, seed=1, in_rounds=stage is not None)
        said = loop(model, optimizer, sampler, rank, world)
        state = arrays((model if isinstance(model, ShardedModule) else own).state_dict())
        return state if said is None else {**state, "said": np.asarray(said)}

    return run_ranks(world, run, transport=transport).results()


@cache
def undivided(make: Callable[[], nn.Module], cut: Cut, loop: Callable[..., Any] = train, **more: Any) -> State:
    """The state of one worker that trains the module in DistributedDataParallel."""
    return trained(make, 1, None, cut, loop, **more)[0]


def check(
    make: Callable[[], nn.Module], world: int, stage: int, cut: Cut, *loop: Callable[..., Any], **more: Any
) -> None:
    """All ranks end with the bits of one that divides nothing."""
    given = {name: value for name, value in more.items() if name == "find_unused_parameters"}
    got = trained(make, world, stage, cut, *loop, **more)
    assert not differences([undivided(make, cut, *loop, **given)] * world, got)


@pytest.mark.parametrize(
    ("cut", "world", "stage"),
    extent.pairwise([EVEN, ODD, RAGGED], [1, 2, 3, 4], [2, 3]),
    ids=str,
)
def test_training_has_the_bits_of_ddp_in_fixed_shards_in_every_world(cut: Cut, world: int, stage: int) -> None:
    check(Net, world, stage, cut)


@pytest.mark.parametrize("stage", [2, 3])
def test_as_many_ranks_as_shards_have_one_each(stage: int) -> None:
    check(Net, 8, stage, EVEN)


@pytest.mark.parametrize("transport", ["unix", "hosts"])
@pytest.mark.parametrize("stage", [2, 3])
def test_sockets_and_hosts_give_the_same_bits(transport: str, stage: int) -> None:
    check(Net, 4, stage, ODD, transport=transport)


@pytest.mark.parametrize(
    "options",
    [{"stage": 2, "bucket_cap_mb": 1e-4}, {"stage": 3, "units": [nn.Linear]}, {"stage": 3, "units": ()}],
    ids=["small buckets", "small units", "one unit"],
)
def test_units_of_any_size_give_the_same_bits(options: dict[str, Any]) -> None:
    check(Net, 3, cut=ODD, **options)


@pytest.mark.parametrize("stage", [2, 3])
def test_checkpointed_layers_draw_the_same_numbers_again(stage: int) -> None:
    check(Recomputed, 3, stage, ODD)


@pytest.mark.parametrize("options", [{"stage": 2}, {"stage": 3, "units": ()}], ids=["stage 2", "stage 3"])
def test_parameters_that_a_shard_does_not_use_count_as_zero(options: dict[str, Any]) -> None:
    for world in (1, 3):  # stage 3: ranks use the same units, if not the same of their parameters
        check(PartlyUsed, world, cut=ODD, find_unused_parameters=True, **options)


def test_pieces_on_the_cpu_are_summed_there() -> None:
    check(Net, 2, 3, ODD, cpu_offload=True)


def accumulating(model: Any, optimizer: optim.Optimizer, sampler: ElasticSampler, rank: int, world: int) -> None:
    """Two steps of the sampler in one of the optimizer, whose gradients are zeros before."""
    while sampler.step < STEPS:
        optimizer.zero_grad(set_to_none=False)
        for _ in range(2):
            plan = next(sampler.steps(rank, world))
            compute(model, plan)
            sampler.advance(plan)
        optimizer.step()


@pytest.mark.parametrize("stage", [2, 3])
def test_steps_accumulate_until_gradients_are_zeroed(stage: int) -> None:
    for world in (1, 3):
        check(Net, world, stage, ODD, accumulating)


def freezing(model: Any, optimizer: optim.Optimizer, sampler: ElasticSampler, rank: int, world: int) -> None:
    """Half of the training without the first layer."""
    params = dict(model.named_parameters())
    for rounds in range(2):
        for name, param in params.items():
            if name.endswith(("first.weight", "first.bias")):
                param.requires_grad_(rounds == 0)
        for _ in range(STEPS // 2):
            plan = next(sampler.steps(rank, world))
            optimizer.zero_grad()
            compute(model, plan)
            optimizer.step()
            sampler.advance(plan)


@pytest.mark.parametrize("stage", [2, 3])
def test_freezing_between_steps_gives_the_same_bits_in_every_world(stage: int) -> None:
    one = trained(Net, 1, stage, ODD, freezing)
    for world in (2, 3):
        assert not differences(one * world, trained(Net, world, stage, ODD, freezing))


def clipping(model: Any, optimizer: optim.Optimizer, sampler: ElasticSampler, rank: int, world: int) -> list[float]:
    norms = []
    while sampler.step < STEPS:
        plan = next(sampler.steps(rank, world))
        optimizer.zero_grad()
        compute(model, plan)
        whole = isinstance(model, DDP)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3) if whole else model.clip_grad_norm_(0.3)
        norms.append(norm.item())
        optimizer.step()
        sampler.advance(plan)
    return norms


@pytest.mark.parametrize(
    ("stage", "cut"), extent.short([(2, EVEN), (2, ODD), (3, EVEN), (3, ODD)], of=[(2, ODD), (3, EVEN)]), ids=str
)
def test_gradients_are_clipped_by_a_norm_that_does_not_depend_on_the_world(stage: int, cut: Cut) -> None:
    one = trained(Net, 1, stage, cut, clipping)
    for world in (2, 3, 4):
        assert not differences(one * world, trained(Net, world, stage, cut, clipping))
    np.testing.assert_allclose(one[0]["said"][:3], undivided(Net, cut, clipping)["said"][:3], rtol=1e-6)


@pytest.mark.parametrize("order", [1.0, 3.0, float("inf")])
def test_norms_of_other_orders_do_not_depend_on_the_world_either(order: float) -> None:
    def norm(model: Any, _: Any, sampler: ElasticSampler, rank: int, world: int) -> float:
        compute(model, next(sampler.steps(rank, world)))
        found: float = model.clip_grad_norm_(1e9, order).item()
        whole = resilin.cat([resilin.from_numpy(_grad(piece)) for piece in model.parameters()])
        if world == 1:
            assert found == pytest.approx(float(np.linalg.norm(whole.numpy().astype(np.float64), order)), rel=1e-6)
        return found

    one = trained(Net, 1, 3, ODD, norm)
    for world in (2, 4):
        assert not differences(one * world, trained(Net, world, 3, ODD, norm))


@pytest.mark.parametrize("order", [2.0, 3.0, float("inf")])
def test_the_norm_of_many_elements_is_one_number_in_every_world_without_shards_too(order: float) -> None:
    shapes = [(97, 211), (211,), (3, 5)]
    values = [np.random.default_rng(n).standard_normal(shape).astype(np.float32) for n, shape in enumerate(shapes)]
    whole = np.concatenate([value.reshape(-1) for value in values]).astype(np.float64)

    def norm(rank: int) -> float:
        net = nn.Module()
        for number, value in enumerate(values):
            net.register_parameter(str(number), nn.Parameter(Tensor._wrap(value.copy())))
        model = shard(net, 3)
        for piece, value in zip(model.parameters(), values, strict=True):
            piece.grad = Tensor._wrap(value.reshape(-1)[piece.start : piece.start + piece.numel()].copy())
        found: float = model.clip_grad_norm_(1e9, order).item()
        return found

    found = {result for world in (1, 2, 3, 5, 8) for result in run_ranks(world, norm).results()}
    assert len(found) == 1
    assert found.pop() == pytest.approx(float(np.linalg.norm(whole, order)), rel=1e-6)


def _grad(piece: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = piece.grad.numpy()
    return found


@pytest.mark.parametrize("reduce_dtype", [resilin.float32, None], ids=["summed in float32", "summed as computed"])
def test_mixed_precision_does_not_depend_on_the_world(reduce_dtype: Any) -> None:
    policy = MixedPrecisionPolicy(param_dtype=resilin.bfloat16, reduce_dtype=reduce_dtype, output_dtype=resilin.float32)

    def plain() -> nn.Module:
        resilin.manual_seed(7)
        return nn.Sequential(nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, CLASSES))

    one = trained(plain, 1, 3, ODD, mixed_precision=policy)
    for world, stage in ((2, 3), (3, 3), (3, 2)):
        assert not differences(one * world, trained(plain, world, stage, ODD, mixed_precision=policy))


def evaluating(model: Any, optimizer: optim.Optimizer, sampler: ElasticSampler, rank: int, world: int) -> list[float]:
    """Sums of metrics over shards of training, and of a pass without gradients in the middle of a step."""
    x, y = data()
    sums = ShardSums("loss", "seen", shards=sampler.shards)
    found = []
    for _ in range(4):
        plan = next(sampler.steps(rank, world))
        optimizer.zero_grad()
        for part in plan.shards:
            with model.shard(part):
                if len(part):
                    loss = F.cross_entropy(model(x[part.indices]), y[part.indices])
                    loss.backward()
                    sums.add(part, loss=loss.detach() * len(part), seen=len(part))
        totals = sums.reduce()
        assert totals["seen"] == plan.size
        found.append(totals["loss"])
        optimizer.step()
        sampler.advance(plan)
    again = ElasticSampler(SAMPLES, SAMPLES, sampler.shards, shuffle=False, in_rounds=sampler.in_rounds)
    with no_grad():
        model.eval()
        for part in next(again.steps(rank, world)).shards:
            sums.add(part, loss=F.cross_entropy(model(x[part.indices]), y[part.indices], reduction="sum"))
        model.train()
    return [*found, sums.reduce()["loss"]]


@pytest.mark.parametrize("stage", [2, 3])
def test_metrics_are_summed_over_the_shards_that_count(stage: int) -> None:
    for world in (1, 3, 4):
        check(Net, world, stage, RAGGED, evaluating)
