"""The loss scaler: alone, saved, and deciding alike on all ranks."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resilin.distributed as dist
from resilin import nn, optim
from resilin.amp import GradScaler
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.distributed.api.join import Join
from resilin.errors import CollectiveMismatch, ResilinError, UsageError
from resilin.testing.ranks import run_ranks
from resilin.zero import ShardedGradScaler, ZeroRedundancyOptimizer, shard


def tensor(*values: float, dtype: Any = np.float32) -> Tensor:
    return Tensor._wrap(np.array(values, dtype))


def one_parameter(dtype: Any = np.float32) -> tuple[nn.Parameter, optim.SGD]:
    param = nn.Parameter(tensor(1, 2, dtype=dtype))
    return param, optim.SGD([param], lr=0.5)


def step(scaler: GradScaler, param: nn.Parameter, sgd: optim.SGD, *factors: float) -> None:
    sgd.zero_grad()
    scaler.scale((param * tensor(*factors)).sum()).backward()
    scaler.step(sgd)
    scaler.update()


def test_a_step_is_the_one_without_a_scaler() -> None:
    param, sgd = one_parameter()
    scaler = GradScaler()
    step(scaler, param, sgd, 2, 4)
    np.testing.assert_array_equal(param.detach().numpy(), [0, 0])
    assert scaler.get_scale() == 65536


def test_gradients_too_small_for_half_precision_survive() -> None:
    param, sgd = one_parameter()
    scaler, tiny = GradScaler(init_scale=1024), 2.0**-26  # float16 has nothing below 2^-24
    scaler.scale((param.half().float() * tensor(tiny, tiny)).sum()).backward()
    scaler.unscale_(sgd)
    assert param.grad is not None
    np.testing.assert_array_equal(param.grad.numpy(), [tiny, tiny])


def test_a_half_loss_is_scaled_in_float32() -> None:
    scaled = GradScaler().scale(tensor(60000, dtype=np.float16).sum())
    assert (scaled.numpy().dtype, scaled.item()) == (np.float32, 60000 * 65536)


def test_losses_in_lists_and_tuples_are_all_scaled() -> None:
    scaler = GradScaler(init_scale=2)
    one, (two, three) = scaler.scale([tensor(1), (tensor(2), tensor(3))])
    assert [each.item() for each in (one, two, three)] == [2, 4, 6]
    assert [each.item() for each in scaler.scale(each for each in (tensor(4), tensor(5)))] == [8, 10]
    with pytest.raises(UsageError, match="expected tensors, or an iterable of them, got float"):
        scaler.scale(1.5)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_step_that_is_not_finite_is_left_out_and_the_scale_halved(bad: float) -> None:
    param, sgd = one_parameter()
    scaler = GradScaler()
    step(scaler, param, sgd, 1, bad)
    np.testing.assert_array_equal(param.detach().numpy(), [1, 2])
    assert scaler.get_scale() == 32768


def test_the_scale_grows_after_good_steps_in_a_row() -> None:
    param, sgd = one_parameter()
    scaler, seen = GradScaler(init_scale=8, growth_interval=2), []
    for factor in (0, 0, 0, np.inf, 0, 0, 0):
        step(scaler, param, sgd, factor, 0)
        seen.append(scaler.get_scale())
    assert seen == [8, 16, 16, 8, 8, 16, 16]


def test_the_scale_stays_within_float32() -> None:
    param, sgd = one_parameter()
    scaler = GradScaler(init_scale=2.0**127, growth_interval=1)
    step(scaler, param, sgd, 0, 0)
    assert scaler.get_scale() == 2.0**127


def test_unscaled_gradients_can_be_clipped_and_are_not_unscaled_again() -> None:
    param, sgd = one_parameter()
    scaler = GradScaler()
    scaler.scale((param * tensor(3, 4)).sum()).backward()
    scaler.unscale_(sgd)
    assert nn.utils.clip_grad_norm_([param], 1.0).item() == 5
    scaler.step(sgd)
    np.testing.assert_allclose(param.detach().numpy(), [1 - 0.3, 2 - 0.4], rtol=1e-5)


def test_one_optimizer_that_overflows_does_not_hold_up_another() -> None:
    scaler, pairs = GradScaler(), [one_parameter(), one_parameter()]
    for (param, _), factor in zip(pairs, (np.inf, 1.0), strict=True):
        scaler.scale((param * tensor(factor, factor)).sum()).backward()
    results = [scaler.step(sgd) for _, sgd in pairs]
    scaler.update()
    assert results == [None, None]
    assert [param.detach().numpy().tolist() for param, _ in pairs] == [[1, 2], [0.5, 1.5]]
    assert scaler.get_scale() == 32768


def test_a_disabled_scaler_does_nothing() -> None:
    param, sgd = one_parameter()
    scaler = GradScaler(enabled=False)
    step(scaler, param, sgd, 2, 4)
    np.testing.assert_array_equal(param.detach().numpy(), [0, 0])
    assert (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()) == (1.0, {}, False)
    scaler.load_state_dict({"scale": 3})
    assert scaler.get_scale() == 1.0


def test_a_saved_scaler_goes_on_where_it_was() -> None:
    param, sgd = one_parameter()
    scaler = GradScaler(init_scale=8, growth_interval=3)
    for _ in range(2):
        step(scaler, param, sgd, 0, 0)
    state = scaler.state_dict()
    assert state == {
        "scale": 8, "growth_factor": 2, "backoff_factor": 0.5, "growth_interval": 3, "_growth_tracker": 2,
    }  # fmt: skip
    loaded, pickled = GradScaler(), pickle.loads(pickle.dumps(scaler))
    loaded.load_state_dict(state)
    for other in (loaded, pickled):
        step(other, param, sgd, 0, 0)
        assert other.get_scale() == 16


def unscale_twice(scaler: GradScaler, sgd: Any) -> None:
    scaler.unscale_(sgd)
    scaler.unscale_(sgd)


def unscale_late(scaler: GradScaler, sgd: Any) -> None:
    scaler.step(sgd)
    scaler.unscale_(sgd)


def step_twice(scaler: GradScaler, sgd: Any) -> None:
    scaler.step(sgd)
    scaler.step(sgd)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (unscale_twice, "unscale_.. has already been called"),
        (unscale_late, "unscale_.. is being called after step"),
        (step_twice, "step.. has already been called"),
        (lambda scaler, sgd: scaler.update(), "no optimizer was unscaled or stepped"),
        (lambda scaler, sgd: scaler.step(sgd, lambda: None), "a closure would compute gradients that nobody unscales"),
        (lambda scaler, sgd: (sgd.zero_grad(), scaler.step(sgd)), "no parameter of the optimizer has a gradient"),
        (lambda scaler, sgd: scaler.update(0.0), "new_scale must be positive and finite, got 0"),
        (lambda scaler, sgd: scaler.load_state_dict({}), "that of a scaler that was disabled"),
        (lambda scaler, sgd: scaler.load_state_dict({"scale": 2}), "missing .*_growth_tracker"),
        (lambda scaler, sgd: (scaler.unscale_(sgd), pickle.dumps(scaler)), "pickle it after update"),
    ],
)  # fmt: skip
def test_misuse_is_named(use: Callable[[GradScaler, Any], Any], says: str) -> None:
    param, sgd = one_parameter()
    param.sum().backward()
    with pytest.raises(ResilinError, match=says):
        use(GradScaler(), sgd)


def test_gradients_of_float16_are_refused_before_anything_is_changed() -> None:
    param, sgd = one_parameter(np.float16)
    param.sum().backward()
    with pytest.raises(UsageError, match="keep the parameters in float32"):
        GradScaler().step(sgd)
    assert param.grad is not None
    np.testing.assert_array_equal(param.grad.numpy(), [1, 1])


@pytest.mark.parametrize(
    "arguments",
    [{"growth_factor": 1}, {"backoff_factor": 1}, {"growth_interval": 0}, {"init_scale": 0}, {"init_scale": np.inf}],
)
def test_factors_without_a_meaning_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"GradScaler: {next(iter(arguments))} must be"):
        GradScaler(**arguments)


def loaded(**entries: Any) -> Callable[[], None]:
    return lambda: GradScaler().load_state_dict(GradScaler().state_dict() | entries)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda: GradScaler(init_scale=None), r"^GradScaler: init_scale must be positive and finite, got None"),
        (lambda: GradScaler(init_scale="8"), r"^GradScaler: init_scale must be .* got '8'"),
        (lambda: GradScaler(growth_factor="a"), r"^GradScaler: growth_factor must be above 1 .* got 'a'"),
        (lambda: GradScaler(growth_factor=math.nan), r"^GradScaler: growth_factor must be above 1 .* got nan"),
        (lambda: GradScaler(backoff_factor=True), r"^GradScaler: backoff_factor must be between 0 and 1, got True"),
        (lambda: GradScaler(growth_interval=2.5), r"growth_interval must be a whole number of at least 1, got 2.5"),
        (lambda: GradScaler(enabled="no"), r"^GradScaler: enabled must be True or False, got 'no'"),
        (lambda: ShardedGradScaler(init_scale=-1), r"^ShardedGradScaler: init_scale must be positive .* got -1"),
        (lambda: ShardedGradScaler(process_group=5), r"^ShardedGradScaler: process_group must be .* got 5"),
        (lambda: GradScaler().set_growth_factor(0.1), r"set_growth_factor: growth_factor must be at least 1.*got 0.1"),
        (lambda: GradScaler().set_backoff_factor("x"), r"set_backoff_factor: backoff_factor must be .* got 'x'"),
        (lambda: GradScaler().set_growth_interval(0), r"set_growth_interval: growth_interval must be .* got 0"),
        (lambda: GradScaler().update(tensor(1, 2, 3)), r"^GradScaler.update: new_scale must be positive and finite"),
        (lambda: GradScaler().load_state_dict(None), r"load_state_dict: state_dict must be a dict, .* got None"),
        (loaded(scale="x"), r"load_state_dict: scale must be positive and finite, got 'x'"),
        (loaded(growth_factor=None), r"load_state_dict: growth_factor must be .* got None"),
        (loaded(backoff_factor=9), r"load_state_dict: backoff_factor must be above 0 and at most 1, got 9"),
        (loaded(_growth_tracker=-1), r"load_state_dict: _growth_tracker must be .* at least 0, got -1"),
        (lambda: GradScaler().unscale_(None), r"GradScaler.unscale_: optimizer must be one, .* got None"),
        (lambda: GradScaler().step(None), r"GradScaler.step: optimizer must be one, .* got None"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named_with_their_function(use: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        use()


def test_a_state_that_is_refused_changes_nothing() -> None:
    scaler = GradScaler(init_scale=8)
    before = scaler.state_dict()
    with pytest.raises(UsageError, match="_growth_tracker"):
        scaler.load_state_dict(before | {"scale": 4, "_growth_tracker": "x"})
    assert scaler.state_dict() == before


def test_numbers_of_any_kind_and_factors_that_fix_the_scale_are_taken() -> None:
    scaler = GradScaler("cuda", np.float32(8), 3, np.float64(0.25), np.int64(5), np.True_)
    scaler.update(tensor(4).sum())
    scaler.set_growth_factor(1.0)
    scaler.set_backoff_factor(1)
    assert scaler.state_dict() == {
        "scale": 4, "growth_factor": 1, "backoff_factor": 1, "growth_interval": 5, "_growth_tracker": 0,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- several ranks

STEPS, BAD = 4, 1  # in step 1 the input of one rank overflows


def net() -> nn.Module:
    rng = np.random.default_rng(0)
    made = nn.Sequential(nn.Linear(40, 40, bias=False))
    for param in made.parameters():
        param.data.copy_(Tensor._wrap(rng.standard_normal(param.shape).astype(np.float32)))
    return made


def batch(number: int, rank: int) -> Tensor:
    x = np.random.default_rng([number, rank]).standard_normal((4, 40)).astype(np.float32)
    if number == BAD and rank == 1:
        x[0, 0] = 3e38
    return Tensor._wrap(x)


def loss_of(out: Tensor) -> Tensor:
    """Its gradient overflows in the first rows alone: one rank has them, where gradients are divided."""
    return (out[:, :5] ** 2).mean() + out[:, 5:].mean() * 1e-8


def train(model: Any, adam: Any, scaler: GradScaler | None, rank: int) -> list[float]:
    scales = []
    for number in range(STEPS):
        if scaler is None and number == BAD:
            continue
        adam.zero_grad()
        loss = loss_of(model(batch(number, rank)))
        if scaler is None:
            loss.backward()
            adam.step()
            continue
        scaler.scale(loss).backward()
        scaler.step(adam)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def values(module: Any) -> list[np.ndarray]:
    return [each.numpy(force=True).copy() for each in module.state_dict().values()]


@pytest.mark.parametrize("way", ["ddp", "zero 1", "zero 2", "zero 3"])
def test_all_ranks_leave_out_the_step_that_overflows_on_one(way: str) -> None:
    start = net()

    def run(rank: int, scaled: bool) -> tuple[list[float], list[np.ndarray]]:
        module = copy.deepcopy(start)
        model = DDP(module) if way in ("ddp", "zero 1") else shard(module, int(way[-1]))
        kind = ZeroRedundancyOptimizer if way == "zero 1" else None
        adam = kind(model.parameters(), optim.AdamW, lr=0.1) if kind else optim.AdamW(model.parameters(), lr=0.1)
        made = ShardedGradScaler if way in ("zero 2", "zero 3") else GradScaler
        scales = train(model, adam, made(growth_interval=2) if scaled else None, rank)
        return scales, values(module if way in ("ddp", "zero 1") else model)

    results = run_ranks(2, lambda rank: run(rank, True)).results()
    plain = run_ranks(2, lambda rank: run(rank, False)).results()  # without that step, and without a scaler
    assert [scales for scales, _ in results] == [[65536, 32768, 32768, 65536]] * 2
    for (_, got), (_, expected) in zip(results, plain, strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)  # powers of two: nothing is rounded


@pytest.mark.parametrize("kind", [optim.AdamW, optim.Muon])  # in flat ranges, and in whole tensors
@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_divided_optimizer_leaves_out_a_step_that_overflows_on_one_rank_alone(
    kind: type[optim.Optimizer], by_hand: bool, bad: float
) -> None:
    def run(rank: int, scaled: bool) -> tuple[list[float], list[np.ndarray]]:
        module = net()
        zero = ZeroRedundancyOptimizer(module.parameters(), kind, lr=0.1)
        scaler, scales = GradScaler(enabled=scaled, growth_interval=2), []
        for number in range(STEPS):
            if number == BAD and not scaled:
                continue
            zero.zero_grad()
            scaler.scale(loss_of(module(batch(0, 0)))).backward()  # no wrapper makes gradients equal
            if number == BAD and rank == 1:
                next(module.parameters()).grad[0, 0] = bad
            if by_hand:
                scaler.unscale_(zero)
            scaler.step(zero)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, values(module)

    results = run_ranks(3, lambda rank: run(rank, True)).results()
    plain = run_ranks(3, lambda rank: run(rank, False)).results()
    assert [scales for scales, _ in results] == [[65536, 32768, 32768, 65536]] * 3
    for (_, got), (_, expected) in zip(results, plain, strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_divided_optimizer_of_uneven_inputs_is_scaled_by_those_that_train() -> None:
    def run(rank: int) -> list[np.ndarray]:
        model = DDP(net())
        zero = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=0.1)
        scaler = GradScaler()
        with Join([model, zero]):
            for number in range(2, 4 + rank):
                zero.zero_grad()
                scaler.scale(loss_of(model(batch(number, 0)))).backward()
                scaler.step(zero)
                scaler.update()
        return values(model.module)

    first, second = run_ranks(2, run).results()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def take_over_from_the_longest(scaler: GradScaler, steps: int) -> None:
    """The lines of docs/zero.md."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (steps, scaler.state_dict()))
    scaler.load_state_dict(max(told, key=lambda one: one[0])[1])


