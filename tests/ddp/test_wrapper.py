"""DistributedDataParallel: what a user of PyTorch's expects of its gradients, buffers and refusals."""

from __future__ import annotations

import copy
import re
import threading
from typing import Any

import numpy as np
import pytest
from ddp_models import (
    IN,
    OUT,
    assert_close,
    batches,
    copies,
    gradients,
    loss_of,
    make_model,
    mean_gradients,
)

from resilin import bfloat16, nn
from resilin import distributed as dist
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.machine import numeric_fingerprint
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import averaging
from resilin.ddp.mixed_precision import _MixedPrecision
from resilin.distributed.agreement import broadcast
from resilin.errors import CollectiveMismatch, DistBackendError, GroupAborted, UsageError
from resilin.testing.ranks import run_ranks


def test_ranks_that_train_other_parameters_are_told_which() -> None:
    def wrap(rank: int) -> None:
        module = make_model()
        module[2].bias.requires_grad_(rank == 0)
        said = r"2\.bias is of shape \[3\] and dtype float32 on rank 0 and of .*, frozen on rank 1;"
        with pytest.raises(CollectiveMismatch, match=said):
            DDP(module)

    run_ranks(2, wrap).results()


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("bucket_cap_mb", (25, 2), r"bucket_cap_mb=\[1\.0, 25\.0\], rank 1 with bucket_cap_mb=\[1\.0, 2\.0\]"),
        (
            "find_unused_parameters",
            (True, False),
            "find_unused_parameters=True, rank 1 with find_unused_parameters=False",
        ),
        ("static_graph", (False, True), "static_graph=False, rank 1 with static_graph=True"),
        ("skip_all_reduce_unused_params", (False, True), "skip_all_reduce_unused_params=False, rank 1"),
        ("forward_sync_buffers", (True, False), "forward_sync_buffers=True, rank 1 with"),
        (
            "mixed_precision",
            (None, _MixedPrecision(reduce_dtype=bfloat16)),
            r"mixed_precision=None, rank 1 with mixed_precision=_MixedPrecision\(.*reduce_dtype=resilin\.bfloat16",
        ),
    ],
)
def test_ranks_with_other_arguments_are_told_which(name: str, values: tuple[Any, Any], said: str) -> None:
    def wrap(rank: int) -> None:
        with pytest.raises(CollectiveMismatch, match=f"rank 0 was made with {said}"):
            DDP(make_model(), **{name: values[rank]})

    run_ranks(2, wrap).results()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("cap_mb", [25, 1e-4])
