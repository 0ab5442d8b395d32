"""`join()`: ranks with different numbers of batches train as one process fed with the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import extent
import numpy as np
import pytest
from ddp_models import (
    BATCH,
    IN,
    OUT,
    assert_close,
    assert_same_bits,
    batches,
    copies,
    gradients,
    loss_of,
    make_model,
    mean_gradients,
    tensor,
    values,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin import distributed as dist
from resilin import nn, optim
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import averaging
from resilin.ddp.comm_hooks.default_hooks import allreduce_hook
from resilin.ddp.comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from resilin.distributed.api.join import Join, Joinable, JoinHook
from resilin.errors import CollectiveMismatch, DistBackendError, DistError, UsageError, UsageTypeError
from resilin.testing.ranks import run_ranks

LR = 0.1


def data_of(counts: Sequence[int], seed: int = 0) -> list[list[Tensor]]:
    return [batches(count, seed + rank) for rank, count in enumerate(counts)]


def train_alone(module: nn.Module, data: Sequence[Sequence[Tensor]], by_initial: bool = True, every: int = 1) -> Any:
    """One process: each step sums the losses of the ranks that still have a batch, over the number of ranks.

    every: batches of a rank whose gradients are accumulated before a step; what is left at the end counts in the next.
    """
    optimizer = optim.SGD(module.parameters(), lr=LR)
    longest = max(map(len, data))
    optimizer.zero_grad()
    for step in range(every - 1, longest, every):
        group = [[x for x in own[step - every + 1 : step + 1]] for own in data]
        share = len(data) if by_initial else sum(1 for own in group if own)
        for own in group:
            for x in own:
                (loss_of(module, x) / share).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module


def train_joined(
    module: nn.Module, own: Sequence[Tensor], by_initial: bool = True, every: int = 1, hook: Any = None, **options: Any
) -> DDP:
    model = DDP(module, bucket_cap_mb=1e-4, **options)
    if hook is not None:
        model.register_comm_hook(*hook)
    optimizer = optim.SGD(model.parameters(), lr=LR)
    with model.join(divide_by_initial_world_size=by_initial):
        for number, x in enumerate(own):
            if (number + 1) % every:
                with model.no_sync():
                    loss_of(model, x).backward()
                continue
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


@pytest.mark.slow
@settings(max_examples=extent.examples(25), deadline=None)
@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any),
    by_initial=st.booleans(),
    every=st.integers(1, 2),
    beside=st.booleans(),
    options=st.fixed_dictionaries(
        {"gradient_as_bucket_view": st.booleans()},
        optional={"find_unused_parameters": st.just(True), "static_graph": st.just(True)},
    ),
)
def test_uneven_inputs_equal_one_process_fed_with_the_same_batches(
    counts: list[int], by_initial: bool, every: int, beside: bool, options: dict[str, Any]
) -> None:
    data = data_of(counts)
    modules = copies(make_model(), len(counts) + 1)
    expected = values(train_alone(modules[-1], data, by_initial, every))

    def train(rank: int) -> list[np.ndarray]:
        return values(train_joined(modules[rank], data[rank], by_initial, every, **options).module)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(averaging, "overlaps", lambda group: beside)
        results = run_ranks(len(counts), train).results()
    assert_close(results[0], expected)
    assert_same_bits(results)


@pytest.mark.parametrize("by_initial", [True, False])
@pytest.mark.parametrize("hook", ["allreduce", "powerSGD"])
def test_hooks_reduce_in_shadowed_steps_too(hook: str, by_initial: bool) -> None:
    counts = (3, 1, 2)
    data, modules = data_of(counts), copies(make_model(), 4)
    expected = values(train_alone(modules[-1], data, by_initial))

    def train(rank: int) -> list[np.ndarray]:
        state = PowerSGDState(None, matrix_approximation_rank=8, start_powerSGD_iter=2)
        chosen = (None, allreduce_hook) if hook == "allreduce" else (state, powerSGD_hook)
        return values(train_joined(modules[rank], data[rank], by_initial, hook=chosen).module)

    results = run_ranks(3, train).results()
    assert_close(results[0], expected, rtol=1e-4, atol=1e-5)
    assert_same_bits(results)


def test_buffers_follow_the_ranks_that_train_and_end_equal() -> None:
    counts = (1, 3, 2)
    data = data_of(counts)
    modules = copies(nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT)), 3)

    def train(rank: int) -> list[np.ndarray]:
        return values(train_joined(modules[rank], data[rank]).module)

    results = run_ranks(3, train).results()
    assert_same_bits(results)
    assert int(results[0][-1]) == 3  # num_batches_tracked of the rank that trained to the end


def test_ranks_whose_graphs_differ_join_with_find_unused_parameters() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(IN, OUT), nn.Linear(IN, OUT)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x) if float(x.sum()) > 0 else self.b(x)

    counts = (2, 4, 1)
    data, modules = data_of(counts, seed=5), copies(Either(), 4)
    expected = values(train_alone(modules[-1], data))
    results = run_ranks(
        3, lambda rank: values(train_joined(modules[rank], data[rank], find_unused_parameters=True).module)
    ).results()
    assert_close(results[0], expected)
    assert_same_bits(results)


def test_gradients_of_a_rank_that_joined_are_those_of_the_others() -> None:
    """So a sharded optimizer, whose step a rank without data runs too, updates its share rightly."""
    seen: dict[int, list[Any]] = {0: [], 1: []}

    class Watch(Joinable, JoinHook):
        def __init__(self, params: Any) -> None:
            super().__init__()
            self.params = list(params)

        def step(self) -> None:
            seen[dist.get_rank()].append([param.grad.numpy().copy() for param in self.params])

        main_hook = step

        def join_hook(self, **kwargs: Any) -> JoinHook:
            return self

        join_device = property(lambda self: Tensor([0.0]).device)
        join_process_group = property(lambda self: None)

    modules, data = copies(make_model(), 2), data_of((1, 3))

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        optimizer = Watch(model.parameters())
        with Join([model, optimizer]):
            for x in data[rank]:
                model.zero_grad()
                loss_of(model, x).backward()
                optimizer.step()

    run_ranks(2, train).results()
    assert len(seen[0]) == len(seen[1]) == 3
    for zero, one in zip(seen[0], seen[1], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(zero, one, strict=True))


def test_early_termination_ends_all_ranks_and_the_model_trains_on() -> None:
    modules, data = copies(make_model(), 2), data_of((2, 3))

    def train(rank: int) -> tuple[str, list[np.ndarray]]:
        model = DDP(modules[rank])

        def epoch() -> None:
            with model.join(throw_on_early_termination=True):
                for x in data[rank]:
                    loss_of(model, x).backward()

        with pytest.raises(DistError) as error:
            epoch()
        model.zero_grad()
        loss_of(model, data[rank][0]).backward()
        return str(error.value), [param.grad.numpy() for param in model.parameters()]

    (zero, first), (one, second) = run_ranks(2, train).results()
    assert zero == "Join, rank 0: exhausted all inputs, but rank 1 still had some"
    assert "rank 0 exhausted all inputs; throwing on all ranks" in one
    assert_same_bits([first, second])


def test_evaluation_inside_the_block_needs_no_other_rank() -> None:
    modules, data = copies(make_model(), 2), data_of((1, 2))

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(modules[rank])
        with model.join():
            for x in data[rank]:
                loss_of(model, x).backward()
                if rank == 1:
                    model.eval()
                    with no_grad():
                        model(x)
                    model.train()
        return values(model.module)

    assert_same_bits(run_ranks(2, train).results())


@pytest.mark.parametrize("throws", [False, True])
def test_sync_batch_norm_is_refused_unless_ranks_end_together(throws: bool) -> None:
    modules = copies(nn.Sequential(nn.Linear(IN, OUT), nn.SyncBatchNorm(OUT)), 2)
    data = data_of((2, 2) if throws else (0, 2))

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        with model.join(throw_on_early_termination=throws):
            for x in data[rank]:
                loss_of(model, x).backward()

    outcome = run_ranks(2, train, abort=False)
    if throws:
        assert not outcome.errors
    else:
        assert isinstance(outcome.errors[1], UsageError)
        assert "the module has a SyncBatchNorm" in str(outcome.errors[1])
        assert isinstance(outcome.errors[0], DistBackendError | UsageError)
        assert "SyncBatchNorm" in str(outcome.errors[0])


def test_ranks_that_disagree_about_an_iteration_are_named() -> None:
    modules = copies(nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT)), 2)

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        with model.join():
            if rank:
                with model.no_sync():
                    model(batches(1)[0])
            else:
                model(batches(1)[0])

    outcome = run_ranks(2, train, abort=False)
    assert outcome.errors.keys() == {0, 1}
    for error in outcome.errors.values():
        assert isinstance(error, CollectiveMismatch)
        assert (
            "the forward of rank 0 broadcasts buffers and reduces gradients, that of rank 1 broadcasts no buffers and "
            "reduces no gradients" in str(error)
        )


def test_fixed_shards_have_no_join_and_a_disabled_one_changes_nothing() -> None:
    def refused(rank: int) -> None:
        with pytest.raises(UsageError, match=r"join\(\) has no meaning with shards"):
            DDP(make_model(), shards=2).join()

    run_ranks(1, refused).results()
    modules, data = copies(make_model(), 2), data_of((2, 2))

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(modules[rank])
        with model.join(enable=False):
            for x in data[rank]:
                loss_of(model, x).backward()
        return [param.grad.numpy() for param in model.parameters()]

    assert_same_bits(run_ranks(2, train).results())


def test_after_the_block_means_are_over_all_ranks_again() -> None:
    modules, inputs = copies(make_model(), 2), [tensor(np.ones((BATCH, IN))), tensor(np.zeros((BATCH, IN)))]

    def train(rank: int) -> list[Any]:
        model = DDP(modules[rank])
        with model.join(divide_by_initial_world_size=False):
            for _ in range(rank):
                loss_of(model, inputs[0]).backward()
        model.zero_grad()
        loss_of(model, inputs[rank]).backward()
        return gradients(model)

    results = run_ranks(2, train).results()
    assert_close(results[0], mean_gradients(modules[0], inputs))


def test_ranks_that_divide_by_different_worlds_are_named() -> None:
    def train(rank: int) -> None:
        model = DDP(make_model())
        with pytest.raises(
            CollectiveMismatch, match="divide_by_initial_world_size is False on rank 0 and True on rank 1"
        ):
            model.join(divide_by_initial_world_size=bool(rank)).__enter__()
        with pytest.raises(UsageTypeError, match="divide_by_initial_world_size must be True or False, got 'x'"):
            model.join(divide_by_initial_world_size="x")  # type: ignore[arg-type]

    run_ranks(2, train).results()


def assert_refused(train: Callable[[int], None], rule: str) -> None:
    """Both ranks hear of the rule, from the one that breaks it."""
    errors = run_ranks(2, train, abort=False).errors
    assert errors.keys() == {0, 1}
    assert all(rule in str(error) for error in errors.values()), errors
    assert any(isinstance(error, UsageError) for error in errors.values())


@pytest.mark.parametrize("kind", ["two forwards", "no backward", "one without gradients", "one in no_sync"])
@pytest.mark.parametrize("counts", [(3, 1), (2, 2)])
def test_a_forward_before_the_backward_of_the_last_one_is_refused_with_the_rule(
    kind: str, counts: tuple[int, int]
) -> None:
    modules, data = copies(make_model(), 2), data_of(counts)

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        with model.join():
            for x in data[rank]:
                loss = loss_of(model, x)
                if kind == "two forwards":
                    (loss + loss_of(model, x)).backward()
                elif kind != "no backward":
                    with no_grad() if kind == "one without gradients" else model.no_sync():
                        loss_of(model, x)
                    loss.backward()

    assert_refused(train, "each is followed by one backward: make one forward of what belongs to one backward")


@pytest.mark.parametrize("counts", [(2, 1), (1, 1)])
def test_a_second_backward_of_a_forward_is_refused_with_the_rule(counts: tuple[int, int]) -> None:
    modules, data = copies(make_model(), 2), data_of(counts)

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        with model.join():
            for x in data[rank]:
                loss = loss_of(model, x)
                loss.backward(retain_graph=True)
                loss.backward()

    assert_refused(train, "a second backward began after one forward")


def test_several_forwards_of_one_backward_join_with_all_but_the_last_in_no_sync() -> None:
    counts = (3, 1)
    data, modules = data_of(counts), copies(make_model(), 3)

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(modules[rank])
        optimizer = optim.SGD(model.parameters(), lr=LR)
        with model.join():
            for x in data[rank]:
                optimizer.zero_grad()
                with model.no_sync():
                    first = loss_of(model, x)
                (first + loss_of(model, x)).backward()
                optimizer.step()
        return values(model.module)

    alone = modules[-1]
    optimizer = optim.SGD(alone.parameters(), lr=LR)
    for step in range(max(counts)):
        optimizer.zero_grad()
        for own in data:
            for x in own[step : step + 1]:
                (2 * loss_of(alone, x) / 2).backward()
        optimizer.step()
    results = run_ranks(2, train).results()
    assert_close(results[0], values(alone))
    assert_same_bits(results)


def test_a_forward_left_without_a_backward_before_the_block_says_nothing_inside() -> None:
    modules, data = copies(make_model(), 2), data_of((2, 1))

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        loss_of(model, data[rank][0])
        for _ in range(2):
            with model.join():
                for x in data[rank]:
                    loss_of(model, x).backward()
            loss_of(model, data[rank][0])

    run_ranks(2, train).results()


@pytest.mark.parametrize("ranks", [2, 3])
def test_data_that_ends_before_the_backward_of_its_last_forward_is_refused_with_the_rule(ranks: int) -> None:
    modules, data = copies(make_model(), ranks), data_of((4,) * ranks)

    def train(rank: int) -> None:
        model = DDP(modules[rank])
        with model.join():
            for step, x in enumerate(data[rank]):
                loss = loss_of(model, x)
                if (rank, step) == (1, 2):
                    break
                loss.backward()

    errors = run_ranks(ranks, train, abort=False).errors
    assert isinstance(errors[1], UsageError)
    assert errors.keys() == set(range(ranks))
    assert all("its data ended before the backward of the last forward" in str(e) for e in errors.values()), errors
