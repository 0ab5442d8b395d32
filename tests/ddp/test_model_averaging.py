"""Averagers and their optimizers beside a plain account of what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from resilin import distributed as dist
from resilin import elastic, nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp.comm_hooks.debugging_hooks import noop_hook
from resilin.ddp.comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from resilin.ddp.model_averaging import (
    DiLoCoOptimizer,
    HierarchicalModelAverager,
    PeriodicModelAverager,
    PostLocalSGDOptimizer,
)
from resilin.ddp.model_averaging.utils import average_parameters
from resilin.errors import CollectiveMismatch, UsageError
from resilin.testing.ranks import run_ranks

LR, SHAPE = 0.1, (3, 2)


class Line(nn.Module):
    """loss = (parameter * gradient).sum(): the gradient is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(zeros())
        self.spare = nn.Parameter(zeros())
        self.spare.requires_grad_(False)

    def forward(self, gradient: np.ndarray) -> Tensor:
        return (self.weight * Tensor._wrap(gradient)).sum()


def zeros() -> Tensor:
    return Tensor._wrap(np.zeros(SHAPE, np.float32))


def gradient(step: int, rank: int) -> np.ndarray:
    return np.random.default_rng([step, rank]).standard_normal(SHAPE).astype(np.float32)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda rank: PeriodicModelAverager(4 + rank), "PeriodicModelAverager: period is 4 on rank 0 and 5 on rank 1"),
        (
            lambda rank: PeriodicModelAverager(4, warmup_steps=3 * rank),
            "PeriodicModelAverager: warmup_steps is 0 on rank 0 and 3 on rank 1",
        ),
        (
            lambda rank: HierarchicalModelAverager({2: 1 + rank, 4: 2}),
            r"HierarchicalModelAverager: period_group_size_dict is \[\[2, 1\], \[4, 2\]\] on rank 0 and \[\[2, 2\]",
        ),
    ],
)
def test_averagers_that_differ_between_ranks_are_named_before_the_first_average(made: Any, said: str) -> None:
    def work(rank: int) -> None:
        def average() -> None:
            made(rank).average_parameters(Line().parameters())

        with pytest.raises(CollectiveMismatch, match=said):
            average()

    run_ranks(2, work, abort=False).results()


def test_an_averager_that_goes_on_elsewhere_in_its_period_is_named() -> None:
    def work(rank: int) -> None:
        averager = PeriodicModelAverager(4)
        averager.load_state_dict({"step": 8 + 3 * rank})
        with pytest.raises(CollectiveMismatch, match="place in the period is 0 on rank 0 and 3 on rank 1"):
            averager.average_parameters(Line().parameters())
        averager.load_state_dict({"step": 8 + 4 * rank})
        averager.average_parameters(Line().parameters())

    run_ranks(2, work, abort=False).results()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (lambda rank: {"period": 2 + rank}, "period is 2 on rank 0 and 3 on rank 1"),
        (
            lambda rank: {"period": 2, "outer": lambda params: optim.SGD(params, lr=0.5 + rank)},
            r"lr of group 0 of the outer optimizer is 0\.5 on rank 0 and 1\.5 on rank 1",
        ),
        (
            lambda rank: {"period": 2, "outer": [optim.SGD, optim.Adam][rank]},
            "outer optimizer is SGD on rank 0 and Adam on rank 1",
        ),
    ],
)
def test_diloco_that_differs_between_ranks_is_named_in_the_first_step(options: Any, said: str) -> None:
    def work(rank: int) -> None:
        module = Line()
        optimizer = DiLoCoOptimizer(optim.SGD(module.parameters(), lr=LR), **options(rank))
        module(gradient(0, rank)).backward()
        with pytest.raises(CollectiveMismatch, match=f"DiLoCoOptimizer: {said}"):
            optimizer.step()

    run_ranks(2, work, abort=False).results()


