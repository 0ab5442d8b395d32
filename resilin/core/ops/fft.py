"""Discrete Fourier transforms: complex to complex, real to half spectrum, half spectrum to real.

`axes` are tuples counted from the front, `norm` is "backward", "ortho" or "forward" and says which direction is scaled
by 1 / n (n the number of points of all axes together), as in numpy, whose pocketfft does the work: float32 gives
complex64. The adjoint of a transform is the opposite one with the opposite scaling, which is every gradient rule here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.ops.registry import op

ADJOINT_NORM = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _samples(r: Any) -> list[tuple[Any, ...]]:
    return [
        (r(5, complex=True), (0,), "backward", True),
        (r(3, 4, complex=True), (1,), "forward", False),
        (r(3, 4, 2, complex=True), (0, 2), "ortho", True),
    ]


def _numpy_c2c(x: Any, axes: Any, norm: Any, forward: bool) -> Any:
    return (np.fft.fftn if forward else np.fft.ifftn)(x, axes=axes, norm=norm)


@op(takes="c", dtypes="full", complex=True, samples=_samples, reference=_numpy_c2c)
def fft_c2c(xp, x, axes=(), norm="backward", forward=True):
    """The transform of a complex array over `axes`, the inverse one unless `forward`."""
    return (xp.fft.fftn if forward else xp.fft.ifftn)(x, axes=axes, norm=norm)


@fft_c2c.vjp
def _(xp, g, _y, _x, axes=(), norm="backward", forward=True):
    return xp.fft_c2c(g, axes, ADJOINT_NORM[norm], not forward)


@op(
    takes="f",
    dtypes="full",
    samples=lambda r: [(r(5), (0,), "backward"), (r(3, 4), (1,), "ortho"), (r(3, 4, 2), (2, 1), "forward")],
)
def fft_r2c(xp, x, axes=(), norm="backward"):
    """The forward transform of a real array; of the last of `axes` only the first n // 2 + 1 frequencies."""
    return xp.fft.rfftn(x, axes=axes, norm=norm)


@fft_r2c.vjp
def _(xp, g, _y, _x, axes=(), norm="backward"):
    missing = _x.shape[axes[-1]] - g.shape[axes[-1]]
    widths = tuple((0, missing if i == axes[-1] else 0) for i in range(g.ndim))
    return xp.real(xp.fft_c2c(xp.pad_constant(g, widths), axes, ADJOINT_NORM[norm], False))


@op(
    takes="c",
    dtypes="full",
    complex=True,
    samples=lambda r: [
        (r(3, complex=True), (0,), "backward", 5),
        (r(3, 3, complex=True), (1,), "ortho", 4),
        (r(3, 4, 2, complex=True), (2, 1), "forward", 6),
    ],
)
def fft_c2r(xp, x, axes=(), norm="backward", n=0):
    """The inverse transform of a half spectrum along the last of `axes`, real, of `n` points there.

    The spectrum is taken for Hermitian: imaginary parts of frequency 0, and n / 2 for even n, do not count.
    """
    sizes = [x.shape[i] for i in axes[:-1]]
    return xp.fft.irfftn(x, s=(*sizes, n), axes=axes, norm=norm)


@fft_c2r.vjp
def _(xp, g, _y, _x, axes=(), norm="backward", n=0):
    half = xp.fft_r2c(g, axes, ADJOINT_NORM[norm])
    weights = np.full(half.shape[axes[-1]], 2.0)  # every frequency stands for its mirror image, too
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return half * xp.constant(weights.reshape((-1,) + (1,) * (half.ndim - 1 - axes[-1])), half)
