"""Arrays copied by runs of places: numpy's elements, of every width, for odd sizes, strides and numbers of threads."""

from __future__ import annotations

import numpy as np
import pytest

import resilin
from resilin.core.kernels.loader import native
from resilin.nn import functional as F

DTYPES = (np.bool_, np.uint8, np.float16, np.float32, np.int64, np.float64, np.complex128)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (100003,), (33, 70), (2, 3, 17, 19), (64, 1), (0, 4), (130, 131)])
def test_copies_show_the_elements_that_numpy_shows(dtype, shape):
    a = (np.random.default_rng(0).standard_normal(shape) * 50).astype(dtype)
    x, before = resilin.tensor(a), resilin.get_num_threads()
    try:
        for threads in (1, 2):
            resilin.set_num_threads(threads)
            same = np.testing.assert_array_equal
            for d in range(a.ndim):
                same(x.roll(-3, d).numpy(), np.roll(a, -3, d))
                same(x.transpose(0, d).contiguous().numpy(), a.swapaxes(0, d))
                same(x.transpose(0, d).flip(0).numpy(), np.flip(a.swapaxes(0, d), 0))
            same(x.roll(5).numpy(), np.roll(a, 5))
            same(x[..., ::2].contiguous().numpy(), a[..., ::2])
            same(x.repeat(*(2,) * a.ndim).numpy(), np.tile(a, (2,) * a.ndim))
            same(resilin.cat((x, x, x), 0).numpy(), np.concatenate([a] * 3))
            same(F.pad(x, (1, 2)).numpy(), np.pad(a, [(0, 0)] * (a.ndim - 1) + [(1, 2)]))
    finally:
        resilin.set_num_threads(before)


def test_what_has_no_kernel_is_left_to_numpy():
    for name, args in (("roll", (1, 0)), ("tile", (2,)), ("pad", ((1, 1),)), ("flip", (0,)), ("diag", ())):
        if native is not None:
            assert getattr(native, name)(np.zeros(3, ">f4"), *args) is None
            assert getattr(native, name)(np.zeros(()), *args) is None


@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64, resilin.float16, resilin.bfloat16])
def test_a_gated_unit_is_the_product_rounded_once(dtype):
    x = resilin.randn(101, 64).to(dtype)
    wide = x if dtype is resilin.float64 else x.float()
    a, b = wide.chunk(2, 1)
    assert resilin.equal(F.glu(x), (a * b.sigmoid()).to(dtype))


@pytest.mark.parametrize("n", [79, 127, 131, 226, 316, 632, 946])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 3e-6), (np.float64, 4e-15)])
def test_transforms_of_lengths_with_large_primes(n, dtype, bound):
    a = np.random.default_rng(n).standard_normal((19, n)).astype(dtype)
    exact = np.fft.fft(a.astype(np.float64))
    for found in (
        resilin.fft.fft(resilin.tensor(a)).numpy(),
        resilin.fft.fft(resilin.tensor(a.T.copy()), dim=0).numpy().T,
    ):
        assert np.abs(found - exact).max() <= bound * np.abs(exact).max()
