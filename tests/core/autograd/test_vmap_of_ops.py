"""`vmap` of every declared op, and of its gradient, against the samples one by one."""

from __future__ import annotations

from typing import Any

import extent
import numpy as np
import pytest

from resilin import func
from resilin.core.ops.registry import OPS
from resilin.core.tensor import Tensor, wrap
from resilin.testing import check_ops, coverage

coverage.load()

B = 3
# One sample's whole memory, and a list that the op fills
NOT_OF_BATCHES = ("as_strided",)


def _batches(op: Any, number: int) -> tuple[list[Tensor], Any]:
    """A sample's tensors, each with variations of it in front, and the op as a function of one variation."""
    sample = check_ops.entered(op, check_ops.samples(op)[number])
    nested = op.n < 0
    slots = list(sample[0]) if nested else list(sample[: op.n])
    rest = sample[1:] if nested else sample[op.n :]
    places = [i for i, value in enumerate(slots) if isinstance(value, Tensor)]

    def call(*given: Tensor) -> Any:
        values = list(slots)
        for place, value in zip(places, given, strict=True):
            values[place] = value
        return op.call(values, *rest) if nested else op.call(*values, *rest)

    factors = np.linspace(1.0, 0.9, B)
    return [
        wrap(np.stack([(f * slots[i].numpy()).astype(slots[i].numpy().dtype) for f in factors])) for i in places
    ], call


def _plain(value: Any) -> tuple[np.ndarray[Any, Any], ...]:
    parts = value if isinstance(value, tuple) else (value,)
    return tuple(part.detach().numpy() for part in parts)


CASES = [case for case in check_ops.cases() if case[0] not in NOT_OF_BATCHES]
WITH_GRADIENTS = [case for case in check_ops.cases(gradients=True) if case[0] not in NOT_OF_BATCHES]


@pytest.mark.parametrize(("name", "number"), extent.first_of_each(CASES))
def test_a_vmapped_op_gives_what_it_gives_sample_by_sample(name: str, number: int) -> None:
    tensors, call = _batches(OPS[name], number)
    for mapped in {(True,) * len(tensors)} | {tuple(i == k for i in range(len(tensors))) for k in range(len(tensors))}:
        inputs = [t if m else t[0] for t, m in zip(tensors, mapped, strict=True)]
        found = _plain(func.vmap(call, tuple(0 if m else None for m in mapped))(*inputs))
        each = [_plain(call(*(t[i] if m else t[0] for t, m in zip(tensors, mapped, strict=True)))) for i in range(B)]
        for part, column in zip(found, zip(*each, strict=True), strict=True):
            np.testing.assert_allclose(part, np.stack(column), rtol=1e-9, atol=1e-9, err_msg=f"{name} {mapped}")


@pytest.mark.parametrize(("name", "number"), extent.first_of_each(WITH_GRADIENTS))
def test_a_vmapped_gradient_is_the_gradient_of_each_sample(name: str, number: int) -> None:
    tensors, call = _batches(OPS[name], number)

    def total(*given: Tensor) -> Any:
        outs = call(*given)
        parts = [o for o in (outs if isinstance(outs, tuple) else (outs,)) if o.requires_grad]
        return sum((abs(o) * abs(o)).sum() for o in parts)

    places = tuple(range(len(tensors)))
    found = func.vmap(func.grad(total, places))(*tensors)
    for i in range(B):
        expected = func.grad(total, places)(*(t[i] for t in tensors))
        for part, one in zip(found, expected, strict=True):
            np.testing.assert_allclose(part[i].numpy(), one.numpy(), rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(("name", "number"), extent.first_of_each(WITH_GRADIENTS))
def test_a_jacobian_by_rows_at_once_is_that_of_single_backwards(name: str, number: int) -> None:
    tensors, call = _batches(OPS[name], number)
    inputs = tuple(t[0] for t in tensors)
    outs, back = func.vjp(lambda *given: [o for o in _outputs(call(*given)) if o.requires_grad], *inputs)
    random = np.random.default_rng(0)
    rows = [wrap(random.normal(size=(B, *o.shape)).astype(o.numpy().dtype)) for o in outs]
    found = func.vmap(back)(rows)
    for i in range(B):
        expected = back([row[i] for row in rows])
        for part, one in zip(_outputs(found), _outputs(expected), strict=True):
            np.testing.assert_allclose(part[i].numpy(), one.numpy(), rtol=1e-6, atol=1e-8, err_msg=name)


def _outputs(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


# forward mode differentiates backward, which of ctc_loss, as in PyTorch, has no derivative
TWICE = [c for c in check_ops.cases(gradients=True) if c[0] not in (*NOT_OF_BATCHES, "ctc_loss", "ctc_loss_grad")]


@pytest.mark.parametrize(("name", "number"), extent.first_of_each(TWICE))
def test_the_derivative_in_a_direction_is_the_adjoint_of_backward(name: str, number: int) -> None:
    tensors, call = _batches(OPS[name], number)
    inputs = tuple(t[0] for t in tensors)
    outs, back = func.vjp(lambda *given: [o for o in _outputs(call(*given)) if o.requires_grad], *inputs)
    random = np.random.default_rng(0)
    weights = [wrap(random.normal(size=o.shape).astype(o.numpy().dtype)) for o in outs]
    directions = tuple(wrap(random.normal(size=t.shape).astype(t.numpy().dtype)) for t in inputs)
    tangents = func.jvp(lambda *given: [o for o in _outputs(call(*given)) if o.requires_grad], inputs, directions)[1]
    forward = sum(np.vdot(w.numpy(), t.numpy()).real for w, t in zip(weights, tangents, strict=True))
    backward = sum(np.vdot(g.numpy(), d.numpy()).real for g, d in zip(back(weights), directions, strict=True))
    assert np.isclose(forward, backward, rtol=1e-8, atol=1e-9)