@pytest.mark.parametrize("kind", [ZeroRedundancyOptimizer, None])
def test_scalers_that_uneven_inputs_drove_apart_go_on_alike(kind: Any) -> None:
    def run(rank: int) -> tuple[list[tuple[float, float]], list[np.ndarray]]:
        model, scales = DDP(net()), []
        params = model.parameters()
        adam = kind(params, optim.AdamW, lr=0.1) if kind else optim.AdamW(params, lr=0.1)
        scaler = GradScaler(growth_interval=1)
        for _ in range(2):
            steps = 3 - rank
            with Join([model, adam] if kind else [model]):
                for number in range(BAD + 1, BAD + 1 + steps):
                    adam.zero_grad()
                    scaler.scale(loss_of(model(batch(number, 0)))).backward()
                    scaler.step(adam)
                    scaler.update()
            drifted = scaler.get_scale()
            take_over_from_the_longest(scaler, steps)
            scales.append((drifted, scaler.get_scale()))
        return scales, values(model.module)

    (longest, first), (shorter, second) = run_ranks(2, run).results()
    start = 2.0**16
    assert longest == [(start * 8, start * 8), (start * 64, start * 64)]
    assert shorter == [(start * 4, start * 8), (start * 32, start * 64)]
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_lines_of_the_manual_are_those_that_are_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "zero.md").read_text()
    body = inspect.getsource(take_over_from_the_longest).replace(": list[Any]", "").splitlines()[2:]
    assert "\n".join(line.strip() for line in body) in page


