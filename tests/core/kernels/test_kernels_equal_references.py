"""Native kernels against their numpy references: ragged sizes, strides, NaN and infinity."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from resilin.core.kernels import (
    attention,
    batch_norm,
    conv2d,
    cross_entropy,
    embedding,
    gelu,
    layer_norm,
    loader,
    optimizer_rules,
    optimizers,
    pack,
    pool,
    reduce_rows,
    relu,
    silu,
    softmax,
)
from resilin.errors import UsageError

RAGGED = [0, 1, 31, 33, 4097]
ROWS = [(0, 5), (1, 1), (3, 31), (33, 33), (2, 4097), (300, 7)]


def same(fast: Any, slow: Any, tol: float = 2e-5) -> None:
    """Equal within rounding, with equal shapes and dtypes; None only with None."""
    if isinstance(fast, tuple):
        assert len(fast) == len(slow)
        for a, b in zip(fast, slow, strict=True):
            same(a, b, tol)
    elif slow is None:
        assert fast is None
    else:
        assert fast.shape == slow.shape
        assert fast.dtype == slow.dtype
        np.testing.assert_allclose(fast.astype(np.float64), slow.astype(np.float64), rtol=tol, atol=tol)


def strided(x: Any) -> Any:
    """The same values in an array that is not contiguous."""
    wide = np.repeat(x, 2, axis=-1)
    return wide[..., ::2]


def test_native_kernels_are_loaded() -> None:
    assert loader.native is not None, loader.why
    assert "native" in loader.describe()


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm(rand: Any, shape: tuple[int, int], with_bias: bool) -> None:
    x, g, w = rand(*shape), rand(*shape), rand(shape[1])
    b = rand(shape[1]) if with_bias else None
    y, mean, rstd = fast = layer_norm.forward(x, w, b, 1e-5, shape[1])
    same(fast, layer_norm.reference_forward(x, w, b, 1e-5, shape[1]))
    same(layer_norm.backward(g, x, w, mean, rstd), layer_norm.reference_backward(g, x, w, mean, rstd), 1e-4)
    same(y, layer_norm.forward(strided(x), w, b, 1e-5, shape[1])[0])


def test_layer_norm_without_weight_gives_no_weight_gradient(rand: Any) -> None:
    x = rand(4, 3, 10)
    fast = layer_norm.forward(x, None, None, 1e-5, 30)
    same(fast, layer_norm.reference_forward(x, None, None, 1e-5, 30))
    gradients = layer_norm.backward(x, x, None, *fast[1:])
    assert gradients[1] is None
    same(gradients, layer_norm.reference_backward(x, x, None, *fast[1:]))


@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 3, 33), (8, 5, 4, 4), (33, 7), (2, 2, 4097)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(rand: Any, shape: tuple[int, ...], affine: bool) -> None:
    x, g = rand(*shape), rand(*shape)
    w, b = (rand(shape[1]), rand(shape[1])) if affine else (None, None)
    fast = batch_norm.forward(x, w, b, 1e-5)
    same(fast, batch_norm.reference_forward(x, w, b, 1e-5))
    _, mean, var = fast
    same(batch_norm.backward(g, x, w, mean, var, 1e-5), batch_norm.reference_backward(g, x, w, mean, var, 1e-5), 3e-4)


@pytest.mark.parametrize("shape", [*ROWS, (2, 3, 5), (4, 0)])
def test_softmax_and_log_softmax(rand: Any, shape: tuple[int, ...]) -> None:
    x, g = rand(*shape) * 5, rand(*shape)
    y, log_y = softmax.forward(x), softmax.log_forward(x)
    same(y, softmax.reference_forward(x))
    same(log_y, softmax.reference_log_forward(x))
    same(softmax.backward(g, y), softmax.reference_backward(g, y))
    same(softmax.log_backward(g, log_y), softmax.reference_log_backward(g, log_y), 1e-4)
    if x.size:
        same(softmax.forward(strided(x)), y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7, 5), 0), ((3, 300, 17), 1), ((2, 4, 9, 31), 1), ((600, 300), 0), ((4, 0, 3), 1), ((3, 0), 0)],
)
def test_softmax_along_other_dimensions(rand: Any, shape: tuple[int, ...], axis: int, dtype: Any) -> None:
    x, g = (rand(*shape).astype(dtype) for _ in range(2))
    lines = [np.ascontiguousarray(v.swapaxes(axis, -1)) for v in (x, g)]
    close = 1e-14 if dtype is np.float64 else None
    for of_log in (False, True):
        forward, backward = (
            (softmax.log_forward, softmax.log_backward) if of_log else (softmax.forward, softmax.backward)
        )
        y = forward(x, axis)
        assert y.flags.c_contiguous
        assert y.dtype == dtype
        rows = forward(lines[0])
        expected = rows.swapaxes(axis, -1), backward(lines[1], rows).swapaxes(axis, -1)
        for found, wanted in zip((y, backward(g, y, axis)), expected, strict=True):
            np.testing.assert_allclose(found, wanted, close or 1e-5, close or 1e-5)
        slow = (softmax.reference_log_forward if of_log else softmax.reference_forward)(lines[0])
        np.testing.assert_allclose(rows, slow, close or 1e-5, close or 1e-5)


def test_softmax_of_extreme_columns() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[1e30, -1e30, 0], [-inf, 0, 1], [nan, 0, 1], [-inf, -inf, -inf], [inf, 0, 0]])
    for dtype in (np.float32, np.float64):
        for forward in (softmax.forward, softmax.log_forward):
            rows = forward(x.astype(dtype))
            np.testing.assert_allclose(forward(x.T.astype(dtype), 0), rows.T, rtol=1e-6)
    np.testing.assert_allclose(softmax.forward(x), softmax.reference_forward(x), rtol=1e-14)


def test_softmax_of_extreme_rows(rand: Any) -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[1e30, -1e30, 0], [-inf, 0, 1], [nan, 0, 1], [-inf, -inf, -inf], [inf, 0, 0]], np.float32)
    for fast, slow in (
        (softmax.forward, softmax.reference_forward),
        (softmax.log_forward, softmax.reference_log_forward),
    ):
        np.testing.assert_allclose(fast(x), slow(x), rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (33, 10), (5, 4097), (0, 3)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [True, False])
def test_cross_entropy(rand: Any, shape: tuple[int, int], smoothing: float, weighted: bool) -> None:
    z, g = rand(*shape) * 3, rand(shape[0])
    target = np.arange(shape[0], dtype=np.int64) % shape[1]
    target[::5] = -100
    w = np.abs(rand(shape[1])) if weighted else None
    fast = cross_entropy.forward(z, target, w, -100, smoothing)
    same(fast, cross_entropy.reference_forward(z, target, w, -100, smoothing), 1e-4)
    args = (g, z, target, fast[1], w, -100, smoothing)
    same(cross_entropy.backward(*args), cross_entropy.reference_backward(*args))


@pytest.mark.parametrize("classes", [1, 3, 4, 15, 16, 17])
def test_cross_entropy_of_a_row_has_the_same_bits_alone_and_among_many(rand: Any, classes: int) -> None:
    z, target = rand(45, classes) * 3, np.arange(45, dtype=np.int64) % classes
    z[7, 0], z[20] = np.nan, -np.inf
    loss, lse = cross_entropy.forward(z, target, None, -100, 0.1)
    for row in range(45):
        alone = cross_entropy.forward(z[row : row + 1], target[row : row + 1], None, -100, 0.1)
        np.testing.assert_array_equal(loss[row : row + 1], alone[0])
        np.testing.assert_array_equal(lse[row : row + 1], alone[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropy_names_a_target_that_is_no_class(rand: Any, dtype: type) -> None:
    with pytest.raises(UsageError, match=r"target\[1\] is 4; expected a class in \[0, 4\)"):
        cross_entropy.forward(rand(2, 4).astype(dtype), np.array([0, 4]), None, -100, 0.0)


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(rand: Any, n: int, approximate: str) -> None:
    x, g = rand(n) * 4, rand(n)
    y = gelu.forward(x, approximate)
    # the reference in float64: in float32 its 1 + tanh(u) loses digits that the kernel keeps
    exact = x.astype(np.float64)
    same(y, gelu.reference_forward(exact, approximate).astype(np.float32), 1e-6)
    same(gelu.backward(g, x, approximate), gelu.reference_backward(g, exact, approximate).astype(np.float32), 4e-6)
    same(gelu.reference_forward(x, approximate), y, 4e-6)
    same(gelu.forward(strided(x), approximate), y, 1e-6)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_at_the_ends_of_the_line(approximate: str) -> None:
    x = np.array([1e30, 50, 0, -50, -1e30, np.nan, np.inf, -np.inf], np.float32)
    one = np.ones_like(x)
    far = np.nan if approximate == "tanh" else 1.0  # the tanh formula squares x
    np.testing.assert_allclose(gelu.forward(x, approximate)[:7], [1e30, 50, 0, 0, 0, np.nan, np.inf], rtol=1e-6)
    expected = [far, 1, 0.5, 0, far * 0, np.nan, np.nan, np.nan]  # as in PyTorch
    np.testing.assert_allclose(gelu.backward(one, x, approximate), expected, atol=1e-6)
    np.testing.assert_allclose(gelu.reference_backward(one, x, approximate), expected, atol=1e-6)


@pytest.mark.parametrize("n", RAGGED)
def test_silu(rand: Any, n: int) -> None:
    x, g = rand(n) * 8, rand(n)
    exact = x.astype(np.float64)
    same(silu.forward(x), silu.reference_forward(exact).astype(np.float32), 1e-6)
    same(silu.backward(g, x), silu.reference_backward(g, exact).astype(np.float32), 2e-6)
    same(silu.reference_forward(x), silu.forward(strided(x)), 1e-6)
    same(silu.reference_backward(g, x), silu.backward(strided(g), x), 2e-6)


@pytest.mark.parametrize("forward", [silu.forward, silu.reference_forward])
@pytest.mark.parametrize("backward", [silu.backward, silu.reference_backward])
def test_silu_at_the_ends_of_the_line(forward: Any, backward: Any) -> None:
    x = np.array([np.inf, 1e30, 100, 0, -100, -1e30, np.nan], np.float32)
    np.testing.assert_allclose(forward(x), [np.inf, 1e30, 100, 0, 0, 0, np.nan], rtol=1e-6, atol=1e-30)
    slope = backward(np.ones_like(x), x)
    np.testing.assert_allclose(slope[1:], [1, 1, 0.5, 0, 0, np.nan], rtol=1e-6, atol=1e-30)
    assert np.isnan(forward(np.array([-np.inf], np.float32))[0])  # -inf * 0, as in PyTorch


@pytest.mark.parametrize("n", RAGGED)
def test_relu(rand: Any, n: int) -> None:
    x, g = rand(n), rand(n)
    if n > 1:
        x[1] = np.nan
    y = relu.forward(x)
    np.testing.assert_array_equal(y, relu.reference_forward(x))
    np.testing.assert_array_equal(relu.backward(g, y), relu.reference_backward(g, y))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), pack.BFLOAT16], ids=str)
@pytest.mark.parametrize("n", [0, 1, 33, 70001])
def test_relu_back_of_16_bits_is_the_references_whatever_there_is(dtype: np.dtype[Any], n: int) -> None:
    every = np.arange(n, dtype=np.uint32).astype(np.uint16)  # of 70001, all patterns, NaN of both signs too
    y, g = every.view(dtype), every[::-1].view(dtype)
    with np.errstate(invalid="ignore"):
        right = np.where(y <= 0, dtype.type(0), g)
    for given in (g, np.repeat(g, 2)[::2]):  # and not contiguous
        with np.errstate(invalid="ignore"):
            dx = relu.backward(given, y)
        np.testing.assert_array_equal(dx.astype(np.float32), right.astype(np.float32))


def _attention_reference(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, drop: Any) -> Any:
    added = None if mask is None else np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
    p = attention.reference_masked_softmax(q @ k.swapaxes(-1, -2), added, causal, scale)
    return (p if drop is None else p * drop) @ v


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (1, 2, 33, 31, 16), (2, 1, 7, 7, 3)])
@pytest.mark.parametrize("kind", ["plain", "causal", "bool mask", "float mask", "shared mask", "key mask"])
@pytest.mark.parametrize("dropout", [True, False])
def test_attention(rand: Any, shape: tuple[int, ...], kind: str, dropout: bool) -> None:
    B, H, T, S, D = shape
    q, k, v = rand(B, H, T, D), rand(B, H, S, D), rand(B, H, S, D + 1)
    masks = {
        "bool mask": rand(B, H, T, S) > 0,
        "float mask": rand(B, H, T, S),
        "shared mask": rand(T, S),
        "key mask": rand(B, 1, 1, S) > -1,
    }
    mask, causal = masks.get(kind), kind == "causal"
    drop = (rand(B, H, T, S) > 0) * np.float32(2) if dropout else None
    y, saved = attention.forward(q, k, v, mask, causal, 0.3, drop)
    same(y, _attention_reference(q, k, v, mask, causal, 0.3, drop).astype(np.float32))
    # gradients: the derivative along a random direction, in float64
    g = rand(*y.shape)
    found = attention.backward(g, saved)
    for i, x in enumerate((q, k, v)):
        step = rand(*x.shape).astype(np.float64)
        both = []
        for sign in (1, -1):
            moved = [a.astype(np.float64) for a in (q, k, v)]
            moved[i] = moved[i] + sign * 1e-6 * step
            both.append((_attention_reference(*moved, mask, causal, 0.3, drop) * g).sum())
        expected = (both[0] - both[1]) / 2e-6
        np.testing.assert_allclose((found[i] * step).sum(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dropout", [True, False])
def test_long_causal_attention_in_float32_equals_float64(rand: Any, dropout: bool) -> None:
    B, H, T, D = 1, 2, 131, 5  # three blocks of queries
    q, k, v, g = (rand(B, H, T, D) for _ in range(4))
    drop = (rand(B, H, T, T) > 0) * np.float32(2) if dropout else None
    wide = [x.astype(np.float64) for x in (q, k, v)]
    wide_drop = None if drop is None else drop.astype(np.float64)
    y, saved = attention.forward(q, k, v, None, True, 0.4, drop)
    exact, exact_saved = attention.forward(*wide, None, True, 0.4, wide_drop)
    hidden = np.where(np.tri(T, dtype=bool), 0, -np.inf)
    np.testing.assert_allclose(exact, _attention_reference(*wide, hidden, False, 0.4, wide_drop), rtol=1e-10)
    same(y, exact.astype(np.float32), 1e-5)
    for fast, slow in zip(attention.backward(g, saved), attention.backward(g, exact_saved), strict=True):
        same(fast, slow.astype(np.float32), 3e-5)


@pytest.mark.skipif(loader.native is None, reason="there is no native module: its kernels have nothing to take")
@pytest.mark.parametrize("mask", [(), (9, 70), (1, 70), (2, 1, 1, 70), (1, 3, 9, 70), (2, 3, 9, 70)])
def test_masks_of_every_shape_that_broadcasts_reach_the_kernel(
    rand: Any, mask: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = rand(2, 3, 9, 4), rand(2, 3, 70, 4), rand(2, 3, 70, 5)
    added = rand(*mask) if mask else None
    expected = _attention_reference(q, k, v, added, False, 0.4, None).astype(np.float32)
    monkeypatch.setattr(attention, "matmul", None)  # the other way has products of its own
    y, saved = attention.forward(q, k, v, added, False, 0.4, None)
    same(y, expected)
    assert [d.shape for d in attention.backward(y, saved)] == [q.shape, k.shape, v.shape]


@pytest.mark.parametrize(("T", "S"), [(130, 40), (40, 130), (57, 57)])
def test_causal_attention_over_more_and_over_fewer_keys_than_queries(rand: Any, T: int, S: int) -> None:
    q, k, v, g = rand(2, T, 6), rand(2, S, 6), rand(2, S, 3), rand(2, T, 3)
    y, saved = attention.forward(q, k, v, None, True, 0.4, None)
    exact, exact_saved = attention.forward(*(x.astype(np.float64) for x in (q, k, v)), None, True, 0.4, None)
    same(y, exact.astype(np.float32), 1e-5)
    for fast, slow in zip(attention.backward(g, saved), attention.backward(g, exact_saved), strict=True):
        same(fast, slow.astype(np.float32), 3e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_attention_of_large_sixteen_bit_numbers_is_that_of_float32(rand: Any, dtype: Any) -> None:
    q, k, v, g = (rand(2, 9, 4) * size for size in (3000, 3000, 1, 1))
    q, k, v, g = (x.astype(dtype) for x in (q, k, v, g))
    y, saved = attention.forward(q, k, v, None, True, 1e-6, None)
    wide, wide_saved = attention.forward(*(x.astype(np.float32) for x in (q, k, v)), None, True, 1e-6, None)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, wide.astype(dtype))
    for half, single in zip(
        attention.backward(g, saved), attention.backward(g.astype(np.float32), wide_saved), strict=True
    ):
        np.testing.assert_array_equal(half, single.astype(dtype))
        assert np.isfinite(half.astype(np.float32)).all()


def test_heads_of_one_tensor_are_read_and_joined_where_they_lie(rand: Any) -> None:
    qkv = rand(2, 65, 3, 4, 8).transpose(2, 0, 3, 1, 4)
    y, saved = attention.forward(qkv[0], qkv[1], qkv[2], None, True, 0.3, None)
    apart, apart_saved = attention.forward(*(np.ascontiguousarray(x) for x in qkv), None, True, 0.3, None)
    np.testing.assert_array_equal(y, apart)
    assert y.transpose(0, 2, 1, 3).flags.c_contiguous
    for one, other in zip(attention.backward(y, saved), attention.backward(apart, apart_saved), strict=True):
        np.testing.assert_array_equal(one, other)


def test_attention_of_a_query_without_keys_is_zero(rand: Any) -> None:
    q = rand(1, 1, 3, 4)
    mask = np.array([[True, True, False], [False, False, False], [True, False, False]])
    y, saved = attention.forward(q, q, q, mask, False, 0.5, None)
    assert not y[0, 0, 1].any()
    assert all(np.isfinite(d).all() for d in attention.backward(y, saved))


CONVOLUTIONS = [  # x, w, stride, padding, dilation, groups
    ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 3, 8, 8), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((3, 4, 9, 7), (6, 2, 3, 2), (2, 1), (1, 0), (1, 2), 2),
    ((2, 4, 5, 6), (4, 1, 5, 5), (3, 2), (4, 4), (1, 1), 4),
    ((0, 3, 8, 8), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 16, 70, 66), (5, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # several tiles of one sample
    ((70, 3, 5, 5), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # several samples in one tile
    ((2, 6, 40, 30), (4, 6, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((3, 64, 4, 4), (256, 64, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 2, 3, 3), (2, 2, 1, 1), (1, 1), (3, 3), (1, 1), 1),  # windows that see padding only
    ((3, 3, 37, 70), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),  # channels by themselves
    ((2, 5, 9, 23), (10, 1, 3, 5), (1, 2), (2, 3), (2, 1), 5),
    ((2, 4, 16, 39), (4, 1, 2, 3), (3, 3), (0, 1), (1, 2), 4),
    ((1, 2, 3, 3), (2, 1, 1, 1), (2, 1), (0, 0), (1, 1), 2),
    ((2, 3, 4, 1), (6, 1, 3, 7), (1, 4), (1, 3), (1, 1), 3),
    ((0, 3, 8, 8), (3, 1, 3, 3), (1, 1), (1, 1), (1, 1), 3),
    ((2, 21, 5, 7), (21, 1, 3, 3), (1, 1), (1, 1), (1, 1), 21),  # several channels in a vector
    ((3, 40, 8, 8), (40, 1, 5, 5), (1, 1), (2, 2), (1, 1), 40),
    ((1, 32, 9, 9), (32, 1, 3, 2), (2, 2), (1, 0), (2, 3), 32),
    ((2, 17, 2, 2), (17, 1, 3, 3), (1, 1), (1, 1), (1, 1), 17),
    ((1, 16, 30, 1), (16, 1, 7, 1), (3, 1), (0, 0), (1, 1), 16),
    ((2, 35, 4, 4), (50, 35, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # weights whose sides are no whole squares
    ((2, 48, 4, 4), (96, 24, 3, 3), (1, 1), (1, 1), (1, 1), 2),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_convolution_kernels(rand: Any, case: Any, dtype: type) -> None:
    shape, w_shape, stride, padding, dilation, groups = case
    x, w, b = (rand(*size).astype(dtype) for size in (shape, w_shape, w_shape[:1]))
    geometry = conv2d.Geometry(w_shape[2:], stride, padding, dilation)
    tol = 5e-4 if dtype is np.float32 else 1e-10  # of sums of thousands of products
    y = conv2d.forward(x, w, b, stride, padding, dilation, groups)
    same(y, conv2d.reference_forward(x, w, b, geometry, groups), tol)
    g = rand(*y.shape).astype(dtype)
    dx, dw, db = conv2d.backward(g, x, w, stride, padding, dilation, groups)
    same(dx, conv2d.reference_input_gradient(g, w, x.shape, geometry, groups), tol)
    same((dw, db), conv2d.reference_weight_gradient(g, x, w.shape, geometry, groups), tol)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv2d_equals_its_definition(rand: Any, case: Any) -> None:
    shape, w_shape, stride, padding, dilation, groups = case
    x, w, b = rand(*shape), rand(*w_shape), rand(w_shape[0])
    y = conv2d.forward(x, w, b, stride, padding, dilation, groups)
    geometry = conv2d.Geometry(w_shape[2:], stride, padding, dilation)
    windows = conv2d.im2col(x.astype(np.float64), geometry)
    windows = windows.reshape(groups, windows.shape[0] // groups, windows.shape[1])
    expected = np.matmul(w.reshape(groups, w_shape[0] // groups, -1), windows)
    expected = expected.reshape(w_shape[0], shape[0], *y.shape[2:]).swapaxes(0, 1) + b[:, None, None]
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    # <g, conv(x)> is linear in x, w and b: gradients follow from one number each
    g = rand(*y.shape)
    dx, dw, db = conv2d.backward(g, x, w, stride, padding, dilation, groups)
    linear = (g * (y - b[:, None, None])).sum()
    np.testing.assert_allclose([(dx * x).sum(), (dw * w).sum()], [linear, linear], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(db, g.sum(axis=(0, 2, 3)), rtol=1e-4, atol=1e-4)


def test_conv2d_in_many_chunks_equals_one_chunk(rand: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = rand(5, 3, 6, 6), rand(4, 3, 3, 3), rand(4)
    args = ((1, 1), (1, 1), (1, 1), 1)
    y = conv2d.forward(x, w, b, *args)
    gradients = conv2d.backward(y, x, w, *args)
    monkeypatch.setattr(conv2d, "_CHUNK_BYTES", 1)
    same(conv2d.forward(x, w, b, *args), y)
    same(conv2d.backward(y, x, w, *args), gradients, 1e-4)


def test_conv2d_computes_only_what_is_needed(rand: Any) -> None:
    x, w = rand(2, 3, 6, 6), rand(4, 3, 3, 3)
    y = conv2d.forward(x, w, None, (1, 1), (0, 0), (1, 1), 1)
    found = conv2d.backward(y, x, w, (1, 1), (0, 0), (1, 1), 1, need=(False, True, False))
    assert [part is not None for part in found] == [False, True, False]


def test_conv2d_refuses_a_window_larger_than_the_input(rand: Any) -> None:
    with pytest.raises(UsageError, match="smaller than the window of 5"):
        conv2d.forward(rand(1, 1, 3, 3), rand(1, 1, 5, 5), None, (1, 1), (0, 0), (1, 1), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "padding", "dilation", "ceil_mode"),
    [
        ((2, 3, 8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
        ((1, 2, 9, 7), (3, 2), (2, 3), (1, 1), (1, 1), True),
        ((2, 1, 9, 9), (3, 3), (1, 2), (0, 1), (2, 1), False),
        ((1, 1, 5, 5), (3, 3), (3, 3), (0, 0), (1, 1), True),
        ((0, 2, 4, 4), (2, 2), (2, 2), (0, 0), (1, 1), False),
        ((2, 2, 1, 5), (2, 2), (1, 1), (1, 1), (2, 2), True),
    ],
)
def test_max_pool2d(
    rand: Any, dtype: type, shape: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> None:
    x = rand(*shape).astype(dtype)
    if x.size:
        x.flat[3] = np.nan
        x[0, 0, :2] = -np.inf
    fast = y, index = pool.max2d_forward(x, kernel, stride, padding, dilation, ceil_mode)
    same(fast, pool.reference_max2d_forward(x, y.shape[2:], kernel, stride, padding, dilation), 0)
    g = rand(*y.shape).astype(dtype)
    same(pool.max2d_backward(g, index, shape), pool.reference_max2d_backward(g, index, shape), 1e-6)


@pytest.mark.parametrize(
    "shape", [(3, 2, 8, 8), (1, 3, 9, 11), (2, 2, 6, 15), (1, 2, 2, 56), (2, 1, 7, 6), (70, 32, 8, 8)]
)
def test_max_pool2d_of_neighbours_prefers_the_first_maximum_and_the_first_nan(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).choice(np.array([0, -0.0, 1, np.nan, np.inf, -np.inf], np.float32), shape)
    y, index = pool.max2d_forward(x, (2, 2), (2, 2), (0, 0), (1, 1), False)
    slow = pool.reference_max2d_forward(x, y.shape[2:], (2, 2), (2, 2), (0, 0), (1, 1))
    np.testing.assert_array_equal(y.view(np.int32), slow[0].view(np.int32))
    np.testing.assert_array_equal(index, slow[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize(
    ("shape", "windows"),
    [
        ((2, 3, 8, 9), [(2, 2, 0, False, True)] * 2),
        ((1, 2, 7, 5), [(3, 2, 1, True, True), (2, 3, 1, True, False)]),
        ((1, 1, 2, 2), [(3, 3, 0, True, True)] * 2),
        ((70, 31, 14, 14), [(3, 1, 1, False, False)] * 2),
        ((2, 3, 7, 5), [3, 4]),
        ((2, 3, 3, 2), [7, 5]),
        ((3, 2, 33, 31), [1, 1]),
        ((0, 2, 4, 4), [2, 2]),
        ((2, 2, 4, 4), [0, 2]),
    ],
)
def test_avg_pool2d(rand: Any, dtype: type, shape: Any, windows: Any) -> None:
    rows, columns = (
        pool.adaptive_windows(size, given) if isinstance(given, int) else pool.average_windows(size, *given)
        for size, given in zip(shape[2:], windows, strict=True)
    )
    x = rand(*shape).astype(dtype)
    if x.size:
        x.flat[3] = np.nan
        x.flat[-1] = np.inf
    y = pool.avg2d_forward(x, rows, columns)
    tol = 1e-3 if dtype is np.float16 else 1e-6
    same(y, pool.reference_avg2d_forward(x, rows, columns), tol)
    g = rand(*y.shape).astype(dtype)
    slow = pool.reference_avg2d_backward(g, rows, columns, shape[2:])
    same(pool.avg2d_backward(g, rows, columns, shape[2:]), slow, tol)


@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("shape", [(0,), (1,), (7, 33), (4097,)])
def test_embedding(rand: Any, shape: tuple[int, ...], padding_idx: int | None) -> None:
    weight = rand(9, 33)
    index = np.random.default_rng(0).integers(0, 9, shape)
    y = embedding.forward(weight, index)
    np.testing.assert_array_equal(y, weight[index])
    g = rand(*y.shape)
    slow = embedding.reference_backward(g, index, 9, padding_idx)
    np.testing.assert_array_equal(embedding.backward(g, index, 9, padding_idx), slow)  # the same order: the same bits


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(("length", "starts"), [(0, [0]), (1, [0, 1, 1]), (70, [0, 0, 3, 3, 41]), (4097, [0, 4000])])
def test_bags_of_embeddings(rand: Any, length: int, starts: list[int], mean: bool) -> None:
    weight, index = rand(9, 133), np.random.default_rng(0).integers(0, 9, length)
    begins = np.array(starts)
    assert embedding.are_bags(index, begins, 9) or loader.native is None
    y = embedding.bags_forward(weight, index, begins, mean)
    np.testing.assert_array_equal(y, embedding.reference_bags_forward(weight, index, begins, mean))
    g = rand(*y.shape)
    slow = embedding.reference_bags_backward(g, index, begins, mean, 9)
    np.testing.assert_array_equal(embedding.bags_backward(g, index, begins, mean, 9), slow)


@pytest.mark.parametrize(
    ("index", "starts"), [([1, 9], [0]), ([-1], [0]), ([1], [1]), ([1, 1], [0, 2, 1]), ([1], [0, 2]), ([1], [])]
)
def test_wrong_bags_are_told_from_others(index: list[int], starts: list[int]) -> None:
    assert not embedding.are_bags(np.array(index, np.int64), np.array(starts, np.int64), 9)


@pytest.mark.parametrize("wrong", [-1, 9])
def test_embedding_names_an_index_outside_the_table(rand: Any, wrong: int) -> None:
    with pytest.raises(UsageError, match=rf"index {wrong} is outside \[0, 9\)"):
        embedding.forward(rand(9, 2), np.array([1, wrong]))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (31, 33), (1000, 5), (3, 4097)])
def test_sum_rows(rand: Any, shape: tuple[int, int]) -> None:
    x = rand(*shape)
    same(reduce_rows.sum_rows(x), reduce_rows.reference_sum_rows(x), 1e-4)
    same(reduce_rows.sum_rows(strided(x)), reduce_rows.reference_sum_rows(x), 1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("maximize", [True, False])
def test_sgd(rand: Any, dtype: type, momentum: float, nesterov: bool, maximize: bool) -> None:
    sizes = RAGGED
    fast = [rand(n).astype(dtype) for n in sizes]
    slow = [p.copy() for p in fast]
    bufs = [np.full_like(p, np.nan) for p in fast]  # the first step must not read them
    slow_bufs = [b.copy() for b in bufs]
    rates = {"lr": 0.1, "momentum": momentum, "dampening": 0.2, "weight_decay": 0.01}
    flags = {"nesterov": nesterov and momentum > 0, "maximize": maximize}
    for step in range(3):
        grads = [rand(n).astype(dtype) for n in sizes]
        optimizers.sgd(fast, grads, bufs if momentum else None, **rates, **flags, first=step == 0)
        for p, g, b in zip(slow, grads, slow_bufs, strict=True):
            buf = b if momentum else None
            constants = optimizers.sgd_constants(*rates.values(), *flags.values(), step == 0)
            optimizer_rules.sgd(p, g, buf, *map(p.dtype.type, constants))
    for a, b in zip(fast, slow, strict=True):
        same(a, b, 1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("amsgrad", [True, False])
def test_adam(rand: Any, dtype: type, decoupled: bool, amsgrad: bool) -> None:
    sizes = RAGGED
    fast = [[rand(n).astype(dtype) for n in sizes], *([np.zeros(n, dtype) for n in sizes] for _ in range(3))]
    slow = [[a.copy() for a in group] for group in fast]
    rates = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
    flags = {"decoupled": decoupled, "maximize": False}
    for step in range(1, 4):
        grads = [rand(n).astype(dtype) for n in sizes]
        p, m, v, top = fast
        optimizers.adam(p, grads, m, v, top if amsgrad else None, step=step, **rates, **flags)
        for i, g in enumerate(grads):
            p_, m_, v_, top_ = (group[i] for group in slow)
            constants = optimizers.adam_constants(step, *rates.values(), *flags.values())
            optimizer_rules.adam(p_, g, m_, v_, top_ if amsgrad else None, *map(p_.dtype.type, constants))
    for a, b in zip(fast, slow, strict=True):
        for x, y in zip(a, b, strict=True):
            same(x, y, 1e-5)


def test_optimizers_take_strided_gradients_and_parameters(rand: Any) -> None:
    start, grad = rand(6, 8), rand(8, 6).T
    rates: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0}
    flags: dict[str, Any] = {"nesterov": False, "maximize": False, "first": True}
    expected = start - np.float32(0.1) * grad
    plain, transposed = start.copy(), np.asfortranarray(start)
    optimizers.sgd([plain], [grad], None, **rates, **flags)
    optimizers.sgd([transposed], [grad], None, **rates, **flags)
    same(plain, expected, 1e-6)
    same(transposed, expected, 1e-6)
