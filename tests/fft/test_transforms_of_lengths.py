"""Transforms by native code: every kind of length beside numpy's in float64, layouts, threads, what is not finite."""

import numpy as np
import pytest

import resilin
from resilin import fft
from resilin.core.kernels.loader import native
from resilin.core.ops import fft as ops

# short; with factors that have steps of their own, others, and large ones; split; with tables in two parts
LENGTHS = [
    66,
    256,
    276,
    1,
    2,
    3,
    7,
    16,
    31,
    37,
    60,
    127,
    128,
    143,
    257,
    360,
    961,
    1000,
    1009,
    1024,
    4096,
    4099,
    30030,
    131072,
    100003,
]
EPS = {np.float32: 6e-7, np.float64: 2e-15}


def signal(dtype, *shape):
    random = np.random.default_rng(shape[-1])
    return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(
        np.result_type(dtype, np.complex64)
    )


def assert_near(found, expected, dtype):
    assert found.shape == expected.shape
    scale = np.sqrt(np.mean(np.abs(expected) ** 2)) or 1.0
    length = max(2, expected.size)
    assert np.abs(found - expected).max() <= EPS[dtype] * scale * 4 * np.log2(length)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", LENGTHS)
def test_transforms_of_every_kind_of_length_equal_those_of_numpy_in_float64(n, dtype):
    for rows in ((), (3,), (18,)) if n < 5000 else ((),):
        x = signal(dtype, *rows, n)
        wide = x.astype(np.complex128)
        found = fft.fft(resilin.tensor(x))
        assert found.numpy().dtype == x.dtype
        assert_near(found.numpy(), np.fft.fft(wide), dtype)
        assert_near(fft.ifft(resilin.tensor(x), norm="ortho").numpy(), np.fft.ifft(wide, norm="ortho"), dtype)
        half = fft.rfft(resilin.tensor(x.real.copy()))
        assert_near(half.numpy(), np.fft.rfft(wide.real), dtype)
        assert_near(
            fft.irfft(resilin.tensor(x)[..., : n // 2 + 1], n).numpy(), np.fft.irfft(wide[..., : n // 2 + 1], n), dtype
        )


@pytest.mark.parametrize("n", [5, 37, 128, 1000])
@pytest.mark.parametrize("inner", [1, 3, 16, 21])
def test_transforms_of_columns_equal_numpys(n, inner):
    x = signal(np.float64, 2, n, inner)
    assert_near(fft.fft(resilin.tensor(x), dim=1).numpy(), np.fft.fft(x, axis=1), np.float64)
    assert_near(fft.rfft(resilin.tensor(x.real.copy()), dim=1).numpy(), np.fft.rfft(x.real, axis=1), np.float64)
    assert_near(fft.irfft(resilin.tensor(x), 2 * n - 1, dim=1).numpy(), np.fft.irfft(x, 2 * n - 1, axis=1), np.float64)
    turned = resilin.tensor(x).transpose(0, 2)
    assert_near(fft.fftn(turned).numpy(), np.fft.fftn(x.swapaxes(0, 2)), np.float64)


@pytest.mark.parametrize("n", [60, 1000, 1009, 131072])
def test_a_rows_bits_depend_on_no_other_row_and_on_no_thread(n):
    x = resilin.tensor(signal(np.float32, 5, n))
    before = resilin.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            resilin.set_num_threads(threads)
            found.append((fft.fft(x).numpy(), fft.fft(x[3]).numpy(), fft.rfft(x.real.contiguous()).numpy()))
    finally:
        resilin.set_num_threads(before)
    for whole, row, half in found:
        assert (whole.view(np.float32) == found[0][0].view(np.float32)).all()
        assert (row.view(np.float32) == whole[3].view(np.float32)).all()
        assert (half.view(np.float32) == found[0][2].view(np.float32)).all()


def test_the_inverse_gives_the_signal_back_and_the_input_stays():
    x = signal(np.float64, 4, 1000)
    given = resilin.tensor(x)
    assert_near(fft.ifft(fft.fft(given)).numpy(), x, np.float64)
    assert_near(fft.irfft(fft.rfft(given.real.contiguous()), 1000).numpy(), x.real, np.float64)
    np.testing.assert_array_equal(given.numpy(), x)


@pytest.mark.parametrize("n", [12, 1000, 1009])
def test_what_is_not_finite_stays_in_its_row(n):
    x = signal(np.float32, 3, n)
    x[1, 2] = np.nan
    found = fft.fft(resilin.tensor(x)).numpy()
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


@pytest.mark.skipif(native is None, reason="is about native code")
def test_native_code_takes_every_length_and_leaves_empty_arrays_to_numpy():
    for n in LENGTHS:
        assert ops._native_complex(np.ones((2, n), np.complex64), 1, False, 1.0) is not None
        assert ops._native_real(np.ones((2, n), np.float32), 1.0) is not None
    assert ops._native_complex(np.ones((0, 4), np.complex64), 1, False, 1.0) is None
    assert ops._native_real(np.ones((2, 4), np.int64), 1.0) is None
    assert fft.fft(resilin.zeros(0, 4, dtype=resilin.complex64)).shape == (0, 4)