def test_ranks_without_any_gradient_are_told_so_together() -> None:
    def run(rank: int) -> None:
        model = shard(net(), 3)
        ShardedGradScaler().step(optim.AdamW(model.parameters()))

    errors = run_ranks(2, run).errors
    assert {rank: "no parameter of the optimizer has a gradient" in str(error) for rank, error in errors.items()} == {
        0: True,
        1: True,
    }


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("off", [0, 2])
def test_a_scaler_that_is_disabled_on_one_rank_is_told_on_all(stage: int, off: int) -> None:
    def run(rank: int) -> str:
        model: Any = net() if stage == 1 else shard(net(), stage)
        params = model.parameters()
        adam: Any = ZeroRedundancyOptimizer(params, optim.AdamW) if stage == 1 else optim.AdamW(params)
        scaler = (GradScaler if stage == 1 else ShardedGradScaler)(enabled=rank != off)
        with pytest.raises(CollectiveMismatch) as caught:
            train(model, adam, scaler, 0)  # steps: without a scaler one of pieces is this rank's alone
        return str(caught.value)

    for rank, said in enumerate(run_ranks(3, run).results()):
        if rank != off:
            assert "GradScaler: enabled here, and another rank unscales nothing" in said
            assert "All ranks make scalers with the same `enabled`" in said
        elif stage == 1:
            assert "step met another call of another rank" in said
            assert "their loss scalers are all enabled, or none is" in said
        if stage > 1:
            assert f"rank {off} called all_gather " in said
            assert f"rank {0 if off else 1} called GradScaler " in said


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(("name", "sides"), [("init_scale", (8, 16)), ("growth_interval", (5, 7))])
def test_scalers_that_differ_between_ranks_are_named_on_all(stage: int, name: str, sides: tuple[int, int]) -> None:
    def run(rank: int) -> None:
        model: Any = net() if stage == 1 else shard(net(), stage)
        params = model.parameters()
        adam: Any = ZeroRedundancyOptimizer(params, optim.AdamW) if stage == 1 else optim.AdamW(params)
        scaler = (GradScaler if stage == 1 else ShardedGradScaler)(**{name: sides[rank]})
        scaler.scale(loss_of(model(batch(0, 0)))).backward()
        with pytest.raises(CollectiveMismatch, match=rf"is {sides[0]} on some rank and {sides[1]} on another"):
            scaler.step(adam)

    run_ranks(2, run).results()
