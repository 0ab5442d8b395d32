"""Native activations made of pieces, limits and the error function, against their declared forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader
from resilin.core.ops.registry import OPS

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

INF, NAN = math.inf, math.nan
CASES: list[tuple[str, tuple[Any, ...]]] = [
    ("clip_to", (-0.5, 0.75)),
    ("clip_to", (None, 0.5)),
    ("clip_to", (0, None)),
    ("clip_to", (2.0, 1.0)),  # the upper limit wins
    ("clip_to", (-1, 10**38)),
    ("clip_to", (-INF, INF)),
    ("hardtanh", (-1.0, 1.0)),
    ("hardtanh", (0.0, 6.0)),
    ("leaky_relu", (0.01,)),
    ("leaky_relu", (-2.0,)),
    ("hardswish", ()),
    ("elu", (1.0, 1.0, 1.0)),
    ("elu", (1.7, 1.1, 0.5)),
    ("elu", (1.0, 1.0, -0.5)),  # left to the declared form
    ("erf", ()),
    ("smooth_absolute", (1.0,)),
    ("smooth_absolute", (0.25,)),
]


def _elements() -> Any:
    edges = [0.0, -0.0, 1.0, -1.0, 0.5, 0.75, 3.0, -3.0, 6.0, 1e-6, -1e-6, -50.0, 50.0, INF, -INF, NAN]
    return np.concatenate([edges, np.random.default_rng(0).standard_normal(4097) * 4]).astype(np.float32)


def _both(name: str, params: tuple[Any, ...], x: Any) -> list[tuple[Any, Any]]:
    """The result and the gradient on the CPU, and those of the declared form."""
    op, found = OPS[name], []
    for impl in (op.impls["cpu"], op.generic):
        kept = op.impls.pop("cpu")
        try:
            op.impls["cpu"] = impl
            leaf = resilin.tensor(x, requires_grad=True)
            y = op.call(leaf, *params)
            y.backward(resilin.full(y.shape, 0.5, dtype=y.dtype))
            found.append((y.detach().numpy(), leaf.grad.numpy()))
        finally:
            op.impls["cpu"] = kept
    return list(zip(*found, strict=True))


@pytest.mark.parametrize(("name", "params"), CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_kernel_gives_what_its_declared_form_gives(name: str, params: tuple[Any, ...], dtype: Any) -> None:
    if dtype == np.float16 and params == (-1, 10**38):
        params = (-1, 10**4)
    for x in (
        _elements().astype(dtype),
        np.ones((0, 3), dtype),
        np.asarray(0.25, dtype),
        _elements()[::2].astype(dtype),
    ):
        for fast, slow in _both(name, params, x):
            assert fast.dtype == slow.dtype == dtype
            tolerance = {np.float64: 0, np.float32: 1e-6, np.float16: 2**-10}[dtype]  # float16: one of its last digits
            np.testing.assert_allclose(fast, slow, rtol=tolerance, atol=tolerance)


def test_the_exponential_loses_no_digits_near_zero() -> None:
    x = -np.logspace(-30, 1, 1000).astype(np.float32)
    np.testing.assert_allclose(loader.native.elu_forward(x, 1.0, 1.0, 1.0), np.expm1(x.astype(np.float64)), rtol=2e-7)


def test_second_derivatives_are_those_of_the_declared_forms() -> None:
    x = resilin.tensor([-0.5, 0.3, 2.0], requires_grad=True)
    (first,) = resilin.autograd.grad(resilin.nn.functional.elu(x).sum(), x, create_graph=True)
    (second,) = resilin.autograd.grad(first.sum(), x)
    np.testing.assert_allclose(second.numpy(), [math.exp(-0.5), 0, 0], rtol=1e-6)
