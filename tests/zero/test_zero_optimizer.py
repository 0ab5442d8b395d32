"""ZeroRedundancyOptimizer has the bits of the optimizer that it divides: every class, groups, schedules, dtypes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from divided import ALL, CUT, SHAPES, bits, divided, flat_state, give_gradients, on_one, parameters, plain, train

from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.optim import lr_scheduler
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer, all_gather, supported_optimizers


@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_parameters_and_state_have_the_bits_of_the_undivided_optimizer(name: str, as_view: bool) -> None:
    want, state = plain(name)

    def work(rank: int) -> tuple[list[bytes], Any]:
        params, optimizer = divided(name, parameters_as_bucket_view=as_view)
        train(params, optimizer)
        return bits(params), on_one(optimizer, rank)

    for world in (1, 2, 3):
        results = run_ranks(world, work).results()
        assert [got for got, _ in results] == [want] * world
        assert flat_state(results[0][1]) == flat_state(state)


@pytest.mark.parametrize("transport", ["unix", "tcp", "hosts"])
def test_ranges_are_gathered_over_every_transport(transport: str) -> None:
    def work(rank: int, as_view: bool) -> list[bytes]:
        params, optimizer = divided("AdamW", parameters_as_bucket_view=as_view)
        train(params, optimizer)
        return bits(params)

    for as_view in (False, True):
        assert run_ranks(4, work, as_view, transport=transport).results() == [plain("AdamW")[0]] * 4


def test_a_stage_smaller_than_a_range_gathers_it_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_gather, "STAGE_BYTES", 3 * 4 * 20)
    monkeypatch.setattr(all_gather.Staged.__init__, "__defaults__", (3 * 4 * 20,))

    def work(rank: int) -> tuple[list[bytes], int]:
        params, optimizer = divided("AdamW")
        train(params, optimizer)
        return bits(params), len(optimizer._gatherings[0]._rounds)  # type: ignore[attr-defined]

    assert run_ranks(3, work).results() == [(plain("AdamW")[0], 6)] * 3
    assert run_ranks(3, lambda rank: _whole_bits()).results() == [plain("Adafactor")[0]] * 3


def _whole_bits() -> list[bytes]:
    params, optimizer = divided("Adafactor")
    train(params, optimizer)
    return bits(params)


def test_a_parameter_without_gradient_keeps_its_value_and_its_count_of_steps() -> None:
    missing = [(0, 3), (), (1,), (0, 1, 2, 3, 4, 5, 6)]

    def run(params: list[Any], optimizer: Any) -> list[bytes]:
        for step, without in enumerate(missing):
            give_gradients(params, step, without)
            optimizer.step()
        return bits(params)

    alone = parameters()
    undivided = optim.NAdam(alone)
    want = run(alone, undivided)

    def work(rank: int) -> tuple[list[bytes], Any]:
        params = parameters()
        optimizer = ZeroRedundancyOptimizer(params, optim.NAdam)
        return run(params, optimizer), on_one(optimizer, rank)

    results = run_ranks(3, work).results()
    assert [got for got, _ in results] == [want] * 3
    assert flat_state(results[0][1]) == flat_state(undivided.state_dict())


@pytest.mark.parametrize("as_view", [False, True])
def test_groups_have_their_own_options_and_may_be_added_later(as_view: bool) -> None:
    def run(params: list[Any], make: Any) -> tuple[Any, list[bytes]]:
        first = [{"params": params[:2], "weight_decay": 0.5}, {"params": params[2:4], "lr": 0.2}]
        optimizer = make(first)
        train(params[:4], optimizer, range(2))
        optimizer.add_param_group({"params": params[4:], "betas": (0.5, 0.6)})
        train(params, optimizer, range(2, 5))
        return optimizer, bits(params)

    undivided, want = run(parameters(), lambda groups: optim.AdamW(groups, lr=0.01))

    def work(rank: int) -> tuple[list[bytes], Any]:
        optimizer, got = run(
            parameters(),
            lambda groups: ZeroRedundancyOptimizer(groups, optim.AdamW, parameters_as_bucket_view=as_view, lr=0.01),
        )
        return got, on_one(optimizer, rank)

    results = run_ranks(3, work).results()
    assert [got for got, _ in results] == [want] * 3
    assert flat_state(results[0][1]) == flat_state(undivided.state_dict())


def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was() -> None:
    def work(rank: int) -> int:
        params = parameters()
        optimizer = ZeroRedundancyOptimizer(params[:3], optim.AdamW, lr=0.01)
        with pytest.raises(ValueError, match="lr must not be negative"):
            optimizer.add_param_group({"params": params[3:], "lr": -1.0})
        train(params[:3], optimizer, range(2))
        return len(optimizer.param_groups)

    assert run_ranks(2, work).results() == [1, 1]


def test_schedulers_drive_the_inner_optimizer() -> None:
    def run(params: list[Any], optimizer: Any) -> list[bytes]:
        schedule = lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
        for step in range(5):
            give_gradients(params, step)
            optimizer.step()
            schedule.step()
        return bits(params)

    alone = parameters()
    want = run(alone, optim.AdamW(alone))

    def work(rank: int) -> list[bytes]:
        params = parameters()
        return run(params, ZeroRedundancyOptimizer(params, optim.AdamW))

    assert run_ranks(2, work).results() == [want] * 2


def test_parameters_of_several_dtypes_are_divided_dtype_by_dtype() -> None:
    dtypes = (np.float32, np.float64, ml_dtypes.bfloat16, np.float16, np.complex64, np.float32)

    def mixed() -> list[Any]:
        return [param for dtype in dtypes for param in parameters(((9, 5), (17,)), dtype)]

    alone = mixed()
    train(alone, optim.AdamW(alone, lr=0.01))

    def work(rank: int, as_view: bool) -> tuple[list[bytes], Any]:
        params = mixed()
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, parameters_as_bucket_view=as_view, lr=0.01)
        train(params, optimizer)
        return bits(params), optimizer.stats()

    for as_view in (False, True):
        results = run_ranks(3, work, as_view).results()
        assert [got for got, _ in results] == [bits(alone)] * 3
        assert sum(stats["own_elements"] for _, stats in results) == results[0][1]["elements"] == 6 * 62


def test_a_closure_is_called_once_with_gradients_recorded_and_its_loss_returned() -> None:
    def work(rank: int) -> tuple[float, int]:
        params, calls = parameters(((4, 3),)), []
        optimizer = ZeroRedundancyOptimizer(params, optim.SGD, lr=0.1)

        def closure() -> Tensor:
            calls.append(1)
            optimizer.zero_grad()
            loss = (params[0] * params[0]).sum()
            loss.backward()
            return loss

        first = float(optimizer.step(closure))
        assert float(optimizer.step(closure)) < first
        return first, len(calls)

    assert {calls for _, calls in run_ranks(2, work).results()} == {2}


def test_hooks_run_once_around_a_step() -> None:
    def work(rank: int) -> list[str]:
        params, seen = parameters(), []
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
        optimizer.register_step_post_hook(lambda *_: seen.append("post"))
        everywhere = optim.optimizer.register_optimizer_step_post_hook(lambda own, *_: seen.append(type(own).__name__))
        try:
            train(params, optimizer, range(1))
        finally:
            everywhere.remove()
        return seen

    (seen,) = run_ranks(1, work).results()
    assert seen == ["pre", "post", "ZeroRedundancyOptimizer"]


@pytest.mark.parametrize("as_view", [False, True])
def test_parameters_may_be_given_other_memory(as_view: bool) -> None:
    def run(params: list[Any], optimizer: Any) -> list[bytes]:
        train(params, optimizer, range(2))
        for param in params:
            param.data = param.detach().clone() * 2
        train(params, optimizer, range(2, 4))
        return bits(params)

    alone = parameters()
    want = run(alone, optim.AdamW(alone))

    def work(rank: int) -> list[bytes]:
        params = parameters()
        return run(params, ZeroRedundancyOptimizer(params, optim.AdamW, parameters_as_bucket_view=as_view))

    assert run_ranks(3, work).results() == [want] * 3


def test_the_step_counts_as_a_write_of_every_parameter_with_a_gradient() -> None:
    def work(rank: int) -> bool:
        params = parameters()
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW)
        before = [param._version for param in params]
        give_gradients(params, 0, without=(1,))
        optimizer.step()
        return [param._version > old for param, old in zip(params, before, strict=True)] == [
            number != 1 for number in range(len(params))
        ]

    assert run_ranks(2, work).results() == [True, True]


def test_views_share_one_array_with_the_parameters() -> None:
    def work(rank: int) -> bool:
        params, _ = divided("AdamW", parameters_as_bucket_view=True)
        addresses = [param.data_ptr() for param in params if param.numel()]
        sizes = [param.numel() * 4 for param in params if param.numel()]
        return [b - a for a, b in pairwise(addresses)] == sizes[:-1]

    assert run_ranks(2, work).results() == [True, True]


class Rooted(optim.Adam):
    """Its update looks at the whole parameter, so it is not divided in flat ranges."""

    def _update(self, group: dict[str, Any]) -> None:
        for param in group["params"]:
            if param._grad is not None:
                param._grad = param._grad / (param._grad * param._grad).sum().sqrt()
        super()._update(group)


class Signed(optim.Optimizer):
    """A class of one's own that says that its update is elementwise."""

    elementwise = True

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def _update(self, group: dict[str, Any]) -> None:
        for param in group["params"]:
            if param._grad is not None:
                count = self.state[param].setdefault("seen", 0)
                self.state[param]["seen"] = count + 1
                param._array[...] -= np.sign(param._grad._array) * np.float32(group["lr"])


