"""`zero.shard`: training has the bits of DistributedDataParallel, whatever the stage and the shape of the model."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
from sharded_nets import (
    BATCH,
    VOCAB,
    WIDTH,
    Language,
    State,
    adamw,
    arrays,
    differences,
    loss_of,
    tensor,
    tokens,
    train,
    trained,
)

import resilin
from resilin import nn, optim
from resilin.core.autograd.checkpoint import checkpoint
from resilin.core.autograd.function import Function
from resilin.core.autograd.grad import grad
from resilin.core.autograd.grad_mode import inference_mode, no_grad
from resilin.core.tensor import Tensor
from resilin.optim import lr_scheduler
from resilin.testing.ranks import run_ranks
from resilin.zero import ShardedModule, shard


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("stage", [2, 3])
def test_training_has_the_bits_of_distributed_data_parallel(world: int, stage: int) -> None:
    net = Language()
    assert not differences(trained(net, world, None), trained(net, world, stage))


@pytest.mark.parametrize("transport", ["unix", "hosts"])
@pytest.mark.parametrize("stage", [2, 3])
def test_it_has_these_bits_also_on_two_ranks_over_sockets_and_on_two_hosts(transport: str, stage: int) -> None:
    world, net = 4 if transport == "hosts" else 2, Language(1)
    expected = trained(net, world, None, transport=transport)
    assert not differences(expected, trained(net, world, stage, transport=transport))


@pytest.mark.parametrize("stage", [2, 3])
def test_more_ranks_over_sockets_agree_within_the_rounding_of_another_order_of_sums(stage: int) -> None:
    net, world = Language(1), 4

    def own(rank: int) -> State:
        model = copy.deepcopy(net)
        loss_of(model, tokens(0, rank)).backward()
        return {name: np.abs(param.grad.numpy()) for name, param in model.named_parameters()}

    def descended(params: Any) -> optim.Optimizer:
        return optim.SGD(params, lr=1.0)

    expected = trained(net, world, None, steps=1, transport="unix", optimizer=descended)
    got = trained(net, world, stage, steps=1, transport="unix", optimizer=descended)
    terms = [own(rank) for rank in range(world)]
    for name, param in net.named_parameters():
        most = (world - 1) * 2.0**-23 * np.mean([term[name] for term in terms], axis=0)
        step = 2.0**-24 * (np.abs(param.numpy(force=True)) + np.abs(expected[0][name]) + 1)  # rounding of the update
        assert np.all(np.abs(expected[0][name] - got[0][name]) <= most + step), name
    assert not differences(got[:1] * (world - 1), got[1:])  # but all ranks have the same


@pytest.mark.parametrize("stage", [2, 3])
def test_buckets_and_units_of_any_size_give_the_same_bits(stage: int) -> None:
    net = Language(2)
    expected = trained(net, 2, None)
    choices: list[dict[str, Any]] = [{"bucket_cap_mb": 1e-4}, {"bucket_cap_mb": 1e-3}]
    if stage == 3:
        choices = [
            {"units": lambda module: isinstance(module, nn.Linear)},
            {"units": [nn.LayerNorm]},
            {"units": ()},
        ]
    for options in choices:
        assert not differences(expected, trained(net, 2, stage, **options))


def accumulating(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        for part in range(3):
            with model.no_sync() if part < 2 else contextlib.nullcontext():
                (loss_of(model, tokens(step * 3 + part, rank)) / 3).backward()
        optimizer.step()


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_accumulate_without_communication_in_no_sync(stage: int) -> None:
    net = Language(2)
    assert not differences(trained(net, 2, None, accumulating), trained(net, 2, stage, accumulating))


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_of_several_reduced_backwards_add_up(stage: int) -> None:
    net = Language(1)

    def run(rank: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        model = shard(copy.deepcopy(net), stage)
        found = []
        for _ in range(2):
            loss_of(model, tokens(0, rank)).backward()
            found.append([piece.grad.numpy().copy() for piece in model.parameters()])
        return found[0], found[1]

    for once, twice in run_ranks(2, run).results():
        for a, b in zip(once, twice, strict=True):
            np.testing.assert_allclose(2 * a, b, rtol=1e-6)


class Recurrent(nn.Module):
    """Calls one cell many times, shares a Linear between two places, and reads parameters of a child itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.cell = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.twin = self.cell[0]
        self.scale = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Tensor) -> Tensor:
        x = self.embed(given)
        for _ in range(3):
            x = self.cell(x) + self.twin(x)
        x = nn.functional.linear(x, self.scale.weight.t().contiguous(), self.scale.bias) + self.scale(x)
        return x @ self.embed.weight.t()  # a view of a child's parameter, kept for backward


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("world", [2, 3])
def test_modules_called_often_and_parameters_read_by_other_modules(stage: int, world: int) -> None:
    net = Recurrent()
    assert not differences(trained(net, world, None), trained(net, world, stage))


