"""Every op of the registry gives on CUDA what it gives on the CPU: outputs, gradients, gradients of gradients.

On the stand-in an accidental call of a numpy function with an array of the device fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
import resilin.fft
import resilin.linalg
import resilin.nn
import resilin.special
from resilin.core import dtype as dtypes
from resilin.core.ops.registry import OPS, Op
from resilin.core.tensor import Tensor, wrap
from resilin.testing import check_ops, coverage

coverage.load()

# Ops whose arguments beside tensors are arrays of the host on every device: windows and weights that are small
HOST_ARGUMENTS = {"avg_pool2d", "avg_pool2d_spread", "resample"}
# dtype, whether complex, tolerance
KINDS = ((np.float64, False, 1e-10), (np.float32, False, 1e-4), (np.float64, True, 1e-10))
CASES = [case for case in check_ops.cases() if case[0] != "transfer"]  # which is about devices itself


def place(value: Any, dev: Any) -> Any:
    """A sample's argument on `dev`: tensors and arrays moved, everything else as it is."""
    if isinstance(value, Tensor):
        return wrap(dev.backend.from_host(value._array, 0), dev)
    if isinstance(value, np.ndarray):
        return dev.backend.from_host(value, 0)
    if isinstance(value, tuple | list):
        return type(value)(place(part, dev) for part in value)
    return value


def arguments(op: Op, sample: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    """The sample's arguments on a device."""
    if where == "cpu":
        return sample
    first = place(sample[: max(op.n, 1)], resilin.device(where))
    rest = sample[max(op.n, 1) :]
    return (*first, *(rest if op.name in HOST_ARGUMENTS else place(rest, resilin.device(where))))


def results(op: Op, sample: tuple[Any, ...], where: str, order: int) -> list[Any]:
    """Outputs, then gradients (of gradients, for order 2) of a sample computed on a device, as numpy arrays."""
    given = arguments(op, sample, where)
    inputs = [t for t in (given[0] if op.n < 0 else given[: op.n]) if isinstance(t, Tensor)]
    for tensor in inputs:
        tensor.requires_grad_(op.differentiable and op.order > 0 and tensor._array.dtype.kind in "fcV")
    found = op.call(*given)
    outs = list(found) if isinstance(found, tuple) else [found]
    graded = [t for t in inputs if t.requires_grad]
    for _ in range(order):
        wanted = [t for t in outs if t.requires_grad]
        if not (graded and wanted):
            break
        seeds = [resilin.ones_like(t) for t in wanted]
        grads = resilin.autograd.grad(wanted, graded, seeds, create_graph=order > 1, allow_unused=True)
        outs = [*outs, *(g for g in grads if g is not None)]
    for out in outs:
        assert out.device.type == where.partition(":")[0], f"{op}: a result is on {out.device}"
        assert type(out._array) is not np.ndarray or where == "cpu", f"{op}: a result is numpy's"
    return [out.detach().cpu().numpy() for out in outs]


def sample_of(op: Op, number: int, dtype: Any, as_complex: bool = False) -> tuple[Any, ...]:
    """A sample of the registry; of `cholesky`, made positive definite."""
    sample = check_ops.samples(op, dtype, as_complex)[number]
    if op.name == "cholesky":
        x = sample[0]
        return ((x @ x.mH + resilin.eye(x.shape[-1], dtype=x.dtype)).detach(),)
    return sample


def check(name: str, number: int, dtype: Any, as_complex: bool, tolerance: float, order: int) -> None:
    op = OPS[name]
    on_cpu, on_cuda = (results(op, sample_of(op, number, dtype, as_complex), at, order) for at in ("cpu", "cuda:0"))
    assert len(on_cuda) == len(on_cpu)
    for found, expected in zip(on_cuda, on_cpu, strict=True):
        assert found.dtype == expected.dtype, f"{op}: {found.dtype}, {expected.dtype} on the CPU"
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=f"{op} sample {number}")


@pytest.mark.parametrize(("name", "number"), CASES)
def test_an_op_and_its_gradient_are_those_of_the_cpu(cuda, name, number):
    for dtype, as_complex, tolerance in KINDS[: 3 if OPS[name].complex and OPS[name].order else 2]:
        check(name, number, dtype, as_complex, tolerance, order=1)


@pytest.mark.parametrize(
    ("name", "number"),
    [case for case in CASES if OPS[case[0]].differentiable and OPS[case[0]].order > 1],
)
def test_the_gradient_of_the_gradient_is_that_of_the_cpu(cuda, name, number):
    check(name, number, np.float64, False, 1e-9, order=2)


@pytest.mark.parametrize("half", [dtypes.bfloat16.np, dtypes.float16.np], ids=str)
@pytest.mark.parametrize(
    ("name", "number"), [case for case in CASES if case[0] != "astype" and OPS[case[0]].dtypes != "full"]
)
def test_sixteen_bit_floats_give_what_they_give_on_the_cpu(cuda, name, number, half):
    op = OPS[name]

    def narrow(value: Any) -> Any:
        if isinstance(value, list):
            return [narrow(part) for part in value]
        return wrap(value._array.astype(half)) if isinstance(value, Tensor) and value.is_floating_point() else value

    def sample() -> tuple[Any, ...]:
        return tuple(narrow(value) for value in check_ops.samples(op, np.float32)[number])

    on_cpu, on_cuda = (results(op, sample(), where, 1) for where in ("cpu", "cuda:0"))
    for found, expected in zip(on_cuda, on_cpu, strict=True):
        assert found.dtype == expected.dtype
        if found.dtype.kind in "fV":
            found, expected = found.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05, err_msg=f"{op} sample {number}")
