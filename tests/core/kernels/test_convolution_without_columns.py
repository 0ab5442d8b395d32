"""Convolutions that read one copy of an image at offsets: values, the documented order, the same bits everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import resilin as torch
import resilin.nn.functional as F
from resilin.core.kernels import conv2d, pack
from resilin.core.kernels.loader import native
from resilin.core.machine import threads

TILES = ["avx512_bf16", "avx512", "avx2", "portable"]
GROUP = 32  # channels of bfloat16 whose sums are two chains
needs_native = pytest.mark.skipif(native is None, reason="without native code there is one form of it")

CASES = [  # x, w, stride, padding, dilation, groups
    ((2, 8, 16, 16), (9, 8, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # rows that vectors fill
    ((3, 16, 28, 28), (24, 16, 3, 3), (1, 1), (2, 2), (2, 2), 1),
    ((16, 64, 8, 8), (32, 64, 3, 3), (2, 2), (1, 1), (1, 1), 1),  # samples side by side
    ((9, 32, 6, 6), (32, 32, 3, 3), (1, 1), (0, 0), (1, 1), 1),
    ((9, 32, 8, 8), (32, 32, 3, 3), (2, 1), (1, 1), (1, 1), 1),
    ((70, 32, 2, 2), (16, 32, 2, 2), (1, 1), (1, 1), (1, 1), 1),
    ((2, 16, 33, 65), (20, 4, 5, 3), (2, 1), (2, 0), (1, 2), 4),
    ((2, 40, 11, 13), (36, 40, 4, 4), (2, 2), (1, 1), (1, 1), 1),
    ((5, 12, 5, 5), (8, 6, 3, 3), (3, 2), (1, 2), (1, 1), 2),
    ((2, 8, 12, 12), (12, 8, 2, 2), (3, 3), (0, 0), (1, 1), 1),  # elements that no window reads
    ((2, 8, 1, 3000), (16, 8, 1, 5), (1, 1), (0, 2), (1, 1), 1),  # parts of one row
    ((2, 8, 6, 6), (8, 8, 3, 3), (1, 1), (5, 5), (1, 1), 1),  # windows of nothing but padding
    ((1, 512, 4, 4), (20, 512, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # weights a page apart
    ((2, 16, 9, 9), (8, 16, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((9, 330, 4, 8), (12, 330, 1, 1), (1, 1), (0, 0), (1, 1), 1),  # more channels than places of the kernel, by far
    ((16, 72, 4, 4), (30, 72, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # samples in lanes
    ((35, 16, 2, 2), (15, 16, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # two vectors of them, and three samples beside
    ((17, 24, 5, 9), (18, 12, 3, 5), (1, 2), (2, 3), (1, 1), 2),
    ((48, 16, 7, 7), (8, 16, 4, 4), (2, 2), (1, 1), (1, 1), 1),
    ((16, 8, 6, 20), (8, 8, 3, 3), (1, 1), (4, 4), (4, 4), 1),
    ((16, 320, 12, 12), (7, 320, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # in parts of rows
    ((16, 16, 3, 3), (8, 16, 2, 2), (1, 1), (3, 3), (1, 1), 1),  # positions that read nothing
    ((33, 10, 12, 13), (5, 10, 5, 3), (2, 2), (1, 1), (1, 1), 1),  # as many weights in a place as outputs by places
    ((3, 16, 8, 18), (4, 16, 4, 4), (2, 2), (1, 1), (1, 1), 1),
    # as many outputs as strides: what an element's places take of all outputs is as long as an output's whole kernel
    ((8, 8, 14, 5), (2, 8, 4, 5), (2, 1), (2, 2), (1, 1), 1),
    ((17, 8, 9, 9), (4, 8, 6, 6), (2, 2), (1, 1), (1, 1), 1),
    ((9, 48, 11, 11), (6, 16, 5, 4), (1, 2), (1, 2), (1, 1), 3),
    ((9, 16, 11, 11), (8, 16, 4, 8), (2, 4), (1, 2), (1, 1), 1),
]


@pytest.fixture(autouse=True)
def same_threads_and_tiles_afterwards() -> Iterator[None]:
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)
    if native is not None:
        native.use_tiles("")


def drawn(case: Any, dtype: Any = np.float32) -> tuple[np.ndarray, ...]:
    """x, w, bias and the gradient of the output, for a case."""
    shape, w_shape, stride, padding, dilation, _ = case
    rng = np.random.default_rng(len(CASES))
    out = conv2d.Geometry(w_shape[2:], stride, padding, dilation).out_size(*shape[2:])
    sizes = shape, w_shape, w_shape[:1], (shape[0], w_shape[0], *out)
    return tuple(rng.standard_normal(size).astype(np.float32).astype(dtype) for size in sizes)


def computed(case: Any, dtype: Any = np.float32) -> list[np.ndarray]:
    """Output and gradients of a case, by kernels."""
    x, w, bias, g = drawn(case, dtype)
    return [conv2d.forward(x, w, bias, *case[2:]), *conv2d.backward(g, x, w, *case[2:])]  # type: ignore[list-item]


def expected(case: Any, dtype: Any = np.float32) -> list[np.ndarray]:
    """The same in float64, by numpy."""
    x, w, bias, g = (array.astype(np.float32).astype(np.float64) for array in drawn(case, dtype))
    geometry, groups = conv2d.Geometry(w.shape[2:], *case[2:5]), case[5]
    return [
        conv2d.reference_forward(x, w, bias, geometry, groups),
        conv2d.reference_input_gradient(g, w, x.shape, geometry, groups),
        *conv2d.reference_weight_gradient(g, x, w.shape, geometry, groups),
    ]


def bits(arrays: list[np.ndarray]) -> list[bytes]:
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "within"), [(np.float32, 2e-6), (pack.BFLOAT16, 2**-8)], ids=["float32", "bfloat16"])
def test_values_are_those_of_double_precision(case: Any, dtype: Any, within: float) -> None:
    for found, right in zip(computed(case, dtype), expected(case, dtype), strict=True):
        assert found.dtype == dtype
        assert found.shape == right.shape
        np.testing.assert_allclose(found.astype(np.float64), right, rtol=within, atol=within * np.abs(right).max() / 4)


@needs_native
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [np.float32, pack.BFLOAT16], ids=["float32", "bfloat16"])
def test_bits_depend_neither_on_threads_nor_on_instructions(case: Any, dtype: Any) -> None:
    first = None
    for tiles in TILES:
        if not native.use_tiles(tiles) or (tiles == "portable" and dtype is np.float32):
            continue  # a CPU without fused multiply-adds rounds products of float32
        for count in (1, 2, 3):
            threads.set_num_threads(count)
            found = bits(computed(case, dtype))
            assert first is None or found == first, (tiles, count)
            first = found


@pytest.mark.parametrize("dtype", [np.float32, pack.BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", [case for case in CASES if case[0][0] >= 16])
def test_a_samples_bits_do_not_depend_on_those_beside_it(case: Any, dtype: Any) -> None:
    (x, w, bias, g), rest = drawn(case, dtype), case[2:]
    some = 15 if x[:15, 0].size >= 64 * rest[0][0] * rest[0][1] else 31  # not so few that columns are cheaper
    found = conv2d.forward(x, w, bias, *rest), conv2d.backward(g, x, w, *rest, need=(True, False, False))[0]
    x, g = x[:some], g[:some]
    fewer = conv2d.forward(x, w, bias, *rest), conv2d.backward(g, x, w, *rest, need=(True, False, False))[0]
    assert bits([array[:some] for array in found]) == bits(list(fewer))


def windows_of(x: np.ndarray) -> np.ndarray:
    """What the windows of 3 x 3 with padding 1 read: (channel, place, position)."""
    found = conv2d.im2col(x.astype(np.float32), conv2d.Geometry((3, 3), (1, 1), (1, 1), (1, 1)))
    return found.reshape(x.shape[1], 9, -1)


def chain(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sum over the first axis, a fused multiply-add after another: exact products, rounded sums."""
    total = np.zeros(np.broadcast_shapes(weights.shape[1:], values.shape[1:]), np.float32)
    for weight, value in zip(weights.astype(np.float64), values.astype(np.float64), strict=True):
        total = (total + weight * value).astype(np.float32)
    return total


