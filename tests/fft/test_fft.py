"""resilin.fft: every transform beside numpy's, sizes and dims, dtypes, derivatives, refusals."""

import numpy as np
import pytest

import resilin
from resilin import fft
from resilin.autograd import gradcheck, gradgradcheck

NORMS = [None, "backward", "ortho", "forward"]
FULL, HALF, REAL = ("fft", "ifft"), ("rfft", "ihfft"), ("irfft", "hfft")


def signal(name, *shape):
    random = np.random.default_rng(0)
    values = random.standard_normal(shape)
    return values if name in HALF else values + 1j * random.standard_normal(shape)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", FULL + HALF + REAL)
def test_one_dimensional_transforms_equal_numpys_for_every_length_and_norm(name, norm):
    for points in (1, 2, 5, 8):
        x = signal(name, 3, points + 1)
        for n in (None, points, points + 3):
            found = getattr(fft, name)(resilin.tensor(x), n, norm=norm).numpy()
            np.testing.assert_allclose(found, getattr(np.fft, name)(x, n, norm=norm), rtol=1e-12, atol=1e-12)
        found = getattr(fft, name)(resilin.tensor(x), dim=0, norm=norm).numpy()
        np.testing.assert_allclose(found, getattr(np.fft, name)(x, axis=0, norm=norm), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_transforms_over_several_dimensions_equal_numpys(name, norm):
    x = signal(name, 3, 4, 6)
    for options in ({}, {"s": (2, 7), "dim": (2, 0)}, {"dim": (1,)}):
        numpys = {"axes" if key == "dim" else key: value for key, value in options.items()}
        found = getattr(fft, name + "n")(resilin.tensor(x), norm=norm, **options).numpy()
        np.testing.assert_allclose(found, getattr(np.fft, name + "n")(x, norm=norm, **numpys), rtol=1e-12, atol=1e-12)
    found = getattr(fft, name + "2")(resilin.tensor(x), (5, 5), norm=norm).numpy()
    np.testing.assert_allclose(found, getattr(np.fft, name + "2")(x, (5, 5), norm=norm), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_hermitian_transforms_are_the_full_ones_of_the_completed_signal(norm):
    real = np.random.default_rng(0).standard_normal((3, 4, 5))
    half = fft.ihfftn(resilin.tensor(real), norm=norm)
    np.testing.assert_allclose(half.numpy(), np.fft.ifftn(real, norm=norm)[..., :3], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fft.hfftn(half, s=(-1, -1, 5), norm=norm).numpy(), real, rtol=1e-12, atol=1e-12)
    half = fft.ihfft2(resilin.tensor(real), norm=norm)
    np.testing.assert_allclose(fft.hfft2(half, (4, 5), norm=norm).numpy(), real, rtol=1e-12, atol=1e-12)


def test_s_alone_means_the_last_dimensions_and_minus_one_keeps_a_length():
    x = signal("fft", 3, 4, 6)
    expected = np.fft.fftn(x, (4, 5), (1, 2))
    np.testing.assert_allclose(fft.fftn(resilin.tensor(x), s=(-1, 5)).numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [f"{kind}{more}" for kind in FULL + HALF + REAL for more in ("", "2", "n")])
def test_first_and_second_derivatives_agree_with_finite_differences(name):
    kind = name.rstrip("2n")
    x = resilin.tensor(signal(kind, 2, 3, 4)).requires_grad_()
    size = {"n": 5} if name == kind else {"s": (4, 3)}
    for options in ({}, {**size, "norm": "ortho"}):
        # the gradient is linear: weighted by the square of the input, its second derivative is not 0
        assert gradcheck(lambda v, o=options: getattr(fft, name)(v, **o), (x,))
        assert gradgradcheck(lambda v, o=options: getattr(fft, name)(v * v, **o), (x,))


def test_precision_is_kept_and_integers_become_the_default_dtype():
    for dtype, half in ((resilin.float32, resilin.complex64), (resilin.float64, resilin.complex128)):
        x = resilin.ones(4, dtype=dtype)
        assert fft.fft(x).dtype == fft.rfft(x).dtype == fft.ihfft(x).dtype == half
        assert fft.irfft(x.to(half)).dtype == fft.hfft(x.to(half)).dtype == dtype
    assert fft.fft(resilin.arange(4)).dtype == resilin.complex64


def test_frequencies_and_shifts():
    assert fft.fftfreq(4, 0.5).tolist() == [0, 0.5, -1, -0.5]
    assert fft.rfftfreq(5).tolist() == pytest.approx([0, 0.2, 0.4])
    assert fft.fftfreq(3).dtype == resilin.float32
    assert fft.fftfreq(3, dtype=resilin.float64).dtype == resilin.float64
    x = resilin.arange(15).reshape(3, 5)
    np.testing.assert_array_equal(fft.fftshift(x).numpy(), np.fft.fftshift(x.numpy()))
    np.testing.assert_array_equal(fft.ifftshift(x, 1).numpy(), np.fft.ifftshift(x.numpy(), 1))
    np.testing.assert_array_equal(fft.ifftshift(fft.fftshift(x, (0, 1))).numpy(), x.numpy())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: fft.fft(x, 0), RuntimeError, "data points"),
        (lambda x: fft.irfft(x[:, :1]), RuntimeError, "data points"),
        (lambda x: fft.fft(x, dim=2), IndexError, "out of range"),
        (lambda x: fft.fft(x, norm="unit"), RuntimeError, "norm"),
        (lambda x: fft.rfft(x.to(resilin.complex64)), RuntimeError, "real"),
        (lambda x: fft.fftn(x, dim=(0, 0)), RuntimeError, "named twice"),
        (lambda x: fft.fftn(x, s=(1, 2), dim=(0,)), RuntimeError, "same length"),
        (lambda x: fft.fftn(x, s=(1, 2, 3)), RuntimeError, "only 2 dimensions"),
        (lambda x: fft.rfftn(x, dim=()), RuntimeError, "at least one dimension"),
        (lambda x: fft.fft(x.half()), RuntimeError, "float32"),
        (lambda x: fft.fft(x[0, 0]), IndexError, "dimension"),
        (lambda x: fft.fftfreq(-1), RuntimeError, "number of points"),
    ],
)
def test_wrong_arguments_are_refused_with_the_reason(call, error, message):
    with pytest.raises(error, match=message):
        call(resilin.ones(2, 4))


INF, NAN = float("inf"), float("nan")


def test_frequencies_of_no_points_and_of_distance_zero():
    assert resilin.fft.fftfreq(0).shape == (0,)
    np.testing.assert_array_equal(resilin.fft.fftfreq(4, 0).numpy(), [NAN, INF, -INF, -INF])
    np.testing.assert_allclose(resilin.fft.fftfreq(5, 0.3).numpy(), np.fft.fftfreq(5, 0.3), rtol=1e-6)