@pytest.mark.parametrize("as_view", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_gradients_are_the_mean_over_ranks_and_the_same_bits_on_all(
    monkeypatch: pytest.MonkeyPatch, world: int, cap_mb: float, as_view: bool, beside: bool
) -> None:
    monkeypatch.setattr(averaging, "overlaps", lambda group: beside)
    models, inputs = copies(make_model(), world), batches(world)
    expected = mean_gradients(models[0], inputs)

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(models[rank], bucket_cap_mb=cap_mb, gradient_as_bucket_view=as_view)
        for _ in range(3):
            model.zero_grad()
            loss_of(model, inputs[rank]).backward()
        assert model.stats()["beside_backward"] == beside
        return gradients(model.module)

    results = run_ranks(world, train).results()
    assert_close(results[0], expected)
    for other in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_buckets_are_reduced_at_the_end_on_all_ranks_when_one_has_no_core_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a SyncBatchNorm's collectives would come before them on some ranks and after them on others."""
    monkeypatch.setattr(averaging, "overlaps", lambda group: group.rank() != 1)
    module = nn.Sequential(nn.Linear(IN, IN), nn.SyncBatchNorm(IN), nn.Linear(IN, IN), nn.SyncBatchNorm(IN))
    modules, inputs = [copy.deepcopy(module) for _ in range(3)], batches(3)

    def train(rank: int) -> bool:
        model = DDP(modules[rank], bucket_cap_mb=1e-4)
        for _ in range(3):
            loss_of(model, inputs[rank]).backward()
        return bool(model.stats()["beside_backward"])

    assert run_ranks(3, train).results() == [False] * 3


def test_gradients_are_views_of_the_buckets_also_when_they_are_zeroed_in_place() -> None:
    models, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> int:
        model = DDP(models[rank])
        arrays = set()
        for to_none in (True, False, False, True):
            model.zero_grad(set_to_none=to_none)
            loss_of(model, inputs[rank]).backward()
            arrays.add(tuple(param.grad.data_ptr() for param in model.parameters()))
        assert_close(gradients(model.module), mean_gradients(models[rank], inputs))
        return len(arrays)

    assert run_ranks(2, train).results() == [1, 1]


def test_a_gradient_that_the_user_put_there_is_moved_into_its_bucket() -> None:
    models, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(models[rank])
        for param in model.parameters():
            param.grad = Tensor._wrap(np.ones(param.shape, np.float32))
        loss_of(model, inputs[rank]).backward()
        return gradients(model.module)

    expected = [array + 1 for array in mean_gradients(models[0], inputs)]
    assert_close(run_ranks(2, train).results()[0], expected)


def test_parameters_and_buffers_start_as_those_of_rank_0() -> None:
    models = [nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT)) for _ in range(2)]
    models[0].get_submodule("1").running_mean._array[...] = 5

    def wrap(rank: int) -> dict[str, np.ndarray]:
        return {name: value.numpy().copy() for name, value in DDP(models[rank]).state_dict().items()}

    zero, one = run_ranks(2, wrap).results()
    assert zero.keys() == one.keys()
    assert all(name.startswith("module.") for name in zero)
    assert all(np.array_equal(zero[name], one[name]) for name in zero)
    assert (one["module.1.running_mean"] == 5).all()


@pytest.mark.parametrize("flat_bytes", [1, 1 << 20])
def test_wrapping_a_module_that_is_equal_already_does_not_count_as_a_write(
    monkeypatch: pytest.MonkeyPatch, flat_bytes: int
) -> None:
    monkeypatch.setattr(broadcast, "FLAT_BYTES", flat_bytes)

    def work(rank: int) -> list[bool]:
        module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        with no_grad():
            for tensor in module.parameters():
                tensor.fill_(float("nan"))
            module.get_submodule("0").bias.fill_(rank)
        before = [tensor._writes for tensor in module.parameters()]
        DDP(module)
        return [tensor._writes > count for tensor, count in zip(module.parameters(), before, strict=True)]

    assert run_ranks(2, work).results() == [[False] * 4, [False, True, False, False]]


def test_different_shapes_are_refused_on_every_rank_naming_the_parameter_and_both_shapes() -> None:
    models = [nn.Sequential(nn.Linear(IN, OUT)), nn.Sequential(nn.Linear(IN, OUT + 1))]
    outcome = run_ranks(2, lambda rank: DDP(models[rank]), abort=False)
    assert outcome.errors.keys() == {0, 1}
    for error in outcome.errors.values():
        assert isinstance(error, CollectiveMismatch)
        assert "0.weight is of shape [3, 6] and dtype float32 on rank 0" in str(error)
        assert " and of shape [4, 6] and dtype float32 on rank 1" in str(error)


