"""Sums of many lengths and rows, read in order, have numpy's bits; threads that share rows do each of them once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin.core.kernels import loader

pytestmark = pytest.mark.skipif(loader.native is None, reason="there are no native kernels here")

FLOATS = [np.float32, np.float64]
LENGTHS = [*range(1, 1200), *range(1200, 9000, 61), 8191, 8193, 16_385, 65_543, 131_071, 300_007]


def _numbers(n: int, dtype: Any) -> Any:
    return np.random.default_rng(n).standard_normal(n).astype(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_every_length_have_the_bits_of_numpys(dtype: Any) -> None:
    whole, other = _numbers(LENGTHS[-1], dtype), _numbers(LENGTHS[-1] + 1, dtype)
    for n in LENGTHS:
        x, y = whole[:n], other[:n]
        assert loader.native.sum_axes(x, None, False) == np.add.reduce(x), n
        assert loader.native.norm_last(x, None, False) == np.sqrt(np.add.reduce(x * x)), n
        assert loader.native.dot(x, y) == np.add.reduce(x * y), n
        assert loader.native.known_sum_last(x, None, False) == np.add.reduce(x), n


@pytest.mark.parametrize("dtype", FLOATS)
def test_sums_of_rows_of_every_length_have_the_bits_of_numpys(dtype: Any) -> None:
    for n in [*range(1, 300), 511, 512, 513, 543, 544, 1017, 1024]:
        x = _numbers(9 * n, dtype).reshape(9, n)
        for rows in (1, 3, 4, 9):
            found = loader.native.sum_axes(x[:rows], 1, False)
            assert found.tobytes() == np.add.reduce(x[:rows], 1).tobytes(), (rows, n)
            found = loader.native.norm_last(x[:rows], 1, False)
            assert found.tobytes() == np.sqrt(np.add.reduce(x[:rows] * x[:rows], 1)).tobytes(), (rows, n)


def test_a_sum_of_negative_zeros_is_one() -> None:
    for n in (1, 7, 8, 100, 1000, 5000):
        assert np.signbit(loader.native.sum_axes(np.full(n, -0.0, np.float32), None, False)), n


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_row_is_done_once_whatever_thread_takes_it(count: int, thread_counts: Any) -> None:
    thread_counts(count)
    x = resilin.zeros(300_000)
    for _ in range(50):
        x.add_(1)
    assert (x == 50).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_shared_losses_of_targets_are_those_of_one_thread(weighted: bool, thread_counts: Any) -> None:
    rows, classes = 40_000, 5
    x = resilin.tensor(_numbers(rows * classes, np.float32)).view(rows, classes)
    target = resilin.arange(rows) % (classes + 1) - 1  # -1 is ignored
    weight = resilin.rand(classes) if weighted else None
    for reduction in ("none", "sum", "mean"):
        found = []
        for count in (1, 2, 3):
            thread_counts(count)
            found.append(F.nll_loss(x, target, weight, ignore_index=-1, reduction=reduction).numpy().tobytes())
        assert found[1:] == found[:1] * 2
    target[-1] = classes
    with pytest.raises(IndexError, match="out of bounds"):
        F.nll_loss(x, target, weight, ignore_index=-1)


@pytest.mark.parametrize("place", [None, 0, 8191, 8192, 29_999])
def test_both_extremes_see_nan_wherever_it_lies(place: int | None) -> None:
    x = _numbers(30_000, np.float32)
    if place is not None:
        x[place] = np.nan
    low, high = resilin.tensor(x).aminmax()
    assert np.array_equal([low.item(), high.item()], [x.min(), x.max()], equal_nan=True)


@pytest.mark.parametrize("channels", [1, 15, 16, 32, 33, 50, 64, 70, 200])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.float16])
def test_a_channel_is_normalized_as_it_would_be_alone(channels: int, dtype: Any) -> None:
    x = resilin.tensor(_numbers(40 * channels, np.float64)).view(40, channels).to(dtype)
    whole = F.batch_norm(x, None, None, training=True)
    for c in range(channels):
        alone = F.batch_norm(x[:, c : c + 1].contiguous(), None, None, training=True)
        assert (whole[:, c : c + 1] == alone).all(), c
