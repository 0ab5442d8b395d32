"""A weight's gradient that is a product: multiplied where it belongs, and the same bits wherever that is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import gemm
from resilin.core.kernels.loader import native
from resilin.core.ops.lazy_gradients import Product, written_out
from resilin.nn import Linear, Parameter
from resilin.nn.functional import linear

RNG = np.random.default_rng(0)


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def a_loss(w: Any) -> Any:
    return (linear(resilin.tensor(X), w) * resilin.tensor(G)).sum()


X, G = drawn(5, 4), drawn(5, 3)
EXPECTED = G.T @ X


class Taker:
    """Remembers what it was offered; takes it or not."""

    def __init__(self, takes: bool) -> None:
        self.takes, self.offered = takes, []  # type: tuple[bool, list[np.ndarray]]

    def take(self, leaf: Any, product: Product) -> bool:
        self.offered.append(product.whole())
        return self.takes


def test_it_is_written_straight_to_the_leafs_slot() -> None:
    w = Parameter(resilin.ones(3, 4))
    w._grad_slot = slot = np.full((3, 4), 9.0, np.float32)
    a_loss(w).backward()
    assert w.grad._array is slot
    np.testing.assert_allclose(slot, EXPECTED, rtol=1e-5)
    a_loss(w).backward()  # now there is a gradient: it is added to
    np.testing.assert_allclose(slot, 2 * EXPECTED, rtol=1e-5)


def test_a_slot_of_another_shape_or_dtype_is_left_alone() -> None:
    for slot in (np.zeros((4, 3), np.float32), np.zeros((3, 4), np.float64)):
        w = Parameter(resilin.ones(3, 4))
        w._grad_slot = slot
        a_loss(w).backward()
        assert not slot.any()
        np.testing.assert_allclose(w.grad.numpy(), EXPECTED, rtol=1e-5)


@pytest.mark.parametrize("takes", [True, False])
def test_a_taker_may_take_it_in_place_of_the_gradient(takes: bool) -> None:
    w = Parameter(resilin.ones(3, 4))
    w._grad_slot = taker = Taker(takes)
    a_loss(w).backward()
    np.testing.assert_allclose(taker.offered[0], EXPECTED, rtol=1e-5)
    assert (w.grad is None) is takes


def test_a_gradient_of_several_products_is_offered_to_nobody() -> None:
    w = Parameter(resilin.ones(3, 4))
    w._grad_slot = taker = Taker(takes=True)
    (a_loss(w) + a_loss(w)).backward()
    assert taker.offered == []
    np.testing.assert_allclose(w.grad.numpy(), 2 * EXPECTED, rtol=1e-5)


def test_hooks_captures_nodes_and_anomaly_detection_see_arrays() -> None:
    w, seen = Parameter(resilin.ones(3, 4)), []
    w.register_hook(lambda g: seen.append(g.numpy().copy()))
    a_loss(w).backward()
    a_loss(w * 1).backward()  # of a node, then of the leaf
    (captured,) = resilin.autograd.grad(a_loss(w), w)
    with resilin.autograd.detect_anomaly():
        a_loss(w).backward()
    for g in (*seen, captured.numpy()):
        np.testing.assert_allclose(g, EXPECTED, rtol=1e-5)
    assert len(seen) == 4  # grad() calls hooks, too


def test_products_of_half_and_complex_numbers_are_multiplied_at_once() -> None:
    for dtype in (resilin.bfloat16, resilin.complex64):
        layer = Linear(4, 3, dtype=dtype)
        layer.weight._grad_slot = taker = Taker(takes=True)
        layer(resilin.ones(2, 4, dtype=dtype)).sum().abs().backward()
        assert taker.offered == []
        assert layer.weight.grad is not None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(2, 1, 2), (3, 5, 4), (14, 31, 33), (15, 96, 65), (130, 17, 70)])
@pytest.mark.parametrize("tiles", ["avx512", "avx2", "portable"])
def test_a_scaled_product_has_the_bits_of_multiplying_and_adding_one_after_the_other(
    shape: tuple[int, int, int], dtype: str, tiles: str
) -> None:
    M, K, N = shape
    a, b, before = drawn(K, M, dtype=dtype).T, drawn(K, N, dtype=dtype), drawn(M, N, dtype=dtype)
    added, fresh = before.copy(), before.copy()
    try:
        has = native is not None and native.use_tiles(tiles)
        scaled = gemm.matmul(a, b) * np.dtype(dtype).type(1 / 3)
        done = gemm.matmul_put(a, b, added, 1 / 3, False) and gemm.matmul_put(a, b, fresh, 1 / 3, True)
    finally:
        if native is not None:
            native.use_tiles("")
    if has or native is None:  # else the best that this processor has were used
        assert done is (has and tiles != "portable")  # portable tiles would fuse the product's multiple with the sum
    assert np.array_equal(added, before + scaled if done else before)
    assert np.array_equal(fresh, scaled if done else before)


def test_what_cannot_be_scaled_is_refused_before_anything_is_written() -> None:
    out = np.ones((4, 5), np.float32)
    long = (drawn(4, 2000), drawn(2000, 5))  # more than one block of the depth
    other = (drawn(4, 3), drawn(3, 6))
    doubles = (drawn(4, 3, dtype="float64"), drawn(3, 5, dtype="float64"))
    overlapping = (out[:, :4], drawn(4, 5))
    vectors = (drawn(1, 3), drawn(3, 5))
    for a, b in (long, other, doubles, overlapping, vectors):
        assert gemm.matmul_put(a, b, out, 2.0, True) is False
    assert (out == 1).all()


def test_written_out_gives_the_array_of_a_product_and_leaves_arrays_alone() -> None:
    a, b = drawn(3, 4), drawn(4, 2)
    assert np.array_equal(written_out(Product(a, b)), gemm.matmul(a, b))
    assert written_out(a) is a
