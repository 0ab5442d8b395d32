"""Random numbers are a function of their position; 16-bit conversions round to nearest even."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from resilin.core.kernels import pack, philox

RAGGED = [0, 1, 31, 33, 4097]
BIG = (1 << 64) - 3


@pytest.mark.parametrize(
    ("seed", "stream", "offset", "expected"),
    [  # known answers of the Random123 library: counter (c0 c1 c2 c3), key (k0 k1)
        (0, 0, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ((1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            0x299F31D0A4093822,
            0x0370734413198A2E,
            0x85A308D3243F6A88,
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_known_answers(seed: int, stream: int, offset: int, expected: list[int]) -> None:
    assert philox.bits(seed, stream, offset, 4).tolist() == expected
    assert philox.reference_bits(seed, stream, offset, 4).tolist() == expected


@pytest.mark.parametrize("n", RAGGED)
@pytest.mark.parametrize("offset", [0, 12345, BIG])
def test_bits_uniforms_and_masks_equal_the_reference_bit_for_bit(n: int, offset: int) -> None:
    key = (0xDEADBEEF12345678, 42, offset)
    np.testing.assert_array_equal(philox.bits(*key, n), philox.reference_bits(*key, n))
    for dtype in (np.float32, np.float64):
        expected = philox.reference_uniform(*key, (n,), np.dtype(dtype))
        np.testing.assert_array_equal(philox.uniform(*key, (n,), dtype), expected)
    mask = philox.dropout_mask(*key, (n,), 0.3)
    np.testing.assert_array_equal(mask, philox.reference_dropout_mask(*key, (n,), 0.3))


@pytest.mark.parametrize("n", RAGGED)
def test_normals_equal_the_reference_within_rounding(n: int) -> None:
    fast = philox.normal(3, 4, 5, (n,))
    np.testing.assert_allclose(fast, philox.reference_normal(3, 4, 5, (n,), np.dtype(np.float32)), atol=3e-6)


def test_a_draw_continues_where_the_blocks_of_the_last_one_end() -> None:
    whole = philox.uniform(1, 2, 0, (1000,))
    at = philox.blocks(400)
    np.testing.assert_array_equal(philox.uniform(1, 2, at, (600,)), whole[400:])
    assert [philox.blocks(n, np.float64) for n in (0, 1, 2, 3)] == [0, 1, 1, 2]


def test_moments() -> None:
    z = philox.normal(9, 0, 0, (200_000,)).astype(np.float64)
    u = philox.uniform(9, 1, 0, (200_000,)).astype(np.float64)
    assert abs(z.mean()) < 0.01
    assert abs(z.var() - 1) < 0.01
    assert abs((z**4).mean() - 3) < 0.1
    assert abs(u.mean() - 0.5) < 0.005
    assert u.min() >= 0
    assert u.max() < 1
    assert abs((philox.dropout_mask(9, 2, 0, (200_000,), 0.25) == 0).mean() - 0.25) < 0.005
    assert not philox.dropout_mask(9, 2, 0, (100,), 1.0).any()
    assert (philox.dropout_mask(9, 2, 0, (100,), 0.0) == 1).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bit_uniforms_never_reach_one(dtype: Any) -> None:
    u = philox.uniform(1, 1, 0, (100_000,), dtype)
    assert u.dtype == dtype
    assert float(u.astype(np.float32).max()) < 1


def _all_kinds_of_float32() -> Any:
    """All exponents and signs, mantissas around every rounding boundary of both 16-bit formats."""
    high = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    low = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (high[:, None] | low).reshape(-1).view(np.float32)


@pytest.mark.parametrize(("fast", "dtype"), [(pack.to_float16, np.float16), (pack.to_bfloat16, pack.BFLOAT16)])
def test_packing_equals_numpys_conversion_everywhere(fast: Any, dtype: Any) -> None:
    x = _all_kinds_of_float32()
    with np.errstate(over="ignore", invalid="ignore"):
        expected = x.astype(dtype)
        found = fast(x)
    nan = np.isnan(x)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.view(np.uint16)[~nan], expected.view(np.uint16)[~nan])
    assert np.isnan(found[nan].astype(np.float64)).all()


@pytest.mark.parametrize("dtype", [np.float16, pack.BFLOAT16])
def test_unpacking_is_exact_for_all_values(dtype: Any) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    np.testing.assert_array_equal(pack.to_float32(x), x.astype(np.float32))
    np.testing.assert_array_equal(pack.to_float32(x[::3]), x[::3].astype(np.float32))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), pack.BFLOAT16], ids=str)
@pytest.mark.parametrize("size", RAGGED)
def test_sums_of_16_bit_arrays_have_numpys_bits(dtype: np.dtype[Any], size: int) -> None:
    x, y = np.random.default_rng(size).standard_normal((2, size)).astype(np.float32).astype(dtype)
    expected = x + y
    assert pack.add(x, y).dtype == dtype
    assert np.array_equal(pack.add(x, y).view(np.uint16), expected.view(np.uint16))
    wider = np.zeros(2 * size, dtype)
    wider[::2] = x
    pack.add_to(wider[::2], y)
    assert np.array_equal(wider[::2], expected)
    assert not wider[1::2].any()


def test_sums_of_other_arrays_and_of_several_dtypes_are_numpys() -> None:
    x, y = np.ones(3, np.float32), np.ones(3, np.float16)
    assert pack.add(x, y).dtype == np.float32
    pack.add_to(x, y)
    assert x.tolist() == [2, 2, 2]