def test_parameters_that_differ_where_diloco_was_made_are_named_in_the_first_step() -> None:
    def work(rank: int, named: bool) -> None:
        module = Line()
        module.weight._array[0, 0] = rank
        entries: Any = [module.spare, module.weight]
        if named:
            entries = [("spare", module.spare), ("weight", module.weight)]
        optimizer = DiLoCoOptimizer(optim.SGD(entries, lr=LR), 2)
        module(gradient(0, rank)).backward()
        said = (
            r"DiLoCoOptimizer: the checksum of parameter 1 \(group 0" + (", weight" if named else "") + r"\) of shape "
        )
        with pytest.raises(CollectiveMismatch, match=said + r"\[3, 2\].* on rank 0 and .* on rank 1; .*rank 0's"):
            optimizer.step()

    for named in (False, True):
        run_ranks(2, work, named, abort=False).results()


def test_parameters_that_are_made_equal_only_after_diloco_was_made_are_named() -> None:
    """Its anchor, from which outer steps go, is not."""

    def work(rank: int) -> None:
        module = Line()
        module.weight._array[0, 0] = rank
        optimizer = DiLoCoOptimizer(sgd(module), 2)
        module.weight._array[0, 0] = 0
        module(gradient(0, rank)).backward()
        with pytest.raises(CollectiveMismatch, match="the checksum of parameter 0"):
            optimizer.step()

    run_ranks(2, work, abort=False).results()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda o: o.outer.param_groups[0].update(lr=0.1), r"lr of group 0 .* is 0\.7 on rank 0 and 0\.1 on rank 1"),
        (lambda o: o.outer.param_groups[0].update(momentum=0.5), r"momentum of group 0 .* is 0\.9 on rank 0 and 0\.5"),
        (
            lambda o: o.outer.param_groups[0].update(nesterov=False),
            "nesterov of group 0 .* is True on rank 0 and False",
        ),
        (lambda o: setattr(o, "period", 1), "period is 3 on rank 0 and 1 on rank 1"),
    ],
)
def test_what_one_rank_changes_later_is_named_in_the_next_outer_step(change: Any, said: str) -> None:
    def work(rank: int) -> None:
        module = Line()
        optimizer = DiLoCoOptimizer(sgd(module), 3)

        def train(steps: int) -> None:
            for step in range(steps):
                optimizer.zero_grad()
                module(gradient(step, rank)).backward()
                optimizer.step()

        train(4)
        if rank:
            change(optimizer)
        before = optimizer._anchor[0].detach().numpy().copy()
        with pytest.raises(CollectiveMismatch, match=f"DiLoCoOptimizer: {said}"):
            train(2)
        np.testing.assert_array_equal(optimizer._anchor[0].detach().numpy(), before)

    run_ranks(2, work, abort=False).results()


def test_a_schedule_of_the_outer_rate_that_all_ranks_follow_is_allowed() -> None:
    def work(rank: int) -> bytes:
        module = Line()
        optimizer = DiLoCoOptimizer(sgd(module), 2)
        for step in range(6):
            optimizer.zero_grad()
            module(gradient(step, rank)).backward()
            optimizer.step()
            optimizer.outer.param_groups[0]["lr"] *= 0.9
        return module.weight.detach().numpy().tobytes()

    assert len(set(run_ranks(2, work).results())) == 1


def weights(world: int, steps: int, made: Callable[[nn.Module], Any]) -> list[list[np.ndarray]]:
    """By rank and step: the parameter after each step of what `made(module)` gives, an optimizer."""

    def work(rank: int) -> list[np.ndarray]:
        module = Line()
        optimizer = made(module)
        seen = []
        for step in range(steps):
            optimizer.zero_grad()
            module(gradient(step, rank)).backward()
            optimizer.step()
            seen.append(module.weight.detach().numpy().copy())
        return seen

    return run_ranks(world, work).results()


def expected(world: int, steps: int, groups: Callable[[int], list[list[int]]]) -> list[list[np.ndarray]]:
    """SGD on each rank alone; after step s the ranks of each of `groups(s)` are averaged."""
    now = [np.zeros(SHAPE) for _ in range(world)]
    seen: list[list[np.ndarray]] = [[] for _ in range(world)]
    for step in range(steps):
        now = [each - LR * gradient(step, rank) for rank, each in enumerate(now)]
        for members in groups(step):
            mean = np.mean([now[rank] for rank in members], axis=0)
            for rank in members:
                now[rank] = mean
        for rank in range(world):
            seen[rank].append(now[rank])
    return seen


