"""What is added at one place is one chain: the element that is there, then the sources in the order of the indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import Tensor
from resilin.nn import functional

KINDS = [resilin.float32, resilin.float64, resilin.complex64, resilin.int64, resilin.uint8]
Add = Callable[[Tensor, Tensor, Tensor], Tensor]


def _chain(x: Any, at: Any, source: Any) -> Any:
    """Row by row, in order."""
    out = x.copy()
    for place, row in zip(at, source, strict=True):
        out[place] += row
    return out


def _across(at: Tensor, source: Tensor) -> Tensor:
    return at.reshape(-1, 1).expand(source.shape)


WAYS: dict[str, Add] = {
    "scatter_add": lambda x, at, s: x.scatter_add(0, _across(at, s), s),
    "scatter_add of a contiguous index": lambda x, at, s: x.scatter_add(0, _across(at, s).contiguous(), s),
    "scatter": lambda x, at, s: x.scatter(0, _across(at, s), s, reduce="add"),
    "scatter_reduce": lambda x, at, s: x.scatter_reduce(0, _across(at, s), s, "sum"),
    "index_add": lambda x, at, s: x.index_add(0, at, s),
    "index_add of columns": lambda x, at, s: x.T.index_add(1, at, s.T).T,
    "index_put": lambda x, at, s: x.index_put((at,), s, accumulate=True),
    "index_put of a square": lambda x, at, s: x.index_put(
        (at.reshape(-1, 20),), s.reshape(-1, 20, s.shape[1]), accumulate=True
    ),
    "index_put at elements": lambda x, at, s: x.index_put(
        (_across(at, s), resilin.arange(s.shape[1])), s, accumulate=True
    ),
    "put": lambda x, at, s: x.put(
        _across(at, s) * s.shape[1] + resilin.arange(s.shape[1]), s.contiguous(), accumulate=True
    ),
}


def _case(width: int, dtype: Any) -> tuple[Tensor, Tensor, Tensor]:
    r = np.random.default_rng(width)
    x, source = ((r.standard_normal((n, width)) * 9).astype("f4") for n in (9, 400))
    if dtype is resilin.uint8:
        x, source = abs(x), abs(source)
    given = [resilin.from_numpy(a).to(dtype) for a in (x, source)]
    return given[0], resilin.from_numpy(r.integers(0, 9, 400)), given[1]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("width", [1, 3, 70])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_element_comes_first_then_the_sources_in_order(way: Add, width: int, dtype: Any) -> None:
    x, at, source = _case(width, dtype)
    expected = _chain(x.numpy(), at.numpy(), source.numpy())
    strided = resilin.zeros(400, 2 * width, dtype=dtype)
    strided[:, ::2] = source
    threads = resilin.get_num_threads()
    try:
        for count in (1, 2):
            resilin.set_num_threads(count)
            np.testing.assert_array_equal(way(x, at, source).numpy(), expected)
            np.testing.assert_array_equal(way(x, at, strided[:, ::2]).numpy(), expected)
    finally:
        resilin.set_num_threads(threads)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_infinities_and_nan_are_added_as_any_number(way: Add) -> None:
    x, at, source = _case(3, resilin.float64)
    source[5, 0], source[6, 1], source[7, 2] = float("inf"), float("nan"), -float("inf")
    np.testing.assert_array_equal(way(x, at, source).numpy(), _chain(x.numpy(), at.numpy(), source.numpy()))
    np.testing.assert_array_equal(way(x, at[:0], source[:0]).numpy(), x.numpy())


@pytest.mark.parametrize("dtype", [resilin.float16, resilin.bfloat16])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_sixteen_bits_are_added_in_float32_and_rounded_once(way: Add, dtype: Any) -> None:
    x, at, source = _case(3, dtype)
    wide = resilin.from_numpy(_chain(x.float().numpy(), at.numpy(), source.float().numpy()))
    assert resilin.equal(way(x, at, source), wide.to(dtype))


def test_a_factor_multiplies_each_source() -> None:
    x, at, source = _case(70, resilin.float32)
    expected = _chain(x.numpy(), at.numpy(), source.numpy() * np.float32(0.3))
    np.testing.assert_array_equal(x.index_add(0, at, source, alpha=0.3).numpy(), expected)


def test_a_mean_is_of_the_same_chain() -> None:
    x, at, source = _case(3, resilin.float64)
    counts = 1 + np.bincount(at.numpy(), minlength=9)
    expected = _chain(x.numpy(), at.numpy(), source.numpy()) / counts[:, None]
    np.testing.assert_array_equal(x.scatter_reduce(0, _across(at, source), source, "mean").numpy(), expected)


@pytest.mark.parametrize("width", [1, 3, 70])
def test_bags_and_gradients_begin_at_zero(width: int) -> None:
    _, at, source = _case(width, resilin.float32)
    ends = np.arange(0, 400, 37)
    bags = functional.embedding_bag(resilin.arange(400), source, resilin.from_numpy(ends), mode="sum")
    chain = _chain(np.zeros(bags.shape, np.float32), np.searchsorted(ends, np.arange(400), "right") - 1, source.numpy())
    np.testing.assert_array_equal(bags.numpy(), chain)
    for take in (lambda w: w[at], lambda w: w.index_select(0, at), lambda w: functional.embedding(at, w)):
        w = resilin.zeros(9, width, requires_grad=True)
        (take(w) * source).sum().backward()
        assert w.grad is not None
        np.testing.assert_array_equal(
            w.grad.numpy(), _chain(np.zeros((9, width), np.float32), at.numpy(), source.numpy())
        )


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_gradients_are_those_of_a_sum(way: Add) -> None:
    x, at, source = _case(3, resilin.float64)
    weights = resilin.arange(27, dtype=resilin.float64).reshape(9, 3)
    x.requires_grad_()
    source.requires_grad_()
    (way(x, at, source) * weights).sum().backward()
    assert x.grad is not None
    assert source.grad is not None
    np.testing.assert_array_equal(x.grad.numpy(), weights.numpy())
    np.testing.assert_array_equal(source.grad.numpy(), weights.numpy()[at.numpy()])
