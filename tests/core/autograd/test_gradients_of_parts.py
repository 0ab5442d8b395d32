"""Gradients of parts of one tensor are summed in one array, as if each were a tensor of zeros with the part in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.ops.lazy_gradients import Region

USES: dict[str, Callable[[Any], Any]] = {
    "chunks": lambda x: sum((i + 1) * part.sum() for i, part in enumerate(x.chunk(3, 1))),
    "parts that overlap": lambda x: x[1:].exp().sum() + x[:3, 2].sum() * 2 + x[None, 2, ..., ::2].sum() * 3,
    "a part and the whole": lambda x: (x * x).sum() + x[0].sum() * 3,
    "the whole and a part": lambda x: x[0].sum() * 3 + (x * x).sum(),
    "parts of moved axes": lambda x: (x.t()[1] * x.t()[2]).sum() + x.t()[3].exp().sum(),
    "a part of a part": lambda x: x[1:][1][2] * 5 + x[1].sum(),
    "nothing": lambda x: x[4:].sum() + x[2:2].sum(),
}


@pytest.mark.parametrize("use", USES)
def test_their_sum_is_the_gradient_that_recorded_rules_give(use: str) -> None:
    resilin.manual_seed(0)
    x = resilin.randn(4, 6, dtype=resilin.float64, requires_grad=True)
    (found,) = resilin.autograd.grad(USES[use](x), x)
    (recorded,) = resilin.autograd.grad(USES[use](x), x, create_graph=True)
    np.testing.assert_array_equal(found.numpy(), recorded.detach().numpy())
    USES[use](x).backward()
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), found.numpy())


def test_a_gradient_that_somebody_else_holds_is_not_written() -> None:
    x = resilin.ones(4, requires_grad=True)
    y = x * 1
    kept: list[Any] = []
    z = y * 1
    z.register_hook(kept.append)
    (z.sum() + y[1:3].sum()).backward()
    assert kept[0].tolist() == [1, 1, 1, 1]
    assert x.grad is not None
    assert x.grad.tolist() == [1, 2, 2, 1]


def test_hooks_see_whole_gradients() -> None:
    x = resilin.zeros(2, 3, requires_grad=True)
    part = (x * 1)[1]
    seen: list[Any] = []
    assert part.grad_fn is not None
    part.grad_fn.register_hook(lambda inputs, _outputs: seen.extend(inputs))
    part.sum().backward()
    assert seen[0].tolist() == [[0, 0, 0], [1, 1, 1]]


def test_anomaly_mode_finds_nan_in_a_part() -> None:
    x = resilin.zeros(3, requires_grad=True)
    with resilin.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="returned nan"):
        (x[1] * float("nan")).backward()


def test_zeros_around_a_part_of_moved_axes_lie_in_the_order_of_the_tensor_itself() -> None:
    whole = Region(np.ones((4, 2), np.float32), (slice(None), 1), (4, 3, 2)).whole((2, 0, 1))
    assert whole.shape == (4, 3, 2)
    assert whole.sum() == 8
    assert whole.transpose(1, 2, 0).flags.c_contiguous


@pytest.mark.parametrize("dtype", [resilin.bfloat16, resilin.float16], ids=str)
def test_gradients_of_parts_of_16_bits_are_summed_where_they_belong(dtype: resilin.dtype) -> None:
    x = resilin.ones(3, 2, dtype=dtype, requires_grad=True)
    (x[0, 1] * 2 + x[1].sum() * 3 + (x[0] * 5).sum() + x[0, 1] * 0.25).backward()
    assert x.grad.dtype is dtype
    assert x.grad.tolist() == [[5, 7.25], [3, 3], [0, 0]]