def assert_close(got: list[list[np.ndarray]], want: list[list[np.ndarray]]) -> None:
    np.testing.assert_allclose(np.array(got), np.array(want), rtol=1e-5, atol=1e-6)


def sgd(module: nn.Module) -> optim.SGD:
    return optim.SGD([param for param in module.parameters() if param.requires_grad], lr=LR)


def local_sgd(averager: Callable[[], Any]) -> Callable[[nn.Module], PostLocalSGDOptimizer]:
    return lambda module: PostLocalSGDOptimizer(sgd(module), averager())


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("world", [1, 3])
def test_parameters_are_averaged_at_the_end_of_the_warm_up_and_every_period_later(world: int, warmup: int) -> None:
    got = weights(world, 8, local_sgd(lambda: PeriodicModelAverager(2, warmup)))
    everybody = [list(range(world))]
    assert_close(got, expected(world, 8, lambda step: everybody if step >= warmup and (step - warmup) % 2 == 0 else []))
    last = warmup + (7 - warmup) // 2 * 2
    assert len({ranks[last].tobytes() for ranks in got}) == 1


def test_the_largest_group_whose_period_divides_the_step_is_averaged() -> None:
    def groups(step: int) -> list[list[int]]:
        if step < 2:
            return []
        return [[0, 1, 2, 3]] if step % 4 == 0 else [[0, 1], [2, 3]] if step % 2 == 0 else []

    got = weights(4, 9, local_sgd(lambda: HierarchicalModelAverager({2: 2, 4: 4}, warmup_steps=2)))
    assert_close(got, expected(4, 9, groups))


def test_averages_count_their_bytes_and_leave_out_what_has_no_gradient() -> None:
    def work(rank: int) -> tuple[int, float]:
        module = Line()
        module.spare._array[...] = rank
        averager = PeriodicModelAverager(3)
        for step in range(4):
            module.zero_grad()
            module(gradient(step, rank)).backward()
            averager.average_parameters(module.parameters())
        return averager.traffic.payload_bytes, float(module.spare._array[0, 0])

    assert run_ranks(2, work).results() == [(2 * 24, 0.0), (2 * 24, 1.0)]


def test_parameters_of_several_dtypes_keep_theirs() -> None:
    def work(rank: int) -> list[Any]:
        params = [nn.Parameter(Tensor._wrap(np.full(2, rank + 1, dtype))) for dtype in (np.float32, np.float64)]
        average_parameters(params, dist.default_group())
        return [(param.detach().numpy().dtype.name, param.tolist()) for param in params]

    assert run_ranks(2, work).results() == [[("float32", [1.5, 1.5]), ("float64", [1.5, 1.5])]] * 2


