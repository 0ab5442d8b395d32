"""DistributedDataParallel: hooks, arguments, groups, and wrappers that come and go, as a user of PyTorch's expects."""

from __future__ import annotations

import copy
import fractions
import gc
import re
from typing import Any

import numpy as np
import pytest
from ddp_models import IN, assert_close, batches, copies, gradients, loss_of, make_model, mean_gradients

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import GradBucket
from resilin.ddp.comm_hooks import default_hooks
from resilin.distributed.work.future import Future
from resilin.errors import CollectiveMismatch, UsageError, UsageTypeError
from resilin.testing.ranks import run_ranks


@pytest.mark.parametrize(
    ("hook", "rtol"),
    [
        (default_hooks.allreduce_hook, 1e-6),
        (default_hooks.fp16_compress_hook, 4e-3),
        (default_hooks.bf16_compress_hook, 3e-2),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 4e-3),
        (default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook), 3e-2),
    ],
)
def test_default_hooks_average_within_their_precision(hook: Any, rtol: float) -> None:
    models, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(models[rank], bucket_cap_mb=1e-4)
        model.register_comm_hook(None, hook)
        loss_of(model, inputs[rank]).backward()
        return gradients(model.module)

    expected = mean_gradients(models[0], inputs)
    for result in run_ranks(2, train).results():
        for a, b in zip(result, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


def test_a_hook_sees_buckets_in_order_with_their_gradients_and_parameters_also_in_a_world_of_one() -> None:
    model = make_model()
    seen: list[tuple[int, bool, int]] = []

    def hook(state: list[str], bucket: GradBucket) -> Future[Tensor]:
        for gradient, param in zip(bucket.gradients(), bucket.parameters(), strict=True):
            assert gradient.shape == param.shape
            assert np.array_equal(gradient.numpy(), param.grad.numpy())
        whole = np.concatenate([gradient.numpy().reshape(-1) for gradient in bucket.gradients()])
        assert np.array_equal(bucket.buffer().numpy(), whole)  # a hook that counts or compresses sees no padding
        seen.append((bucket.index(), bucket.is_last(), len(state)))
        future: Future[Tensor] = Future()
        future.set_result(Tensor._wrap(bucket.buffer().numpy() * 3))
        return future

    def train(rank: int) -> list[np.ndarray]:
        wrapped = DDP(model, bucket_cap_mb=1e-4)
        wrapped.register_comm_hook(["state"], hook)
        with pytest.raises(UsageError, match="registered already"):
            wrapped.register_comm_hook(None, hook)
        loss_of(wrapped, batches(1)[0]).backward()
        return gradients(model)

    tripled = [3 * array for array in mean_gradients(model, batches(1))]
    assert_close(run_ranks(1, train).results()[0], tripled)
    assert [index for index, _, _ in seen] == list(range(len(seen)))
    assert [last for _, last, _ in seen] == [False] * (len(seen) - 1) + [True]


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (lambda state, bucket: bucket.buffer(), "must return a Future of the reduced tensor, got Tensor"),
        (lambda state, bucket: _done(Tensor._wrap(np.zeros(2, np.float32))), r"the result \[2\]: return the reduced"),
        (lambda state, bucket: _done(None), "must give a Tensor, got NoneType"),
    ],
)
def test_a_wrong_hook_is_named(hook: Any, said: str) -> None:
    def train(rank: int) -> None:
        wrapped = DDP(make_model())
        wrapped.register_comm_hook(None, hook)
        loss_of(wrapped, batches(1)[0]).backward()

    with pytest.raises(UsageError, match=said):
        run_ranks(1, train).results()


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_a_hook_with_another_signature_is_refused_at_registration() -> None:
    def train(rank: int) -> None:
        wrapped = DDP(make_model())
        with pytest.raises(UsageError, match=r"must take \(state, bucket\), it takes 1 arguments"):
            wrapped.register_comm_hook(None, lambda bucket: bucket)
        with pytest.raises(UsageError, match="expected a function"):
            wrapped.register_comm_hook(None, "allreduce")

    run_ranks(1, train).results()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"device_ids": [0]}, UsageError, "device_ids and output_device must be None unless"),
        ({"output_device": 0}, UsageError, "device_ids and output_device must be None unless"),
        ({"device_ids": [0, 1]}, UsageError, "device_ids must be None or contain a single element"),
        ({"dim": 1}, UsageError, "dim must be 0, got 1"),
        ({"bucket_cap_mb": 0}, UsageError, "bucket_cap_mb must be positive"),
        ({"bucket_cap_mb": "a"}, UsageError, "bucket_cap_mb is a number of MiB, got 'a'"),
        ({"bucket_cap_mb": True}, UsageTypeError, "bucket_cap_mb is a number of MiB, got True"),
        ({"bucket_cap_mb": np.bool_(True)}, UsageTypeError, "bucket_cap_mb is a number of MiB, got np.True_"),
        ({"bucket_cap_mb": float("nan")}, UsageError, "bucket_cap_mb must be positive and finite, got nan"),
        ({"bucket_cap_mb": float("inf")}, UsageError, "bucket_cap_mb must be positive and finite, got inf"),
        ({"bucket_cap_mb": np.float32(-1)}, UsageError, "bucket_cap_mb must be positive and finite, got .*-1"),
        ({"bucket_cap_mb_list": [1, None]}, UsageTypeError, r"bucket_cap_mb_list\[1\] is a number of MiB, got None"),
        ({"process_group": "x"}, UsageError, "expected a ProcessGroup, as new_group"),
        ({"process_group": dist.GroupMember.NON_GROUP_MEMBER}, UsageError, "this rank is not in process_group"),
        ({"mixed_precision": object()}, UsageError, "mixed_precision: expected a _MixedPrecision"),
        ({"device_mesh": object()}, UsageError, "device_mesh is not supported: there are no device meshes"),
        ({"batched_grad_copy": True}, UsageError, "batched_grad_copy is not supported: there are no copies"),
        ({"nonsense": 1}, TypeError, "unexpected keyword argument 'nonsense'"),
        ({"shards": 0}, UsageError, "expected an integer of at least the world size"),
    ],
)
def test_arguments_without_a_meaning_are_refused(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        run_ranks(1, lambda rank: DDP(make_model(), **arguments)).results()


def test_a_module_without_parameters_or_a_group_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameter that requires a gradient"):
        run_ranks(1, lambda rank: DDP(nn.ReLU())).results()
    with pytest.raises(UsageError, match="there is no process group"):
        DDP(make_model())
    with pytest.raises(UsageError, match=r"expected an nn.Module, got int"):
        DDP(3)  # type: ignore[arg-type]


def test_the_wrapper_says_where_its_module_is_as_pytorchs_does() -> None:
    (model,) = run_ranks(1, lambda rank: DDP(make_model())).results()
    assert (str(model.device), model.device_type, model.is_multi_device_module) == ("cpu", "cpu", False)
    assert (model.device_ids, model.output_device, model.dim) == (None, None, 0)


def test_a_world_of_one_leaves_the_module_alone() -> None:
    model = make_model()

    def train(rank: int) -> list[np.ndarray]:
        wrapped = DDP(model)
        assert all(
            param._grad_slot is None and not (param._hooks and param._hooks.post) for param in model.parameters()
        )
        loss_of(wrapped, batches(1)[0]).backward()
        return gradients(model)

    assert_close(run_ranks(1, train).results()[0], mean_gradients(model, batches(1)))


@pytest.mark.parametrize("how", ["wrapped again", "dropped", "dropped later"])
def test_a_wrapper_that_is_gone_leaves_no_hook_behind(how: str) -> None:
    models, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> tuple[int, list[np.ndarray]]:
        former = DDP(models[rank])
        loss_of(former, inputs[rank]).backward()
        if how == "dropped":
            del former
            gc.collect()
        model = DDP(models[rank])
        if how == "dropped later":
            del former
            gc.collect()
        models[rank].zero_grad()
        loss_of(model, inputs[rank]).backward()
        assert all(param._grad_slot is not None for param in models[rank].parameters())
        counts = {len(param._hooks.post) for param in models[rank].parameters()}
        return counts.pop(), gradients(models[rank])

    for hooks, result in run_ranks(2, train).results():
        assert hooks == 1
        assert_close(result, mean_gradients(models[0], inputs))


def test_frozen_and_shared_parameters_train_as_in_one_process() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.frozen = nn.Linear(IN, IN), nn.Linear(IN, IN), nn.Linear(IN, IN)
            self.second.weight = self.first.weight
            self.frozen.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.frozen(self.first(x)))

    models, inputs = [Tied(), Tied()], batches(2)

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(models[rank])
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            loss_of(model, inputs[rank]).backward()
            optimizer.step()
        return [param.detach().numpy().copy() for param in model.parameters()]

    alone = copy.deepcopy(models[0])
    results = run_ranks(2, train).results()
    optimizer = optim.SGD([param for param in alone.parameters() if param.requires_grad], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        for x in inputs:
            (loss_of(alone, x) / 2).backward()
        optimizer.step()
    assert_close(results[0], [param.detach().numpy() for param in alone.parameters()])
    assert all(np.array_equal(a, b) for a, b in zip(*results, strict=True))


def test_stats_tell_buckets_and_waiting() -> None:
    models, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> dict[str, Any]:
        model = DDP(models[rank], bucket_cap_mb=1e-4)
        loss_of(model, inputs[rank]).backward()
        return dict(model.stats())

    told = run_ranks(2, train).results()[1]
    assert (told["world_size"], told["rank"], told["backwards"]) == (2, 1, 1)
    assert sum(map(len, told["bucket_parameters"])) == 4
    assert told["bucket_parameters"][0][0] == "2.weight"  # the last product's gradients come in this order
    assert told["wait_s"] >= told["last_wait_s"] > 0


def test_a_list_of_sizes_that_is_none_is_named() -> None:
    def work(rank: int) -> None:
        with pytest.raises(UsageError, match="bucket_cap_mb_list must be a list of numbers of MiB, got 3"):
            DDP(nn.Linear(2, 2), bucket_cap_mb_list=3)  # type: ignore[arg-type]

    run_ranks(1, work).results()


def test_ranks_of_which_one_leaves_the_comparison_out_are_told_of_init_sync() -> None:
    def work(rank: int) -> None:
        model = DDP(nn.BatchNorm1d(2), init_sync=rank == 0)
        model(resilin.ones(4, 2)).sum().backward()

    outcome = run_ranks(2, work, abort=False)
    assert all(isinstance(error, CollectiveMismatch) for error in outcome.errors.values()), outcome.errors
    assert "init_sync=True here; was it False on another rank?" in str(outcome.errors[0])


FLAGS = (
    "init_sync",
    "find_unused_parameters",
    "check_reduction",
    "gradient_as_bucket_view",
    "static_graph",
    "skip_all_reduce_unused_params",
    "batched_grad_copy",
    "lazy_bucket_allocation",
)


@pytest.mark.parametrize("name", [*FLAGS, "broadcast_buffers", "forward_sync_buffers"])
def test_a_flag_that_is_no_bool_is_refused(name: str) -> None:
    def make(rank: int) -> None:
        for value in ("no", 2, 1.0, [], *([None] if name in FLAGS else [])):
            with pytest.raises(UsageTypeError, match=re.escape(f"{name} must be True or False, got {value!r}")):
                DDP(nn.Linear(2, 2), **{name: value})

    run_ranks(1, make).results()


@pytest.mark.parametrize(("given", "expected"), [(0, False), (1, True), (np.bool_(True), True), (np.int64(0), False)])
def test_a_flag_may_be_numpys_or_a_number_that_is_one(given: Any, expected: bool) -> None:
    def make(rank: int) -> tuple[Any, ...]:
        model = DDP(nn.Linear(2, 2), broadcast_buffers=given, static_graph=given, gradient_as_bucket_view=given)
        return model.broadcast_buffers, model.static_graph, model.gradient_as_bucket_view

    for found in run_ranks(1, make).results()[0]:
        assert found is expected


@pytest.mark.parametrize("cap", [np.float32(0.5), np.float64(0.5), np.float16(0.5), fractions.Fraction(1, 2)])
def test_bucket_sizes_may_be_any_real_numbers(cap: Any) -> None:
    def make(rank: int) -> tuple[int, int]:
        return (
            DDP(nn.Linear(2, 2), bucket_cap_mb=cap).bucket_bytes_cap,
            DDP(nn.Linear(2, 2), bucket_cap_mb_list=[np.int64(1), cap]).bucket_bytes_cap,
        )

    assert run_ranks(1, make).results() == [(1 << 19, 1 << 19)]


def test_an_empty_list_of_bucket_sizes_is_refused() -> None:
    def make(rank: int) -> None:
        with pytest.raises(UsageError, match="bucket_cap_mb_list must have at least one number of MiB"):
            DDP(nn.Linear(2, 2), bucket_cap_mb_list=[])

    run_ranks(1, make).results()


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bucket_cap_mb": "x"}, "bucket_cap_mb is a number of MiB, got 'x'"),
        ({"find_unused_parameters": "no"}, "find_unused_parameters must be True or False, got 'no'"),
        ({"init_sync": "x"}, "init_sync must be True or False"),
        ({"device_ids": [3]}, "device_ids and output_device must be None unless"),
        ({"mixed_precision": 3}, "mixed_precision"),
        ({"module": 5}, "expected an nn.Module, got int"),
    ],
)
def test_arguments_that_one_rank_refuses_are_told_on_all_and_the_group_lives_on(
    given: dict[str, Any], says: str, world: int
) -> None:
    def work(rank: int) -> tuple[str, type]:
        last = rank == world - 1
        with pytest.raises(UsageError) as caught:
            DDP(**{"module": nn.Linear(3, 2), **(given if last else {})})
        DDP(nn.Linear(3, 2))  # the next one meets the next one
        return str(caught.value), type(caught.value)

    *others, own = run_ranks(world, work).results()
    assert says in own[0]
    for said, kind in others:
        assert said.startswith("DistributedDataParallel #0, group 'test'")
        assert said.endswith(f": rank {world - 1} refused its arguments: {own[0]}")
        assert kind is own[1]


def test_a_rank_that_compares_nothing_tells_nobody() -> None:
    def work(rank: int) -> None:
        if rank:
            with pytest.raises(UsageError, match="bucket_cap_mb"):
                DDP(nn.Linear(3, 2), init_sync=False, bucket_cap_mb="x")  # type: ignore[arg-type]

    run_ranks(2, work).results()