@needs_native
def test_float32_is_summed_in_blocks_of_channels_in_the_documented_order() -> None:
    x, w, bias, _ = drawn(((2, 86, 8, 8), (3, 86, 3, 3), (1, 1), (1, 1), (1, 1), 1))
    columns = windows_of(x)  # blocks of at most 384 // 9 = 42 channels: 3 of 86, of 29 at most
    total = np.broadcast_to(bias[:, None], (3, columns.shape[-1])).astype(np.float32)
    for first in range(0, 86, 29):
        part = w[:, first : first + 29].reshape(3, -1)
        total = total + chain(part.T[:, :, None], columns[first : first + 29].reshape(part.shape[1], 1, -1))
    right = total.reshape(3, 2, 8, 8).swapaxes(0, 1)
    assert bits([conv2d.forward(x, w, bias, (1, 1), (1, 1), (1, 1), 1)]) == bits([right])


@needs_native
@pytest.mark.parametrize("channels", [8, 32, 44, 96])
def test_bfloat16_is_summed_by_kernel_places_of_32_channels_in_two_chains(channels: int) -> None:
    case = ((2, channels, 8, 8), (3, channels, 3, 3), (1, 1), (1, 1), (1, 1), 1)
    x, w, bias, _ = drawn(case, pack.BFLOAT16)
    columns, weights = windows_of(x), w.astype(np.float32).reshape(3, channels, 9)
    total = np.broadcast_to(bias.astype(np.float32)[:, None], (3, columns.shape[-1]))
    for first in range(0, channels, GROUP):
        for place in range(9):
            a, b = weights[:, first : first + GROUP, place].T[:, :, None], columns[first : first + GROUP, place, None]
            total = total + (chain(a[::2], b[::2]) + chain(a[1::2], b[1::2]))
    right = total.reshape(3, 2, 8, 8).swapaxes(0, 1).astype(pack.BFLOAT16)
    assert bits([conv2d.forward(x, w, bias, *case[2:])]) == bits([right])


