"""The functions of the namespace give PyTorch's recorded values, dtypes and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import resilin

FIXTURES = Path(__file__).parent.parent / "fixtures"
CASES = [case for path in sorted(FIXTURES.glob("torch_namespace_*.json")) for case in json.loads(path.read_text())]


def _unpack(value: Any) -> Any:
    if isinstance(value, dict) and "dtype" in value:
        array = np.array([complex(*v) if isinstance(v, list) else v for v in value["data"]], dtype=value["dtype"])
        return resilin.from_numpy(array.reshape(value["shape"]))
    if isinstance(value, dict):
        return {key: _unpack(item) for key, item in value.items()}
    return [_unpack(item) for item in value] if isinstance(value, list) else value


def _flat(value: Any) -> list[Any]:
    return [part for item in value for part in _flat(item)] if isinstance(value, list | tuple) else [value]


def _weighted(y: Any) -> Any:
    y = resilin.view_as_real(y) if y.is_complex() else y
    return (y.nan_to_num(0.0, 0.0, 0.0) * resilin.arange(1.0, y.numel() + 1, dtype=y.dtype).reshape(y.shape)).sum()


@pytest.fixture(autouse=True)
def _float64() -> Any:
    before = resilin.get_default_dtype()
    resilin.set_default_dtype(resilin.float64)
    yield
    resilin.set_default_dtype(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["fn"])
def test_values_and_gradients_are_those_of_pytorch(case: Any) -> None:
    args, kwargs = _unpack(case["args"]), _unpack(case["kwargs"])
    leaves = [a for a in (args[0] if isinstance(args[0], list) else args) if isinstance(a, resilin.Tensor)]
    leaves = [x.requires_grad_(bool(case["grads"])) for x in leaves if x.is_floating_point() or x.is_complex()]
    out = _flat(getattr(resilin, case["fn"])(*args, **kwargs))
    expected = [_unpack(value) for value in case["out"]]
    assert len(out) == len(expected)
    for y, e in zip(out, expected, strict=True):
        if not isinstance(e, resilin.Tensor):
            assert y == e
            continue
        assert y.dtype == e.dtype
        assert y.shape == e.shape
        np.testing.assert_allclose(y.detach().numpy(), e.numpy(), rtol=1e-7, atol=1e-9)
    if case["grads"]:
        parts = [_weighted(y) for y in out if isinstance(y, resilin.Tensor) and y.requires_grad]
        grads = resilin.autograd.grad(sum(parts), leaves, allow_unused=True) if parts else [None] * len(leaves)
        for leaf, grad in zip(leaves, grads, strict=True):
            want = _unpack(case["grads"].pop(0))
            zero = np.zeros(leaf.shape)
            np.testing.assert_allclose(
                zero if grad is None else grad.numpy(), zero if want is None else want.numpy(), rtol=1e-6, atol=1e-9
            )
