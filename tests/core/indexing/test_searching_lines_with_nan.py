"""Searching sorted lines that end with NaN, and for NaN: the places that PyTorch finds, which halves by comparisons."""

import math

import numpy as np
import pytest

import resilin
from resilin.core.api.manipulation import scattering

NAN, INF = math.nan, math.inf
VALUES = [NAN, INF, -INF, 1.0, 2.0, 2.5, 5.0]
LINES = {  # line: places on the left, and on the right (torch 2.13)
    (1.0, 2.0, NAN): ([3, 3, 0, 0, 1, 3, 3], [3, 3, 0, 1, 3, 3, 3]),
    (NAN, NAN): ([2, 2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2, 2]),
    (1.0, 2.0, 3.0): ([3, 3, 0, 0, 1, 2, 3], [3, 3, 0, 1, 2, 2, 3]),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("line", LINES)
def test_places_are_those_of_pytorch(line, right, dtype):
    sequence, values = (resilin.tensor(x, dtype=getattr(resilin, dtype)) for x in (line, VALUES))
    expected = LINES[line][right]
    assert resilin.searchsorted(sequence, values, right=right).tolist() == expected
    assert resilin.bucketize(values, sequence, right=right).tolist() == expected
    assert resilin.searchsorted(sequence, NAN, right=right) == len(line)
    rows = resilin.searchsorted(resilin.stack([sequence] * 2), resilin.stack([values] * 2), right=right)
    assert rows.tolist() == [expected] * 2


@pytest.mark.parametrize("right", [False, True])
def test_nan_is_behind_all_integers(right):
    assert resilin.searchsorted(resilin.tensor([1, 2, 3]), NAN, right=right) == 3


@pytest.mark.parametrize("way", ["left", "right"])
@pytest.mark.parametrize("known", [0, 1, 5, 700])
def test_native_search_equals_its_reference(known, way):
    line = np.sort(np.random.default_rng(1).normal(size=known + 3).astype(np.float32))
    line[known:] = NAN
    values = np.random.default_rng(2).normal(size=1300).astype(np.float32)
    values[::100] = NAN
    found = resilin.searchsorted(resilin.tensor(line), resilin.tensor(values), right=way == "right")
    assert found.numpy().tolist() == scattering._places(line, values, way).tolist()
