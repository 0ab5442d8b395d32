"""Arguments of the constructor that change what is computed or told: mixed precision, buffers, statistics, large
gradients that are reduced where they lie."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from ddp_models import (
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

import resilin
from resilin import nn, optim
from resilin.core.autograd.checkpoint import checkpoint
from resilin.core.tensor import Tensor
from resilin.ddp import DistributedDataParallel as DDP
from resilin.ddp import buckets, timings
from resilin.ddp.mixed_precision import _MixedPrecision
from resilin.distributed.work.future import Future
from resilin.errors import UsageError
from resilin.testing.ranks import run_ranks

# ------------------------------------------------------------------ mixed precision


class Seen(nn.Module):
    """Notes the dtypes it computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(IN, OUT), nn.BatchNorm1d(OUT, affine=False)
        self.dtypes: list[Any] = []

    def forward(self, x: Tensor, pair: Any = None) -> Tensor:
        inner = [] if pair is None else [pair["of"][0].dtype, pair["count"].dtype]
        self.dtypes = [x.dtype, self.layer.weight.dtype, self.norm.running_mean.dtype, *inner]
        return self.layer(x) + self.norm.running_mean * 0


def test_forward_runs_in_the_smaller_dtype_and_parameters_keep_theirs() -> None:
    policy = _MixedPrecision(resilin.bfloat16, resilin.float32, resilin.float16)
    modules, inputs = copies(Seen(), 2), batches(2)

    def train(rank: int) -> DDP:
        model = DDP(modules[rank], mixed_precision=policy)
        pair = {"of": [inputs[rank]], "count": resilin.tensor([1])}
        out = model(inputs[rank], pair=pair)
        (out.float() ** 2).mean().backward()
        assert out.dtype in (resilin.bfloat16, resilin.float32)
        return model

    results = run_ranks(2, train).results()
    for model in results:
        module = model.module
        assert module.dtypes == [resilin.bfloat16, resilin.bfloat16, resilin.float16, resilin.bfloat16, resilin.int64]
        assert module.layer.weight.dtype == module.layer.weight.grad.dtype == resilin.float32
        assert module.norm.running_mean.dtype == resilin.float16
    assert_same_bits([gradients(model.module.layer) for model in results])