def test_after_local_steps_with_the_hook_ranks_are_equal_at_each_average() -> None:
    """Plain averaging for 4 steps, then gradients of the host only and parameters of all every 3 steps."""

    def work(rank: int) -> list[bytes]:
        module = Line()
        model = DDP(module)
        model.register_comm_hook(PostLocalSGDState(None, None, 4), post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(sgd(module), PeriodicModelAverager(3, warmup_steps=4))
        seen = []
        for step in range(8):
            optimizer.zero_grad()
            model(gradient(step, rank)).backward()
            optimizer.step()
            seen.append(module.weight.detach().numpy().tobytes())
        return seen

    ranks = run_ranks(4, work, transport="hosts").results()
    assert [len({seen[step] for seen in ranks}) for step in range(8)] == [1, 1, 1, 1, 1, 2, 2, 1]


def test_the_optimizer_around_another_saves_the_step_of_its_averager() -> None:
    def work(rank: int) -> None:
        module = Line()
        first = PostLocalSGDOptimizer(sgd(module), PeriodicModelAverager(2))
        for step in range(3):
            module(gradient(step, rank)).backward()
            first.step()
        other = PostLocalSGDOptimizer(sgd(module), PeriodicModelAverager(2))
        other.load_state_dict(first.state_dict())
        assert other.averager.step == 3
        with pytest.warns(UserWarning, match="no step of an averager"):
            other.load_state_dict(sgd(module).state_dict())
        assert other.averager.step == 0
        scheduler = optim.lr_scheduler.StepLR(other, 1, 0.5)
        other.step()
        scheduler.step()
        assert other.optim.param_groups[0]["lr"] == LR / 2
        assert "PostLocalSGDOptimizer of SGD" in repr(other)

    run_ranks(1, work).results()


def diloco(period: int, **options: Any) -> Callable[[nn.Module], DiLoCoOptimizer]:
    return lambda module: DiLoCoOptimizer(sgd(module), period, **options)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_diloco_takes_an_outer_nesterov_step_along_the_mean_of_the_ranks_ways(world: int) -> None:
    period, steps = 3, 10
    got = weights(world, steps, diloco(period))
    anchor, momentum = np.zeros(SHAPE), None
    now = [np.zeros(SHAPE) for _ in range(world)]
    for step in range(steps):
        now = [each - LR * gradient(step, rank) for rank, each in enumerate(now)]
        if (step + 1) % period == 0:
            outer = anchor - np.mean(now, axis=0)
            momentum = outer if momentum is None else 0.9 * momentum + outer
            anchor = anchor - 0.7 * (outer + 0.9 * momentum)
            now = [anchor] * world
        for rank in range(world):
            np.testing.assert_allclose(got[rank][step], now[rank], rtol=1e-4, atol=1e-5)
    assert len({ranks[period * 3 - 1].tobytes() for ranks in got}) == 1


def test_diloco_with_an_outer_sgd_of_rate_1_averages_the_parameters() -> None:
    def plain(params: list[Tensor]) -> optim.Optimizer:
        return optim.SGD(params, lr=1.0)

    got = weights(3, 8, diloco(4, outer=plain))
    assert_close(got, expected(3, 8, lambda step: [[0, 1, 2]] if step % 4 == 3 else []))


def test_diloco_sends_the_parameters_once_in_a_period_and_says_when_ranks_are_equal() -> None:
    def work(rank: int) -> tuple[list[bool], dict[str, int], int]:
        module = Line()
        model = DDP(module)
        model.register_comm_hook(None, noop_hook)
        optimizer = DiLoCoOptimizer(sgd(module), 2)
        seen = []
        for step in range(5):
            optimizer.zero_grad()
            model(gradient(step, rank)).backward()
            optimizer.step()
            seen.append(optimizer.synchronized)
        return seen, optimizer.traffic.stats(), model.stats()["traffic"]["payload_bytes"]

    counted = {"payload_bytes": 2 * 24, "wire_bytes": 2 * 24, "collectives": 2, "copied_bytes": 0, "copies": 0}
    assert run_ranks(2, work).results() == [([False, True, False, True, False], counted, 0)] * 2


def test_diloco_goes_on_from_its_state_with_the_same_bits() -> None:
    def work(rank: int, interrupted: bool) -> bytes:
        module = Line()
        optimizer = DiLoCoOptimizer(optim.AdamW([module.weight], lr=LR), 3)
        for step in range(11):
            if interrupted and step == 7:
                saved, kept = optimizer.state_dict(), module.weight.detach().numpy().copy()
                module = Line()
                module.weight._array[...] = kept
                optimizer = DiLoCoOptimizer(optim.AdamW([module.weight], lr=LR), 3)
                optimizer.load_state_dict(saved)
            optimizer.zero_grad()
            module(gradient(step, rank)).backward()
            optimizer.step()
        return module.weight.detach().numpy().tobytes()

    assert run_ranks(2, work, False).results() == run_ranks(2, work, True).results()


def test_what_diloco_knows_after_an_outer_step_is_equal_on_all_ranks_for_elastic_state() -> None:
    def work(rank: int) -> str:
        module = Line()
        optimizer = DiLoCoOptimizer(sgd(module), 2)
        state = elastic.State(snapshot=True, model=module, optimizer=optimizer)
        for step in range(4):
            optimizer.zero_grad()
            module(gradient(step, rank)).backward()
            optimizer.step()
        return state.fingerprint()

    assert len(set(run_ranks(3, work).results())) == 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda module: PeriodicModelAverager(0),
            "period, which counts steps, must be an integer of at least 1, got 0",
        ),
        (lambda module: PeriodicModelAverager(1.5), r"period, .* must be an integer of at least 1, got 1\.5"),  # type: ignore[arg-type]
        (lambda module: PeriodicModelAverager(2, -1), "warmup_steps must be an integer of at least 0, got -1"),
        (lambda module: PeriodicModelAverager(2, 1.5), r"warmup_steps must be an integer of at least 0, got 1\.5"),  # type: ignore[arg-type]
        (lambda module: PeriodicModelAverager(2, None), "warmup_steps must be an integer of at least 0, got None"),  # type: ignore[arg-type]
        (lambda module: PeriodicModelAverager(True), "period, .* must be an integer of at least 1, got True"),
        (lambda module: PeriodicModelAverager("4"), "period, .* must be an integer of at least 1, got '4'"),  # type: ignore[arg-type]
        (
            lambda module: HierarchicalModelAverager({2: 2}, "1"),
            "warmup_steps must be an integer of at least 0, got '1'",
        ),  # type: ignore[arg-type]
        (lambda module: HierarchicalModelAverager({2: True}), "a group size must be an integer .*, got True"),
        (lambda module: DiLoCoOptimizer(sgd(module), True), "period must be an integer of at least 1, got True"),
        (lambda module: HierarchicalModelAverager({}), "must not be empty"),
        (lambda module: HierarchicalModelAverager({0: 1}), "a period must be an integer of at least 1, got 0"),
        (lambda module: HierarchicalModelAverager({4: 2, 2: 2}), "positive periods and group sizes that grow"),
        (lambda module: HierarchicalModelAverager({2: 1}), "the last group has 1 ranks, it must have all 2"),
        (lambda module: DiLoCoOptimizer(sgd(module), 0), "period must be an integer of at least 1, got 0"),
        (lambda module: diloco(2)(module).add_param_group({"params": []}), "parameters cannot be added later"),
        (
            lambda module: diloco(2)(module).load_state_dict(sgd(module).state_dict()),
            "with an anchor .* got one without",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[nn.Module], Any], said: str) -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match=said):
            make(Line())

    run_ranks(2, work).results()