@pytest.mark.parametrize(("cls", "cut"), [(Rooted, False), (Signed, True)])
def test_classes_of_ones_own_are_divided_as_they_allow(cls: Any, cut: bool) -> None:
    assert supported_optimizers.is_elementwise(cls) is cut
    alone = parameters(SHAPES[:3])
    undivided = cls(alone, lr=0.1)
    train(alone, undivided)

    def work(rank: int) -> tuple[list[bytes], Any]:
        params = parameters(SHAPES[:3])
        optimizer = ZeroRedundancyOptimizer(params, cls, lr=0.1)
        train(params, optimizer)
        return bits(params), on_one(optimizer, rank)

    results = run_ranks(2, work).results()
    assert [got for got, _ in results] == [bits(alone)] * 2
    assert flat_state(results[0][1]) == flat_state(undivided.state_dict())


def test_every_optimizer_is_cut_kept_whole_or_refused() -> None:
    classes = {name for name in optim.__all__ if isinstance(getattr(optim, name), type)} - {"Optimizer"}
    listed = {cls.__name__ for cls, _ in ALL.values()}
    assert classes == listed | {"LBFGS"}
    assert {cls.__name__ for cls, _ in CUT.values()} == {
        name for name in classes if supported_optimizers.is_elementwise(getattr(optim, name))
    }