def test_ranks_that_compute_with_different_kernels_are_warned_once_and_train(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = threading.local()
    monkeypatch.setattr(numeric_fingerprint, "describe", lambda: mine.kernels)
    models = copies(make_model(), 3)

    def wrap(rank: int) -> list[str]:
        mine.kernels = "numpy's kernels" if rank == 2 else "native kernels"
        DDP(models[rank])
        return []

    with pytest.warns(UserWarning, match="rank 0 computes with native kernels; rank 2 with numpy's kernels") as seen:
        run_ranks(3, wrap).results()
    assert len(seen) == 1


@pytest.mark.parametrize("as_view", [True, False])
def test_parameters_converted_after_wrapping_are_refused(as_view: bool) -> None:
    models, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> None:
        model = DDP(models[rank], gradient_as_bucket_view=as_view)
        model.double()
        loss_of(model, inputs[rank].double()).backward()

    outcome = run_ranks(2, train, abort=False)
    assert outcome.errors.keys() == {0, 1}
    refusals = [str(error) for error in outcome.errors.values() if isinstance(error, UsageError)]
    assert refusals
    for text in refusals:
        assert re.search(r"the gradient of 2\.(weight|bias) has shape .* and dtype float64", text)
        assert "dtype float32. Convert parameters before wrapping, or wrap again" in text


def test_after_a_refusal_later_collectives_say_that_this_rank_aborted_the_group_and_why() -> None:
    model = Branches()

    def train(rank: int) -> None:
        wrapped = DDP(model, process_group=dist.default_group(), init_sync=False)
        with pytest.raises(UsageError, match="4 of 6 parameters got no gradient"):
            wrapped(batches(1)[0], "left").sum().backward()
        dist.barrier()

    outcome = run_ranks(2, lambda rank: train(rank) if rank == 0 else dist.barrier(), abort=False)
    text = str(outcome.errors[0])
    assert isinstance(outcome.errors[0], GroupAborted)
    assert "rank 0 aborted the group: UsageError: DistributedDataParallel, rank 0: 4 of 6 parameters" in text


def test_a_parameter_that_one_rank_lacks_is_named() -> None:
    models = [nn.Linear(IN, OUT), nn.Linear(IN, OUT, bias=False)]
    outcome = run_ranks(2, lambda rank: DDP(models[rank]), abort=False)
    assert all("bias" in str(error) and "absent on rank 1" in str(error) for error in outcome.errors.values())
    assert outcome.errors.keys() == {0, 1}


class Branches(nn.Module):
    """Uses `left`, `right` or both, as told."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.spare = nn.Linear(IN, OUT), nn.Linear(IN, OUT), nn.Linear(IN, OUT)

    def forward(self, x: Tensor, use: str) -> Tensor:
        outputs = [getattr(self, name)(x) for name in use.split()]
        return outputs[0] if len(outputs) == 1 else outputs[0] + outputs[1]


def branch_models() -> list[nn.Module]:
    first = Branches()
    return [first, copy.deepcopy(first)]


@pytest.mark.parametrize("uses", [("left", "left"), ("left right spare", "left")])
def test_an_unused_parameter_is_a_clear_error_and_no_rank_hangs(uses: tuple[str, str]) -> None:
    models, inputs = branch_models(), batches(2)

    def train(rank: int) -> None:
        model = DDP(models[rank])
        model.module.requires_grad_(True)
        (model(inputs[rank], uses[rank]) ** 2).mean().backward()
        dist.barrier()

    outcome = run_ranks(2, train, abort=False)
    assert outcome.errors.keys() == {0, 1}
    error = outcome.errors[1]
    assert isinstance(error, UsageError)
    assert "4 of 6 parameters got no gradient in this backward: right.weight, right.bias, spare.weight" in str(error)
    assert "find_unused_parameters=True" in str(error)
    assert isinstance(outcome.errors[0], UsageError | DistBackendError)


@pytest.mark.parametrize("gone_after_forward", [False, True])
def test_find_unused_parameters_averages_what_some_rank_used_and_leaves_the_rest(gone_after_forward: bool) -> None:
    models, inputs = branch_models(), batches(2)
    uses = ("left right", "left")

    def train(rank: int) -> dict[str, np.ndarray | None]:
        model = DDP(models[rank], find_unused_parameters=True)
        for _ in range(2):
            model.zero_grad()
            out = model(inputs[rank], uses[rank])
            if gone_after_forward and rank == 0:
                out = out + 0 * model.module.left.weight.sum()
            (out**2).mean().backward()
        return {n: None if p.grad is None else p.grad.numpy().copy() for n, p in model.module.named_parameters()}

    zero, one = run_ranks(2, train).results()
    alone = copy.deepcopy(models[0])
    alone.zero_grad()
    for x, use in zip(inputs, uses, strict=True):
        ((alone(x, use) ** 2).mean() / 2).backward()
    for name, param in alone.named_parameters():
        if name.startswith("spare"):
            assert zero[name] is None
            assert one[name] is None
        else:
            np.testing.assert_allclose(zero[name], param.grad.numpy(), rtol=1e-5, atol=1e-6)
            assert np.array_equal(zero[name], one[name])


def test_a_static_graph_learns_unused_parameters_once() -> None:
    models, inputs = branch_models(), batches(2)

    def train(rank: int) -> list[bool]:
        model = DDP(models[rank], static_graph=True, bucket_cap_mb=1e-4)
        for _ in range(3):
            model.zero_grad()
            (model(inputs[rank], "left right") ** 2).mean().backward()
        alone = copy.deepcopy(models[rank])
        alone.zero_grad()
        for x in inputs:
            ((alone(x, "left right") ** 2).mean() / 2).backward()
        for a, b in zip(model.module.parameters(), alone.parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None)
            if a.grad is not None:
                np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-5, atol=1e-6)
        return [param.grad is None for param in model.module.parameters()]

    assert run_ranks(2, train).results() == [[False] * 4 + [True] * 2] * 2


def test_no_sync_accumulates_locally_and_the_next_backward_reduces_everything() -> None:
    models, first, second = copies(make_model(), 2), batches(2, seed=1), batches(2, seed=2)

    def train(rank: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        model = DDP(models[rank])
        with model.no_sync():
            loss_of(model, first[rank]).backward()
        local = gradients(model.module)
        loss_of(model, second[rank]).backward()
        return local, gradients(model.module)

    results = run_ranks(2, train).results()
    both = [a + b for a, b in zip(mean_gradients(models[0], first), mean_gradients(models[0], second), strict=True)]
    for rank, (local, reduced) in enumerate(results):
        assert_close(local, mean_gradients(models[rank], [first[rank]]))
        assert_close(reduced, both)


def test_two_forwards_before_one_backward_and_two_backwards_of_one_forward() -> None:
    models, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        model = DDP(models[rank])
        (loss_of(model, inputs[rank]) + loss_of(model, inputs[rank])).backward()
        twice_forward = gradients(model.module)
        model.zero_grad()
        out = (model(inputs[rank]) ** 2).mean()
        out.backward(retain_graph=True)
        out.backward()
        return twice_forward, gradients(model.module)

    doubled = [2 * array for array in mean_gradients(models[0], inputs)]
    for forwards, backwards in run_ranks(2, train).results():
        assert_close(forwards, doubled)
        assert_close(backwards, doubled)


def test_buffers_are_those_of_rank_0_in_each_training_forward() -> None:
    models = [nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT)) for _ in range(2)]
    inputs = batches(2)

    def train(rank: int, broadcast: bool) -> np.ndarray:
        model = DDP(models[rank], broadcast_buffers=broadcast)
        for _ in range(2):
            loss_of(model, inputs[rank]).backward()
        model.eval()
        with no_grad():
            if rank == 0:  # evaluation on one rank needs no other
                model(inputs[rank])
        return models[rank].get_submodule("1").running_mean.numpy().copy()

    apart = run_ranks(2, train, broadcast=False).results()
    assert not np.allclose(apart[0], apart[1])
    mean = models[0].get_submodule("1").running_mean.numpy()
    together = run_ranks(2, train, broadcast=True).results()
    # the last forward of each rank started from rank 0's buffers: only its own last batch differs
    assert np.abs(together[0] - together[1]).max() < np.abs(apart[0] - apart[1]).max()
    assert mean is not None