class Twice(nn.Module):
    """Two layers, which are computed again in backward or not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, IN), nn.Sequential(nn.Linear(IN, IN), nn.Tanh(), nn.Linear(IN, OUT))
        self.reentrant: bool | None = None

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.reentrant is None:
            return self.second(hidden)
        return checkpoint(self.second, hidden, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_computed_again_in_backward_are_so_in_the_smaller_dtype(reentrant: bool) -> None:
    policy = _MixedPrecision(param_dtype=resilin.bfloat16, reduce_dtype=resilin.float32)
    modules, inputs = copies(Twice(), 4), batches(2)

    def train(rank: int) -> tuple[list[Any], list[Any]]:
        found = []
        for number, how in ((rank, None), (rank + 2, reentrant)):
            modules[number].reentrant = how
            model = DDP(modules[number], mixed_precision=policy)
            (model(inputs[rank]).float() ** 2).mean().backward()
            found.append(gradients(model))
        return found[0], found[1]

    for kept, computed_again in run_ranks(2, train).results():
        assert_same_bits([kept, computed_again])


@pytest.mark.parametrize(
    ("policy", "halves", "tolerance"),
    [
        (_MixedPrecision(param_dtype=resilin.float16), True, 5e-3),
        (_MixedPrecision(reduce_dtype=resilin.bfloat16), True, 3e-2),
        (_MixedPrecision(param_dtype=resilin.bfloat16, reduce_dtype=resilin.float32), False, 5e-2),
    ],
)
def test_gradients_are_averaged_in_the_dtype_that_the_policy_says(
    policy: _MixedPrecision, halves: bool, tolerance: float
) -> None:
    modules, inputs = copies(make_model(), 2), batches(2)
    expected = mean_gradients(modules[0], inputs)

    def train(rank: int) -> tuple[list[Any], int]:
        model = DDP(modules[rank], mixed_precision=policy)
        optimizer = optim.SGD(model.parameters(), lr=0.0)
        for _ in range(2):
            optimizer.zero_grad()
            (model(inputs[rank]).float() ** 2).mean().backward()
            optimizer.step()
        return gradients(model), model.stats()["traffic"]["payload_bytes"]

    results = run_ranks(2, train).results()
    nbytes = 2 * sum(param.numel() * 4 for param in modules[0].parameters())
    for got, sent in results:
        assert sent == (nbytes // 2 if halves else nbytes)
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == np.float32
            np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())
    assert_same_bits([got for got, _ in results])


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"param_dtype": "fp16"}, "expected a _MixedPrecision"),
        (_MixedPrecision(param_dtype=resilin.int32), "param_dtype=.*int32 is no floating dtype"),
        (_MixedPrecision(reduce_dtype=resilin.float64), "cannot be averaged in .*float64"),
    ],
)
def test_wrong_policies_are_refused(policy: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run_ranks(1, lambda rank: DDP(make_model(), mixed_precision=policy)).results()


def test_a_hook_beside_the_one_of_mixed_precision_is_refused() -> None:
    def wrap(rank: int) -> None:
        model = DDP(make_model(), mixed_precision=_MixedPrecision(param_dtype=resilin.bfloat16))
        with pytest.raises(UsageError, match="a hook is registered already"):
            model.register_comm_hook(None, lambda state, bucket: None)

    run_ranks(1, wrap).results()


# ------------------------------------------------------------------ buffers


@pytest.mark.parametrize(
    ("options", "at_start", "after_forward"),
    [
        ({}, True, True),
        ({"forward_sync_buffers": False}, True, False),
        ({"broadcast_buffers": False}, False, False),
    ],
)
def test_when_buffers_are_made_equal(options: dict[str, Any], at_start: bool, after_forward: bool) -> None:
    modules = [nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT, momentum=0.0)) for _ in range(2)]

    def wrap(rank: int) -> tuple[float, float]:
        mean = modules[rank][1].running_mean
        mean.fill_(rank + 1)
        model = DDP(modules[rank], **options)
        wrapped = float(mean[0])
        mean.fill_(rank + 1)
        model(batches(2)[rank])
        return wrapped, float(mean[0])

    zero, one = run_ranks(2, wrap).results()
    assert zero == (1, 1)
    assert one == (1 if at_start else 2, 1 if after_forward else 2)


def test_batch_norm_over_ranks_trains_as_one_process_with_the_whole_batch() -> None:
    """Batches of 1, 2 and 5 samples: each rank's loss is its sum, as a share of the mean over all ranks."""
    module = nn.Sequential(nn.Linear(IN, OUT), nn.BatchNorm1d(OUT), nn.Tanh())
    modules = [nn.SyncBatchNorm.convert_sync_batchnorm(each) for each in copies(module, 3)]
    whole = np.random.default_rng(3).standard_normal((8, IN)).astype(np.float32)
    parts = [whole[:1], whole[1:3], whole[3:]]

    def train(rank: int) -> list[np.ndarray]:
        model = DDP(modules[rank])
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            (3 * (model(tensor(parts[rank])) ** 2).sum() / len(whole)).backward()
            optimizer.step()
        return values(model.module)

    results = run_ranks(3, train).results()
    optimizer = optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ((module(tensor(whole)) ** 2).sum() / len(whole)).backward()
        optimizer.step()
    assert_close(results[0], values(module), rtol=1e-4, atol=1e-5)
    assert_same_bits(results)


def test_arguments_that_change_nothing_are_warned_of() -> None:
    def wrap(rank: int) -> None:
        with pytest.warns(FutureWarning, match="check_reduction is deprecated"):
            DDP(make_model(), check_reduction=True)
        with pytest.warns(FutureWarning, match="broadcast_buffers=True is ignored, forward_sync_buffers=False holds"):
            assert not DDP(make_model(), broadcast_buffers=True, forward_sync_buffers=False).broadcast_buffers

    run_ranks(1, wrap).results()


# ------------------------------------------------------------------ large gradients


@pytest.mark.parametrize("as_view", [True, False])
@pytest.mark.parametrize("find_unused", [True, False])
def test_large_gradients_are_reduced_where_backward_put_them(
    monkeypatch: pytest.MonkeyPatch, as_view: bool, find_unused: bool
) -> None:
    monkeypatch.setattr(buckets, "LONE_BYTES", 4 * IN)
    monkeypatch.setattr(buckets, "LONE_BYTES_BESIDE", 4 * IN)
    modules, inputs = copies(make_model(), 2), batches(2)

    def train(rank: int) -> tuple[list[Any], list[Any], list[list[str]]]:
        model = DDP(modules[rank], gradient_as_bucket_view=as_view, find_unused_parameters=find_unused)
        for to_none in (True, True, False):
            model.zero_grad(set_to_none=to_none)
            loss_of(model, inputs[rank]).backward()
        once = gradients(model)
        with model.no_sync():
            loss_of(model, inputs[rank]).backward()
        modules[rank][0].weight.grad = Tensor._wrap(np.asfortranarray(modules[rank][0].weight.grad.numpy()))
        loss_of(model, inputs[rank]).backward()
        return once, gradients(model), model.stats()["bucket_parameters"]

    results = run_ranks(2, train).results()
    expected = mean_gradients(modules[0], inputs)
    once, thrice, names = results[0]
    assert sum(len(bucket) == 1 for bucket in names) >= 3
    assert_close(once, expected)
    assert_close(thrice, [3 * g for g in expected if g is not None])
    assert_same_bits([each[0] for each in results])
    assert_same_bits([each[1] for each in results])