def test_frozen_parameters_stay_as_they_are() -> None:
    def work(rank: int) -> bool:
        model = nn.Linear(9, 5)
        model.bias.requires_grad_(False)
        for param in model.parameters():
            param.detach().fill_(1.0)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, lr=0.1)
        model(Tensor._wrap(np.ones((2, 9), np.float32))).sum().backward()
        optimizer.step()
        return bool((model.bias == 1).all()) and not bool((model.weight == 1).any())

    assert run_ranks(2, work).results() == [True, True]


@pytest.mark.parametrize("stepped", [False, True])
def test_options_that_a_schedule_has_set_outlive_another_group(stepped: bool) -> None:
    def work(rank: int) -> tuple[list[float], list[float]]:
        found = []
        for make in (optim.AdamW, lambda params, **given: ZeroRedundancyOptimizer(params, optim.AdamW, **given)):
            params = parameters()
            optimizer = make(params[:4], lr=0.01)
            if stepped:
                give_gradients(params, 0)
                optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.5
            optimizer.add_param_group({"params": params[4:]})
            give_gradients(params, 1)
            optimizer.step()
            found.append([group["lr"] for group in optimizer.param_groups] + [float(params[0].sum())])
        return found[0], found[1]

    for whole, parts in run_ranks(2, work).results():
        assert whole == parts
        assert parts[:2] == [0.5, 0.01]
