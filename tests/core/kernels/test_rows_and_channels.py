"""Running sums, selection, channels and copies into C order, against numpy and their references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin.core.kernels import channels, contiguous, layer_norm, loader, pack, scan, select
from resilin.core.machine import threads
from resilin.core.ops.resampling import resample

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")


def _random(shape: Any, dtype: Any = np.float32) -> Any:
    return np.asarray(np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)


LAYOUTS = [
    ((31, 33), (1, 0)),
    ((3, 17, 5, 7), (0, 2, 3, 1)),
    ((3, 5, 1, 9), (3, 1, 0, 2)),
    ((1, 40), (1, 0)),
    ((4, 5, 6), (2, 1, 0)),
]


@pytest.mark.parametrize(("shape", "order"), LAYOUTS)
@pytest.mark.parametrize("dtype", [np.bool_, np.float16, np.float32, np.float64, np.complex128])
def test_a_copy_into_c_order_is_numpys(shape: Any, order: Any, dtype: Any) -> None:
    x = _random(shape, dtype).transpose(order)
    y = contiguous.ascontiguousarray(x)
    assert y.flags.c_contiguous
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1].T,
        lambda x: x[:, ::2].T,
        lambda x: x[::2, ::-1].T,
        lambda x: np.broadcast_to(x[:, None], (40, 3, 50)).transpose(2, 1, 0),
        lambda x: np.broadcast_to(x[:1], (40, 50)).T,
        lambda x: x[:0].T,
        lambda x: x[3],
        lambda x: x.T.astype(">f4"),
    ],
)
def test_copies_of_reversed_stretched_and_empty_views_are_numpys(view: Any) -> None:
    x = view(_random((40, 50)))
    np.testing.assert_array_equal(contiguous.ascontiguousarray(x), x)


def test_what_has_no_dimension_stays_so() -> None:
    x = np.array(2.5, np.float32)
    assert contiguous.ascontiguousarray(x).shape == ()


def test_kernels_get_copies_of_transposed_arrays() -> None:
    x = _random((70, 33))
    np.testing.assert_array_equal(resilin.tensor(x).t().relu().numpy(), np.maximum(x.T, 0))


@pytest.mark.parametrize(
    ("shape", "axis"), [((5,), 0), ((31, 33), 1), ((9, 4097), 0), ((3, 4, 1100), 1), ((0, 3), 0), ((3, 0), 1)]
)
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums_have_the_bits_of_their_reference(shape: Any, axis: int, reverse: bool) -> None:
    x = _random(shape)
    fast = loader.native.running_sum(x, axis, reverse)
    assert fast.tobytes() == scan.reference_running_sum(x, axis, reverse).tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (33, 31), (3, 1000)])
@pytest.mark.parametrize("largest", [False, True])
def test_the_first_in_order_are_those_of_a_stable_sort(shape: Any, largest: bool) -> None:
    x = np.round(_random(shape))
    x.flat[::7], x.flat[1::9], x.flat[3::11] = np.nan, -0.0, -np.inf
    n = shape[1]
    for k in {1, min(3, n), min(64, n), min(65, n), n // 2 + 1, n}:
        for only in (False, True):
            fast = loader.native.select_places(x, k, largest, only, False)
            np.testing.assert_array_equal(fast, select.reference_places(x, k, largest, only))


@pytest.mark.parametrize("k", [0, 4, -1])
def test_a_number_of_elements_that_are_not_there_is_left(k: int) -> None:
    assert loader.native.select_places(np.ones((2, 3), np.float32), k, True, False, False) is None


def test_topk_along_another_dimension_and_of_integers_is_that_of_a_sort() -> None:
    for x in (resilin.tensor(_random((5, 7, 3))), resilin.tensor(_random((5, 7, 3), np.int64))):
        values, places = x.topk(4, 1)
        expected = x.sort(1, descending=True)
        assert resilin.equal(values, expected.values[:, :4])
        assert resilin.equal(places, expected.indices[:, :4])


SHAPES_OF_CHANNELS = [(5, 3), (2, 3, 31), (33, 2, 4, 5), (0, 3), (2, 3, 0)]
WITH = pytest.mark.parametrize(
    ("with_weight", "with_bias"), [(True, True), (True, False), (False, True), (False, False)]
)


@pytest.mark.parametrize("shape", SHAPES_OF_CHANNELS)
@WITH
def test_channels_are_normalized_as_by_the_reference(shape: Any, with_weight: bool, with_bias: bool) -> None:
    x, mean, var = _random(shape), _random(shape[1]), np.abs(_random(shape[1])) + 0.5
    given = x, mean, var, mean * 2 if with_weight else None, var * 3 if with_bias else None, 1e-3
    np.testing.assert_array_equal(channels.normalize(*given), channels.reference_normalize(*given))


@pytest.mark.parametrize("shape", SHAPES_OF_CHANNELS)
@WITH
def test_channels_are_scaled_as_by_the_reference(shape: Any, with_weight: bool, with_bias: bool) -> None:
    x, g, vector = _random(shape), _random(shape) / 9, _random(shape[1])
    weight, bias = vector if with_weight else None, vector if with_bias else None
    np.testing.assert_array_equal(channels.forward(x, weight, bias), channels.reference_forward(x, weight, bias))
    needs = (True, with_weight, with_bias)
    fast, slow = (f(g, x, weight, needs) for f in (channels.backward, channels.reference_backward))
    for a, b in zip(fast, slow, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_vectors_of_another_length_are_left_to_numpy(size: int) -> None:
    x, vector = np.ones((2, 3, 4), np.float32), np.ones(size, np.float32)
    assert loader.native.channels_forward(x, vector, None) is None
    assert loader.native.channels_forward(x, None, vector) is None
    assert loader.native.channels_normalize(x, vector, vector, None, None, 1e-5) is None
    assert loader.native.channels_backward(x, x, vector, True, True, True) is None
    assert loader.native.channels_backward(x, x[:1], None, True, True, True) is None


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), pack.BFLOAT16])
def test_conversions_to_and_from_16_bits_are_numpys(dtype: Any) -> None:
    x = np.concatenate([_random(4097) * 1e3, [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-7, 1e30]]).astype(np.float32)
    with np.errstate(over="ignore"):
        expected = x.astype(dtype)
    narrow = resilin.tensor(x).to(resilin.float16 if dtype == np.float16 else resilin.bfloat16)
    np.testing.assert_array_equal(narrow.numpy().astype(np.float64), expected.astype(np.float64))
    np.testing.assert_array_equal(narrow.float().numpy(), expected.astype(np.float32))


def test_results_are_the_same_for_any_number_of_threads() -> None:
    x, before, found = _random((60, 70, 91)), threads.get_num_threads(), set()
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        parts = [scan.running_sum(x, 0), scan.running_sum(x, 2), select.places(x, 5, True)]
        parts += [scan.running_product(x, 1), *scan.running_extreme(x, 1, True)]
        parts += [scan.running_log_sum(x, 1), scan.running_log_sum_backward(x, x, 1)]
        parts += [
            contiguous.ascontiguousarray(x.transpose(2, 0, 1)),
            *channels.backward(x, x, None, (True, True, True)),
        ]
        found.add(b"".join(part.tobytes() for part in parts))
    threads.set_num_threads(before)
    assert len(found) == 1


def _taps(r: Any, count: int, size: int, length: int, each: int | None) -> tuple[Any, Any]:
    rows = np.sort(r.integers(0, size, count)) if each is None else np.arange(size).repeat(each)
    return rows, r.integers(0, length, len(rows))


@pytest.mark.parametrize("shape", [(5,), (33, 31), (3, 17, 5), (2, 3, 4, 33)])
@pytest.mark.parametrize("each", [1, 2, 4, None])
@pytest.mark.parametrize("weighted", [True, False])
def test_resampling_has_the_bits_of_its_declared_form(shape: Any, each: int | None, weighted: bool) -> None:
    r, x = np.random.default_rng(0), _random(shape)
    for axis in range(len(shape)):
        rows, columns = _taps(r, 40, 19, shape[axis], each)
        weights = _random(rows.shape) if weighted else None
        fast = loader.native.resample(x, rows, columns, weights, 19, axis)
        np.testing.assert_array_equal(fast, resample.generic.forward(np, x, rows, columns, weights, 19, axis))


@pytest.mark.parametrize(
    ("rows", "columns", "size", "axis"),
    [
        ([0, 1], [0, 3], 2, 1),
        ([0, 1], [0, -1], 2, 1),
        ([1, 0], [0, 0], 2, 1),
        ([0, 2], [0, 0], 2, 1),
        ([-1, 0], [0, 0], 2, 1),
        ([0], [0, 0], 2, 1),
        ([0, 1], [0, 0], 2, 2),
    ],
)
def test_terms_that_are_not_there_are_left_to_numpy(rows: Any, columns: Any, size: int, axis: int) -> None:
    x = np.ones((2, 3), np.float32)
    assert loader.native.resample(x, np.array(rows), np.array(columns), None, size, axis) is None


SCANNED = [((1,), 0), ((31, 33), 1), ((31, 33), 0), ((9, 1100), 0), ((3, 4, 65), 1), ((0, 3), 0), ((3, 0), 1)]


@pytest.mark.parametrize(("shape", "axis"), SCANNED)
def test_running_products_have_the_bits_of_their_reference(shape: Any, axis: int) -> None:
    x = _random(shape)
    x.flat[::50] = np.inf
    fast = loader.native.running_product(x, axis)
    assert fast.tobytes() == scan.accumulate(np.multiply, x, axis).tobytes()


@pytest.mark.parametrize(("shape", "axis"), SCANNED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
@pytest.mark.parametrize("largest", [False, True])
def test_running_extremes_are_those_of_their_reference(shape: Any, axis: int, dtype: Any, largest: bool) -> None:
    x = np.round(_random(shape) * 3).astype(dtype)
    if dtype is not np.int64:
        x.flat[40::70], x.flat[1::9], x.flat[3::11] = np.nan, -0.0, -np.inf
    values, places = loader.native.running_extreme(x, axis, largest)
    expected, where = scan.reference_running_extreme(x, axis, largest)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(places, where)


@pytest.mark.parametrize(("shape", "axis"), SCANNED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_running_sums_of_exponentials_and_their_gradients_equal_their_references(
    shape: Any, axis: int, dtype: Any
) -> None:
    x, g = (_random(shape) * 20).astype(dtype), _random(shape).astype(dtype)
    x.flat[3::40], x.flat[5::90] = -np.inf, np.inf
    rounding = 4 * np.finfo(dtype).eps
    fast = loader.native.running_log_sum(x, axis)
    np.testing.assert_allclose(fast, scan.accumulate(np.logaddexp, x, axis), rounding)
    dx = loader.native.running_log_sum_backward(g, x, axis)
    with np.errstate(invalid="ignore"):  # as in every op
        expected = scan.reference_running_log_sum_backward(g, x, axis)
    np.testing.assert_allclose(dx, expected, rounding, 1e-14)


def test_a_running_sum_of_exponentials_keeps_its_digits_at_every_size() -> None:
    x = resilin.tensor([-1000.0, -999.0, 0.0, -40.0, 1000.0], dtype=resilin.float64)
    expected = [-1000.0, -999 + np.log1p(np.exp(-1)), 0.0, np.exp(-40), 1000.0]
    np.testing.assert_allclose(x.logcumsumexp(0).numpy(), expected, 1e-14, 1e-300)


@pytest.mark.parametrize("shape", [(1, 1), (3, 31), (33, 4097), (300, 16)])
def test_layer_norm_without_weight_gives_the_gradient_that_it_gives_with_sums(shape: tuple[int, int]) -> None:
    x, g = _random(shape), _random(shape[::-1]).reshape(shape)
    _, mean, rstd = layer_norm.forward(x, None, None, 1e-5, shape[1])
    with_sums, alone = (layer_norm.backward(g, x, None, mean, rstd, sums)[0] for sums in (True, False))
    np.testing.assert_array_equal(with_sums, alone)
    np.testing.assert_allclose(alone, layer_norm.reference_backward(g, x, None, mean, rstd)[0], 1e-4, 1e-5)