def test_a_dropped_large_gradient_frees_its_memory() -> None:
    module = nn.Linear(1024, 1024, bias=False)  # 4 MiB
    modules = copies(module, 2)

    def train(rank: int) -> int:
        model = DDP(modules[rank])
        x = tensor(np.ones((2, 1024)))
        for _ in range(2):
            model.zero_grad()
            loss_of(model, x).backward()
        layout = model._reducer._layout
        assert layout is not None
        return sum(flat.array.nbytes for flat in layout.flats)

    assert run_ranks(2, train).results() == [0, 0]


# ------------------------------------------------------------------ statistics


def test_stats_add_up_and_pytorchs_names_tell_the_same() -> None:
    modules, inputs = copies(make_model(), 2), batches(2)
    steps = 3

    def train(rank: int) -> tuple[dict[str, Any], dict[str, Any], float]:
        model = DDP(modules[rank], bucket_cap_mb=1e-4)
        begin = time.monotonic()
        for _ in range(steps):
            loss_of(model, inputs[rank]).backward()
        return dict(model.stats()), model._get_ddp_logging_data(), time.monotonic() - begin

    stats, data, took = run_ranks(2, train).results()[0]
    assert stats["backwards"] == data["iteration"] == steps
    assert 0 < stats["last_forward_s"] <= stats["forward_s"]
    assert stats["forward_s"] + stats["backward_s"] + stats["wait_s"] <= took
    assert 0 <= stats["exposed_s"] <= min(stats["communication_s"], stats["wait_s"]) + 1e-9
    assert stats["overlap"] == pytest.approx(1 - stats["exposed_s"] / stats["communication_s"])
    assert data["bucket_sizes"] == data["rebuilt_bucket_sizes"] == ", ".join(map(str, stats["bucket_bytes"]))
    assert data["has_rebuilt_buckets"]
    assert data["avg_forward_compute_time"] == int(1e9 * stats["forward_s"] / steps)
    assert data["backward_comm_time"] >= data["backward_compute_comm_overlap_time"] >= 0
    assert data["module_name"] == "Sequential"
    assert data["num_parameter_tensors"] == 4
    assert data["total_parameter_size_bytes"] == sum(param.numel() * 4 for param in modules[0].parameters())


def test_the_share_that_overlaps_is_counted_bucket_by_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(timings, "now", lambda: clock[0])
    of = timings.Timings()

    def at(second: float) -> None:
        clock[0] = second

    at(2)
    of.forward(begin=0)
    of.start()
    futures: list[Future[Any]] = [Future() for _ in range(3)]
    for second, future in zip((3, 4, 8), futures, strict=True):
        at(second)
        of.launch(future)
    for second, future in zip((5, 9, 12), futures, strict=True):
        at(second)
        future.set_result(None)
    at(13)
    of.finish(computed=8)
    told = of.stats()
    assert told["forward_s"] == 2
    assert told["backward_s"] == 6
    assert told["communication_s"] == 2 + 4 + 3  # 3 to 5, 5 to 9, 9 to 12
    assert told["exposed_s"] == 1 + 3
    assert told["wait_s"] == told["last_wait_s"] == 5
    assert told["overlap"] == pytest.approx(5 / 9)


def test_a_world_of_one_and_fixed_shards_have_logging_data_too() -> None:
    def look(rank: int) -> list[dict[str, Any]]:
        return [DDP(make_model())._get_ddp_logging_data(), DDP(make_model(), shards=2)._get_ddp_logging_data()]

    one, shards = run_ranks(1, look).results()[0]
    assert (one["iteration"], one["bucket_sizes"], one["avg_backward_comm_time"]) == (0, "", 0)
    assert (shards["iteration"], shards["rebuilt_bucket_sizes"], shards["has_rebuilt_buckets"]) == (0, "", False)