@pytest.mark.parametrize("dtype", [np.float32, pack.BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("side", [16, 8])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_and_infinity_reach_what_their_windows_cover_and_nothing_else(dtype: Any, side: int) -> None:
    x, w = np.ones((4, 8, side, side), np.float32), np.ones((8, 8, 3, 3), np.float32)
    x[1, 3, 0, 5], x[2, 0, side - 1, side - 1] = np.nan, np.inf
    for found in (
        conv2d.forward(x.astype(dtype), w.astype(dtype), None, (1, 1), (1, 1), (1, 1), 1),
        conv2d.backward(x.astype(dtype), x.astype(dtype), w.astype(dtype), (1, 1), (1, 1), (1, 1), 1)[0],
    ):
        right = np.full((4, 8, side, side), False)
        right[1, :, :2, 4:7] = True
        np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), right)
        right = np.full((4, 8, side, side), False)
        right[2, :, -2:, -2:] = True
        np.testing.assert_array_equal(np.isinf(found.astype(np.float32)), right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_tensors_give_what_float32_gives_rounded_once(dtype: Any) -> None:
    x = torch.randn(3, 20, 9, 12).to(dtype)[:, 2:18, :, ::2]  # not contiguous
    w = (torch.randn(12, 16, 3, 3) / 12).to(dtype)
    bias = torch.randn(12).to(dtype)
    for function, weight, with_bias in (
        (F.conv2d, w, bias),
        (F.conv2d, w, None),
        (F.conv_transpose2d, w.transpose(0, 1), bias),
        (F.conv_transpose2d, w.transpose(0, 1), None),
        (F.conv1d, w[:, :, 0], None),
    ):
        given = x[:, :, 0] if function is F.conv1d else x
        y = function(given, weight, with_bias, padding=1)
        wide = function(given.float(), weight.float(), None if with_bias is None else with_bias.float(), padding=1)
        assert y.dtype == dtype
        np.testing.assert_allclose(y.float().numpy(), wide.numpy(), rtol=2**-8, atol=2e-3)
        assert function(given[:0], weight, with_bias, padding=1).shape == (0, *y.shape[1:])


def test_gradients_of_bfloat16_tensors_have_their_dtype_and_their_own_derivatives() -> None:
    x, w = torch.randn(2, 8, 6, 6).bfloat16().requires_grad_(), torch.randn(8, 8, 3, 3).bfloat16().requires_grad_()
    y = F.conv2d(x, w, padding=1)
    dx, dw = torch.autograd.grad((y.float() ** 2).sum(), (x, w), create_graph=True)
    assert dx.dtype == dw.dtype == torch.bfloat16
    (again,) = torch.autograd.grad(dx.float().sum(), w)
    assert again.dtype == torch.bfloat16
    wide = w.detach().float().requires_grad_()
    first = torch.autograd.grad((F.conv2d(x.detach().float().requires_grad_(), wide, padding=1) ** 2).sum(), wide)[0]
    np.testing.assert_allclose(dw.detach().float().numpy(), first.numpy(), rtol=3e-2, atol=1.0)


@needs_native
@pytest.mark.parametrize("shape", [(3, 5, 9, 40), (2, 4, 12, 28), (2, 6, 4, 1), (1, 3, 7, 150), (2, 3, 9, 16)])
@pytest.mark.parametrize(("kernel", "padding", "dilation"), [(3, 1, 1), (7, 3, 1), (3, 2, 2), (1, 0, 1)])
def test_channels_by_themselves_sum_by_kernel_place_and_write_nothing_beside(
    shape: tuple[int, ...], kernel: int, padding: int, dilation: int
) -> None:
    rng = np.random.default_rng(3)
    x, w = (
        rng.standard_normal(shape).astype(np.float32),
        rng.standard_normal((shape[1], 1, kernel, kernel)).astype("f4"),
    )
    window = (1, 1), (padding, padding), (dilation, dilation)
    span = dilation * (kernel - 1)
    padded = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    P, Q = shape[2] + 2 * padding - span, shape[3] + 2 * padding - span
    if min(P, Q) < 1:
        pytest.skip("the window does not fit")
    y = np.zeros((*shape[:2], P, Q), np.float32)
    back = np.zeros(padded.shape, np.float32)
    g = rng.standard_normal(y.shape).astype(np.float32)
    for i in range(kernel):
        for j in range(kernel):
            at = np.s_[:, :, i * dilation : i * dilation + P, j * dilation : j * dilation + Q]
            y += w[:, 0, i, j, None, None] * padded[at]
            back[at] += w[:, 0, i, j, None, None] * g
    dx = back[:, :, padding : padding + shape[2], padding : padding + shape[3]]
    assert bits([conv2d.forward(x, w, None, *window, shape[1])]) == bits([y])
    assert bits([conv2d.backward(g, x, w, *window, shape[1], (True, False, False))[0]]) == bits([dx])  # type: ignore[list-item]
