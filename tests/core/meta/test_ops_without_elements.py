"""Every op of the registry, and its gradients, give on meta tensors the shapes and dtypes that they give on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.backends.meta.array import MetaArray
from resilin.core.ops.registry import OPS
from resilin.testing import check_backend, coverage

coverage.load()

CASES = check_backend.CASES


def first_of_each(cases: Any) -> list[tuple[str, int]]:
    return [case for case in cases if case[1] == 0]


def shapes(name: str, number: int, where: str, order: int, dtype: Any, as_complex: bool) -> list[Any]:
    """Shapes and dtypes of the op's outputs, then of their gradients."""
    op = OPS[name]
    given = check_backend.arguments(op, check_backend.sample_of(op, number, dtype, as_complex), where)
    inputs = [t for t in (given[0] if op.n < 0 else given[: op.n]) if isinstance(t, resilin.Tensor)]
    for tensor in inputs:
        tensor.requires_grad_(op.differentiable and op.order > 0 and tensor.dtype.is_floating_point)
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
        assert where == "cpu" or (type(out._array) is MetaArray and out.is_meta), (name, number, type(out._array))
    return [(tuple(out.shape), out.dtype) for out in outs]


def check(cases: Any, order: int, dtype: Any = np.float64, as_complex: bool = False) -> None:
    wrong = []
    for name, number in cases:
        expected, found = (shapes(name, number, where, order, dtype, as_complex) for where in ("cpu", "meta"))
        if found != expected:
            wrong.append((name, number, found, expected))
    assert not wrong


def test_an_op_gives_the_shapes_and_dtypes_of_the_cpu():
    check(first_of_each(CASES), order=1)


@pytest.mark.slow
def test_an_op_gives_them_for_every_sample_in_single_precision_and_complex():
    check(CASES, order=1, dtype=np.float32)
    check([case for case in CASES if OPS[case[0]].complex and OPS[case[0]].order], order=0, as_complex=True)


@pytest.mark.slow
def test_the_gradient_of_the_gradient_does_too():
    check(first_of_each(check_backend.TWICE), order=2)
