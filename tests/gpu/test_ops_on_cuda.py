"""Every op of the registry gives on CUDA what it gives on the CPU: outputs, gradients, gradients of gradients.

On the stand-in an accidental call of a numpy function with an array of the device fails.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilin.core import dtype as dtypes
from resilin.core.ops.registry import OPS, Op
from resilin.core.tensor import Tensor, wrap
from resilin.testing import check_ops
from resilin.testing.check_backend import CASES, KINDS, TWICE, check_op, results


@pytest.mark.parametrize(("name", "number"), CASES)
def test_an_op_and_its_gradient_are_those_of_the_cpu(cuda, name, number):
    for dtype, as_complex, tolerance in KINDS[: 3 if OPS[name].complex and OPS[name].order else 2]:
        check_op(name, number, "cuda:0", dtype, as_complex, tolerance)


@pytest.mark.parametrize(("name", "number"), TWICE)
def test_the_gradient_of_the_gradient_is_that_of_the_cpu(cuda, name, number):
    check_op(name, number, "cuda:0", np.float64, False, 1e-9, order=2)


@pytest.mark.slow  # many kernels of their own to compile; those of float32 and float64 above are in every run
@pytest.mark.parametrize(
    ("name", "number"), [case for case in CASES if case[0] != "astype" and OPS[case[0]].dtypes != "full"]
)
def test_sixteen_bit_floats_give_what_they_give_on_the_cpu(cuda, name, number):
    for half in (dtypes.bfloat16.np, dtypes.float16.np):
        check_half(OPS[name], number, half)


def check_half(op: Op, number: int, half: Any) -> None:
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
        np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.05, err_msg=f"{op} sample {number} {half}")