class Recomputed(Language):
    def __init__(self, reentrant: bool) -> None:
        super().__init__(2)
        self.reentrant = reentrant

    def forward(self, given: Tensor) -> Tensor:
        x = self.embed(given) + self.place
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x))


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_units_are_gathered_again(stage: int, reentrant: bool) -> None:
    net, plain = Recomputed(reentrant), Language(2)
    plain.load_state_dict(net.state_dict())
    expected = trained(plain, 2, None)
    assert not differences(expected, trained(net, 2, stage))
    if not reentrant:
        again = Recomputed(False)
        again.load_state_dict(net.state_dict())
        assert not differences(expected, trained(again, 2, stage, _whole_recomputed))


def _whole_recomputed(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        checkpoint(loss_of, model, tokens(step, rank)).backward()
        optimizer.step()


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_parameters_stay_and_the_others_train(stage: int) -> None:
    net = Language(2)
    for block in net.blocks:
        block.up.requires_grad_(False)
    net.embed.requires_grad_(False)
    expected, got = trained(net, 2, None), trained(net, 2, stage)
    assert not differences(expected, got)
    assert np.array_equal(got[0]["embed.weight"], net.embed.weight.detach().numpy())


@pytest.mark.parametrize("stage", [2, 3])
def test_parameters_can_be_frozen_and_freed_between_steps(stage: int) -> None:
    net = Language(1)

    def run(rank: int) -> list[bool]:
        model = shard(copy.deepcopy(net), stage)
        optimizer = adamw(model.parameters())
        pieces = dict(model.named_parameters())
        seen = []
        for frozen in (True, False):
            pieces["blocks.0.up.weight"].requires_grad_(not frozen)
            train(model, optimizer, rank, range(1))
            seen.append(pieces["blocks.0.up.weight"].grad is None)
        return seen

    assert run_ranks(2, run).results() == [[True, False]] * 2


@pytest.mark.parametrize("stage", [2, 3])
def test_buffers_follow_rank_0_in_training_and_evaluation_leaves_no_trace(stage: int) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))
    rng = np.random.default_rng(0)
    data = tensor(rng.standard_normal((3, 2, 5, 4)))

    def loop(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            (model(data[step, rank]) ** 2).mean().backward()
            optimizer.step()
            model.eval()
            for quietly in (no_grad(), inference_mode()):
                with quietly:
                    model(data[step, rank])
            model.train()

    assert not differences(trained(net, 2, None, loop), trained(net, 2, stage, loop))


@pytest.mark.parametrize("stage", [2, 3])
def test_groups_by_name_schedulers_and_clipping(stage: int) -> None:
    net = Language(1)

    def run(rank: int) -> tuple[float, float, list[int], dict[str, np.ndarray]]:
        model = shard(copy.deepcopy(net), stage)
        named = list(model.named_parameters())
        assert [name for name, _ in named] == [name for name, _ in net.named_parameters()]
        decayed = [piece for _, piece in named if len(piece.logical_shape) > 1]
        others = [piece for _, piece in named if len(piece.logical_shape) == 1]
        optimizer = optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=1e-2)
        scheduler = lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        loss_of(model, tokens(0, rank)).backward()
        before = model.clip_grad_norm_(0.05)
        after = model.clip_grad_norm_(0.05)
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == 5e-3
        return float(before), float(after), [len(decayed), len(others)], arrays(model.state_dict())

    def plain() -> tuple[float, dict[str, np.ndarray]]:
        model = copy.deepcopy(net)
        named = list(model.named_parameters())
        optimizer = optim.AdamW(
            [
                {"params": [p for _, p in named if p.ndim > 1]},
                {"params": [p for _, p in named if p.ndim == 1], "weight_decay": 0.0},
            ],
            lr=1e-2,
        )
        for rank in range(3):
            (loss_of(model, tokens(0, rank)) / 3).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        return float(norm), arrays(model.state_dict())

    norm, state = plain()
    results = run_ranks(3, run).results()
    assert len({before for before, *_ in results}) == 1
    for before, after, sizes, got in results:
        assert before == pytest.approx(norm, rel=1e-5)
        assert after == pytest.approx(0.05, rel=1e-4)
        assert sizes == [4, 6]
        for name, array in got.items():
            np.testing.assert_allclose(array, state[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("order", "expected"), [(1.0, 10.0), (2.0, np.sqrt(30.0)), (np.inf, 4.0)])
def test_norms_of_gradients_are_over_all_ranks(order: float, expected: float) -> None:
    def run(rank: int) -> float:
        model = shard(nn.Linear(4, 1, bias=False), 3)
        for piece in model.parameters():
            piece.grad = tensor(np.arange(piece.start, piece.start + piece.numel()) + 1)
        return float(model.clip_grad_norm_(100.0, order))

    assert run_ranks(2, run).results() == [pytest.approx(expected)] * 2


@pytest.mark.parametrize("stage", [2, 3])
def test_unused_parameters_keep_no_gradient_where_no_rank_has_one(stage: int) -> None:
    class Forked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.branches = Branches()

        def forward(self, x: Tensor, rank: int) -> Tensor:
            return self.branches(self.both(x), rank)

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor, rank: int) -> Tensor:
            return self.right(x) if rank else self.left(x)

    net, x = Forked(), tensor(np.ones((BATCH, WIDTH)))

    def run(rank: int) -> dict[str, bool]:
        model = shard(
            copy.deepcopy(net),
            stage,
            find_unused_parameters=True,
            **({} if stage == 2 else {"units": (Branches, nn.Linear)[:1]}),
        )
        model(x, rank).sum().backward()
        return {name: piece.grad is not None for name, piece in model.named_parameters()}

    for seen in run_ranks(2, run).results():
        assert {name: got for name, got in seen.items() if name.endswith("weight")} == {
            "both.weight": True,
            "never.weight": False,
            "branches.left.weight": True,
            "branches.right.weight": True,
        }


