"""All frequencies of real columns, by half as many complex numbers, beside numpy's in float64."""

import numpy as np
import pytest

import resilin
from resilin import fft
from resilin.core.machine import threads


def drawn(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


# even and odd lengths, a large prime factor, few columns, columns that do not fill a vector, several dimensions
SHAPES = [(316, 316), (31, 31), (2, 40), (6, 9), (2, 40, 33), (30, 8), (4, 3), (1, 20), (2 * 131, 17), (4, 6, 2, 5)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
def test_columns_are_numpys(shape, norm, dtype):
    x = drawn(*shape, dtype=dtype)
    for name in ("fft", "ifft"):
        for axis in range(len(shape) - 1):
            found = getattr(fft, name)(resilin.tensor(x), dim=axis, norm=norm).numpy()
            expected = getattr(np.fft, name)(x.astype(np.float64), axis=axis, norm=norm)
            assert found.dtype == np.result_type(dtype, np.complex64)
            np.testing.assert_allclose(found, expected, 0, 8 * np.finfo(dtype).eps * np.abs(expected).max())


def test_integers_cut_and_filled_columns_and_strided_ones_are_transformed():
    k = np.arange(60).reshape(6, 10) % 7
    np.testing.assert_allclose(fft.fft(resilin.tensor(k), dim=0).numpy(), np.fft.fft(k, axis=0), atol=1e-4)
    x = drawn(12, 20, dtype=np.float64)
    for n in (8, 16):
        np.testing.assert_allclose(fft.fft(resilin.tensor(x), n, 0).numpy(), np.fft.fft(x, n, 0), atol=1e-13)
    for view in (x[::2], x[:, ::2], x.T):
        np.testing.assert_allclose(
            fft.fft(resilin.from_numpy(view), dim=0).numpy(), np.fft.fft(view, axis=0), atol=1e-13
        )
    with pytest.raises(RuntimeError, match=r"convert it with \.float\(\)"):
        fft.fft(resilin.ones(4, 4, dtype=resilin.float16), dim=0)


def test_what_is_not_finite_stays_in_its_column_and_threads_change_nothing():
    x = drawn(64, 70)
    x[3, 5], x[9, 40] = np.nan, np.inf
    before, found = threads.get_num_threads(), []
    try:
        for count in (1, 2):
            threads.set_num_threads(count)
            found.append(fft.fft(resilin.tensor(x), dim=0).numpy())
    finally:
        threads.set_num_threads(before)
    assert found[0].tobytes() == found[1].tobytes()
    bad = ~np.isfinite(found[0]).all(0)
    assert bad.nonzero()[0].tolist() == [5, 40]


def test_gradients_and_batches_are_those_of_complex_columns():
    x = drawn(6, 9, dtype=np.float64)
    found = []
    for one in (resilin.tensor(x, requires_grad=True), resilin.tensor(x, requires_grad=True)):
        whole = fft.fft(one if not found else resilin.complex(one, one * 0), dim=0, norm="ortho")
        (whole.abs() ** 3).sum().backward()
        found.append(one.grad.numpy())
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)
    many = resilin.tensor(drawn(3, 8, 10, dtype=np.float64))
    batched = resilin.func.vmap(lambda one: fft.fft(one, dim=0))(many)
    np.testing.assert_allclose(batched.numpy(), np.fft.fft(many.numpy(), axis=1), atol=1e-12)
