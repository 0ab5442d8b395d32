"""Softmax along another dimension than the last has the bits of the rows of a turned copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import loader, softmax
from resilin.core.machine import threads

native = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")
SHAPES = [(3, 5), (1, 4, 16, 16), (2, 70, 3), (2, 130, 33), (64, 1), (5, 16, 17), (1, 300, 2), (0, 3), (3, 0, 2)]


def _turned(function: Any, x: Any, axis: int) -> Any:
    return function(np.ascontiguousarray(x.swapaxes(axis, -1))).swapaxes(axis, -1)


@native
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_columns_have_the_bits_of_rows(name: str, shape: tuple[int, ...], special: float | None) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if special is not None and x.size:
        x.reshape(-1)[x.size // 2] = special
    rows = softmax.forward if name == "softmax" else softmax.log_forward
    for axis in range(len(shape)):
        found = getattr(loader.native, f"{name}_along")(x, axis)
        assert found.flags.c_contiguous
        assert found.tobytes() == np.ascontiguousarray(_turned(rows, x, axis)).tobytes()
    assert getattr(loader.native, f"{name}_along")(x, len(shape)) is None
    assert getattr(loader.native, f"{name}_along")(x, -1) is None
    assert getattr(loader.native, f"{name}_along")(x.astype(np.float64), 0) is None


@native
def test_threads_leave_no_trace() -> None:
    x = np.random.default_rng(0).standard_normal((40, 30, 200)).astype(np.float32)
    before, found = threads.get_num_threads(), set()
    try:
        for count in (1, 2, 3):
            threads.set_num_threads(count)
            found.add(loader.native.softmax_along(x, 1).tobytes())
    finally:
        threads.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_its_gradient_is_that_of_the_last_dimension(dim: int) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    g = np.random.default_rng(1).standard_normal((3, 4, 5)).astype(np.float32)
    found = []
    for turn in (False, True):
        leaf = resilin.tensor(x.swapaxes(dim, -1) if turn else x, requires_grad=True)
        y = resilin.nn.functional.softmax(leaf, -1 if turn else dim)
        y.backward(resilin.tensor(np.ascontiguousarray(g.swapaxes(dim, -1) if turn else g)))
        grad = leaf.grad.numpy()
        found.append(grad.swapaxes(dim, -1) if turn else grad)
    np.testing.assert_array_equal(*found)