def test_what_is_no_optimizer_averager_or_parameter_is_refused() -> None:
    module = Line()
    with pytest.raises(TypeError, match="expected an Optimizer, got Line"):
        DiLoCoOptimizer(module, 2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a ModelAverager, got int"):
        PostLocalSGDOptimizer(sgd(module), 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected parameters or an optimizer's param_groups, got int"):
        run_ranks(1, lambda rank: PeriodicModelAverager(2).average_parameters([3])).results()


def test_numbers_of_numpy_are_taken_as_pythons() -> None:
    made = PeriodicModelAverager(np.int64(4), np.int32(2))  # type: ignore[arg-type]
    assert [(type(number), number) for number in (made.period, made.warmup_steps)] == [(int, 4), (int, 2)]


def test_a_period_of_1_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="a period of 1 averages the parameters in every step"):
        PeriodicModelAverager(1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: HierarchicalModelAverager([1]),
            r"period_group_size_dict must be a mapping .*, got \[1\]",
        ),
        (
            lambda: HierarchicalModelAverager({"a": 1}),
            "HierarchicalModelAverager: a period must be an integer of at least 1, got 'a'",
        ),
        (lambda: DiLoCoOptimizer(inner(), period="a"), "period must be an integer of at least 1, got 'a'"),
        (lambda: DiLoCoOptimizer(inner(), period=0), "period must be an integer of at least 1, got 0"),
        (lambda: DiLoCoOptimizer(inner(), 2, outer=5), "outer must be a function .*, got 5"),
        (lambda: DiLoCoOptimizer(inner(), 2, outer=lambda params: 5), "outer must return an Optimizer.*, got 5"),
    ],
)
def test_arguments_that_have_no_meaning_are_named(make: Any, says: str) -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match=says):
            make()

    run_ranks(1, work).results()


def inner() -> optim.Optimizer:
    return optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)


def test_parameters_that_one_rank_cannot_average_are_refused_by_all() -> None:
    def work(rank: int) -> None:
        params: Any = [1] if rank == 1 else [zeros()]
        with pytest.raises(UsageError, match="model averaging: expected parameters, got int") as caught:
            average_parameters(params, None)
        assert ("rank 1 refused its arguments" in str(caught.value)) == (rank == 0)
        dist.barrier()

    run_ranks(2, work).results()
