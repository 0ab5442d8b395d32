"""Mixed precision of sharded modules, and pieces on another device than parameters."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from sharded_nets import Language, adamw, arrays, differences, loss_of, tensor, tokens, train, trained

import resilin
from resilin import nn, optim
from resilin.core.tensor import Tensor
from resilin.errors import UsageTypeError
from resilin.optim.optimizer import Optimizer
from resilin.testing.ranks import run_ranks
from resilin.zero import MixedPrecisionPolicy, OptimizerState, shard


def sgd(params: Any) -> optim.Optimizer:
    return optim.SGD(params, lr=0.1)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("low", [resilin.float16, resilin.bfloat16])
def test_parameters_are_gathered_in_16_bits_and_updated_in_32(stage: int, low: Any) -> None:
    net = Language(2)
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=resilin.float32, output_dtype=resilin.float32)

    def run(rank: int) -> tuple[list[str], dict[str, np.ndarray]]:
        model = shard(copy.deepcopy(net), stage, mixed_precision=policy)
        seen: list[str] = []
        inner: Any = model.module
        inner.norm.register_forward_pre_hook(lambda module, args: seen.append(f"{module.weight.dtype} {args[0].dtype}"))
        optimizer = sgd(model.parameters())
        train(model, optimizer, rank, range(2))
        assert {str(piece.dtype) for piece in model.parameters()} == {"resilin.float32"}
        assert {str(piece.grad.dtype) for piece in model.parameters()} == {"resilin.float32"}
        assert model(tokens(0, rank)).dtype is resilin.float32
        return seen[:1], arrays(model.state_dict())

    expected, before = trained(net, 2, None, steps=2, optimizer=sgd)[0], arrays(net.state_dict())
    for seen, state in run_ranks(2, run).results():
        assert seen == [f"{low} {low}"]
        assert all(array.dtype == np.float32 for array in state.values())
        moved = np.concatenate([(expected[name] - before[name]).ravel() for name in state])
        off = np.concatenate([(expected[name] - state[name]).ravel() for name in state])
        assert 0 < np.linalg.norm(off) < 0.05 * np.linalg.norm(moved)


def test_gradients_are_summed_in_the_dtype_that_the_policy_names() -> None:
    """The mean of two neighbouring float16 numbers lies between them."""
    net, inputs = nn.Linear(1, 1, bias=False), np.array([1.0, 1.0 + 2.0**-10], np.float32)

    def run(rank: int, reduce_dtype: Any) -> list[float]:
        policy = MixedPrecisionPolicy(param_dtype=resilin.float16, reduce_dtype=reduce_dtype)
        model = shard(copy.deepcopy(net), 3, mixed_precision=policy)
        model(tensor([[inputs[rank]]])).sum().backward()
        return [value for piece in model.parameters() for value in piece.grad.tolist()]

    assert run_ranks(2, run, resilin.float32).results() == [[1.0 + 2.0**-11], []]
    assert run_ranks(2, run, None).results() == [[1.0], []]  # rounded once, to even


def test_integers_and_inputs_stay_as_the_policy_says() -> None:
    class Sees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("steps", Tensor._wrap(np.zeros(1, np.int64)))

        def forward(self, x: Tensor, more: dict[str, Tensor]) -> tuple[Tensor, str]:
            return self.fc(x.to(self.fc.weight.dtype)), f"{x.dtype} {more['index'].dtype}"

    def run(rank: int, cast: bool) -> str:
        policy = MixedPrecisionPolicy(param_dtype=resilin.bfloat16, cast_forward_inputs=cast)
        model = shard(Sees(), 3, mixed_precision=policy)
        out, seen = model(tensor(np.ones((1, 2))), {"index": Tensor._wrap(np.zeros(1, np.int64))})
        assert out.dtype is resilin.bfloat16
        return seen

    assert run_ranks(1, run, True).results() == ["resilin.bfloat16 resilin.int64"]
    assert run_ranks(1, run, False).results() == ["resilin.float32 resilin.int64"]


def test_no_sync_and_gathered_with_low_precision() -> None:
    net = nn.Linear(4, 4)

    def run(rank: int) -> None:
        model = shard(copy.deepcopy(net), 3, mixed_precision=MixedPrecisionPolicy(param_dtype=resilin.float16))
        x = tensor(np.full((2, 4), rank + 1.0))
        with model.no_sync():
            model(x).sum().backward()
        assert all(piece.grad is None for piece in model.parameters())
        model(x).sum().backward()
        for piece in model.parameters():
            expected = 2 * np.float32(
                np.mean([2 * (r + 1.0) for r in range(2)] if len(piece.logical_shape) > 1 else [2.0])
            )
            assert np.allclose(piece.grad.numpy(), expected)
        with model.gathered(writeback=False) as module:
            assert module.weight.dtype is resilin.float32
            assert np.array_equal(module.weight.numpy(force=True), net.weight.numpy(force=True))

    run_ranks(2, run).results()


def test_a_policy_takes_floating_point_dtypes_only() -> None:
    with pytest.raises(UsageTypeError, match="param_dtype must be a floating point dtype"):
        MixedPrecisionPolicy(param_dtype=resilin.int64)
    with pytest.raises(UsageTypeError, match="reduce_dtype"):
        MixedPrecisionPolicy(reduce_dtype="float32")  # type: ignore[arg-type]


def on(device: str, net: nn.Module, world: int, stage: int, **options: Any) -> list[dict[str, np.ndarray]]:
    def run(rank: int) -> dict[str, np.ndarray]:
        model = shard(copy.deepcopy(net).to(device), stage, **options)
        optimizer = adamw(model.parameters())
        for step in range(2):
            optimizer.zero_grad()
            given = tokens(step, rank).to(device)
            loss_of(model, given).backward()
            model.clip_grad_norm_(1e6)
            optimizer.step()
        devices = {str(piece.device) for piece in model.parameters()} | _devices(optimizer)
        assert devices == {"cpu" if options.get("cpu_offload") else device}
        inner: Any = model.module
        assert str(inner.embed.weight.device) == device
        with model.gathered(writeback=False) as module:
            assert {str(param.device) for param in module.parameters()} == {device}
        OptimizerState(model, optimizer).state_dict()
        state = {name: value.cpu() for name, value in model.state_dict().items()}
        model.load_state_dict(state)
        return arrays(state)

    return run_ranks(world, run, backend="cpu:gloo,sim:gloo").results()


def _devices(optimizer: Optimizer) -> set[str]:
    """Of all state but counters."""
    return {
        str(value.device)
        for entry in optimizer.state.values()
        for name, value in entry.items()
        if name != "step" and isinstance(value, Tensor)
    }


@pytest.mark.parametrize("stage", [2, 3])
def test_state_is_kept_on_the_cpu_while_parameters_are_used_elsewhere(stage: int) -> None:
    net = Language(2)
    expected = on("cpu", net, 2, stage)
    assert not differences(expected, on("cpu", net, 2, stage, cpu_offload=True))
    moved = on("sim:1", net, 2, stage)
    assert not differences(moved, on("sim:1", net, 2, stage, cpu_offload=True))
    for a, b in zip(expected, moved, strict=True):  # other kernels
        for name in a:
            np.testing.assert_allclose(a[name], b[name], atol=1e-3)