def test_a_gradient_penalty_differentiates_through_gathered_parameters() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = tensor(np.random.default_rng(0).standard_normal((2, 5, 3)))

    def loop(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
        for _ in steps:
            optimizer.zero_grad()
            given = x[rank].detach().clone().requires_grad_()
            (slope,) = grad(model(given).sum(), [given], create_graph=True)
            (slope**2).sum().backward()
            optimizer.step()

    sgd = {"optimizer": lambda params: optim.SGD(params, lr=0.1)}
    expected = trained(net, 2, None, loop, find_unused_parameters=True, **sgd)
    got = trained(net, 2, 3, loop, find_unused_parameters=True, **sgd)
    assert not differences(expected, got)


class Slope(nn.Module):
    """Differentiates inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        given = x.detach().clone().requires_grad_()
        (slope,) = grad((self.inner(given) ** 3).sum(), [given], create_graph=True)
        return self.outer(slope + self.inner(x))


@pytest.mark.parametrize("stage", [2, 3])
def test_a_forward_may_differentiate_inside(stage: int) -> None:
    x = tensor(np.random.default_rng(0).standard_normal((3, 2, BATCH, 4)))

    def loop(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            (model(x[step, rank]) ** 2).mean().backward()
            optimizer.step()

    for net in (Slope(), nn.Sequential(Slope(), nn.Linear(2, 2))):
        assert not differences(trained(net, 2, None, loop), trained(net, 2, stage, loop))


def test_a_graph_can_be_walked_twice() -> None:
    net = Language(1)

    def run(rank: int) -> list[list[np.ndarray]]:
        model = shard(copy.deepcopy(net), 3)
        loss, found = loss_of(model, tokens(0, rank)), []
        for keep in (True, False):
            model.zero_grad()
            loss.backward(retain_graph=keep)
            found.append([piece.grad.numpy().copy() for piece in model.parameters()])
        return found

    for first, second in run_ranks(2, run).results():
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


class Odd(nn.Module):
    """Parameters of two dtypes, of one element, of none, and as many ranks as elements would not fill."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(tensor(1.5))
        self.nothing = nn.Parameter(tensor(np.zeros((0, 4))))
        self.one = nn.Parameter(tensor([2.0]))
        self.wide = nn.Parameter(resilin.linspace(0.1, 1.0, 37, dtype=resilin.float64))
        self.fc = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.fc(x) * self.scale + self.one).sum() + (self.wide**2).sum() + self.nothing.sum()


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_parameters_of_odd_shapes_and_several_dtypes(stage: int, world: int) -> None:
    x = tensor(np.random.default_rng(0).standard_normal((3, world, BATCH, 5)))

    def loop(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            model(x[step, rank]).backward()
            optimizer.step()

    net = Odd()
    assert not differences(trained(net, world, None, loop), trained(net, world, stage, loop))


class Winding(Language):
    """Takes another way through its blocks in each step."""

    def __init__(self) -> None:
        super().__init__(3)
        self.calls = 0

    def forward(self, given: Tensor) -> Tensor:
        ways = ([0, 1, 2], [2, 0], [1, 1], [0, 1, 2])
        x = self.embed(given) + self.place
        for block in ways[self.calls % len(ways)]:
            x = self.blocks[block](x)
        self.calls += 1
        return self.head(self.norm(x))


@pytest.mark.parametrize("stage", [2, 3])
def test_the_way_through_the_model_may_change_from_step_to_step(stage: int) -> None:
    options = {"steps": 6, "find_unused_parameters": True}
    net = Winding()
    assert not differences(trained(net, 2, None, **options), trained(net, 2, stage, **options))


def siamese(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        (loss_of(model, tokens(2 * step, rank)) + loss_of(model, tokens(2 * step + 1, rank))).backward()
        optimizer.step()


@pytest.mark.parametrize("stage", [2, 3])
def test_several_forwards_may_share_one_backward(stage: int) -> None:
    net = Language(2)
    assert not differences(trained(net, 2, None, siamese), trained(net, 2, stage, siamese))


def test_two_sharded_modules_may_share_one_backward() -> None:
    first, second = nn.Linear(4, 6), nn.Linear(6, 2)
    x = tensor(np.random.default_rng(0).standard_normal((3, 2, BATCH, 4)))

    def run(rank: int, apart: bool) -> list[np.ndarray]:
        if apart:
            models = [shard(copy.deepcopy(first), 3), shard(copy.deepcopy(second), 2)]
        else:
            models = [shard(nn.Sequential(copy.deepcopy(first), copy.deepcopy(second)), 3)]
        optimizer = adamw([piece for model in models for piece in model.parameters()])
        for step in range(3):
            optimizer.zero_grad()
            out = x[step, rank]
            for model in models:
                out = model(out)
            (out**2).mean().backward()
            optimizer.step()
        return [value.numpy() for model in models for value in model.state_dict().values()]

    for together, apart in zip(run_ranks(2, run, False).results(), run_ranks(2, run, True).results(), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(together, apart, strict=True))


class _Keeps(Function):
    """x * w, which keeps what it was given in a way that nobody else knows of."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.w = w[...]
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * ctx.w, None


class Hidden(nn.Module):
    """Its weight's gradient is ready before the last node that looks at its value has run."""

    def __init__(self, hidden: bool, recomputed: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(tensor(np.linspace(1, 2, WIDTH)))
        self.hidden, self.recomputed = hidden, recomputed

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.compute, x) if self.recomputed else self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        constant = self.weight.detach()
        x = _Keeps.apply(self.first(x), constant) if self.hidden else self.first(x) * constant
        return x * self.weight


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("recomputed", [True, False])
def test_memory_into_which_somebody_looks_is_not_overwritten(hidden: bool, recomputed: bool) -> None:
    net = nn.Sequential(*(Hidden(hidden, recomputed) for _ in range(3)))
    x = tensor(np.random.default_rng(0).standard_normal((3, 2, BATCH, WIDTH)))

    def loop(model: Any, optimizer: optim.Optimizer, rank: int, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            (model(x[step, rank]) ** 2).mean().backward()
            optimizer.step()

    assert not differences(trained(net, 2, None, loop), trained(net, 2, 3, loop))


def test_what_a_hook_kept_of_a_parameter_in_backward_keeps_its_value() -> None:
    net = nn.Sequential(Hidden(False, False), Hidden(False, False))
    x = tensor(np.ones((BATCH, WIDTH)))

    def run(rank: int) -> list[np.ndarray]:
        model, kept = shard(copy.deepcopy(net), 3), []
        first = model.module[0]

        def look(grad: Tensor) -> None:
            kept.append(first.weight.detach())

        for module in (first, first.first):  # before its gradient is ready, and after
            module.register_forward_hook(lambda _module, _args, output: output.register_hook(look) and None)
        (model(x) ** 2).mean().backward()
        return [seen.numpy().copy() for seen in kept]

    for kept in run_ranks(2, run).results():
        assert [seen.tolist() for seen in kept] == [net[0].weight.tolist()] * 2


def test_every_unit_is_gathered_before_it_is_used_and_gone_after() -> None:
    net = Language(3)

    def run(rank: int) -> tuple[list[int], int]:
        model = shard(net if rank else copy.deepcopy(net), 3)
        assert isinstance(model, ShardedModule)
        here: list[int] = []
        for block in model.module.blocks:
            block.norm.register_forward_hook(lambda *_: here.append(sum(unit.here for unit in model.units)))
        train(model, adamw(model.parameters()), rank, range(2))
        return here, sum(unit.here for unit in model.units)

    for here, after in run_ranks(2, run).results():
        assert here == [2] * 6  # the root's own parameter, and the block
        assert after == 0


@pytest.mark.parametrize("stage", [2, 3])
def test_freezing_between_two_forwards_without_a_step_is_followed(stage: int) -> None:
    def run(rank: int) -> None:
        model = shard(nn.Linear(2, 1), stage)
        x = Tensor._wrap(np.ones((3, 2), np.float32))
        for wanted in (True, False, True):
            for piece in model.parameters():
                piece.requires_grad_(wanted)
            assert model(x).requires_grad == wanted

    run_ranks(2, run).results()
