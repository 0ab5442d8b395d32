"""Discrete Fourier transforms: complex to complex, real to half spectrum, half spectrum to real.

`axes` are tuples counted from the front, `norm` is "backward", "ortho" or "forward" and says which direction is scaled
by 1 / n (n the number of points of all axes together), as in numpy: float32 gives complex64. The adjoint of a transform
is the opposite one with the opposite scaling, which is every gradient rule here.

The host's arrays are transformed by native code (`native/fft`), one axis after the other from the last. Its sums
have an order that follows from the length of an axis, and for other axes than the last from whether columns are few;
without it they are those of numpy's pocketfft.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from resilin.core.kernels.loader import kernel
from resilin.core.ops.registry import op

_native_complex, _native_real, _native_to_real = kernel("fft_complex"), kernel("fft_real"), kernel("fft_to_real")
_native_real_columns = kernel("fft_real_columns")
_HOST_KINDS = "fdFD"

ADJOINT_NORM = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _scale(norm: str, forward: bool, points: int) -> float:
    """What a transform of so many points is multiplied by."""
    if norm == "ortho":
        return 1 / math.sqrt(points)
    return 1 / points if forward == (norm == "forward") else 1.0


def _along(x: Any, axes: Any, inverse: bool, scale: float = 1.0) -> Any:
    """Complex transforms along `axes` from the last, times `scale`; None for what numpy transforms."""
    for i, axis in reversed(list(enumerate(axes))):
        factor = 1.0 if i else scale
        y = _native_complex(np.ascontiguousarray(x), axis, inverse, factor)
        if y is None:  # few or long columns: as rows
            y = _native_complex(np.ascontiguousarray(x.swapaxes(axis, -1)), x.ndim - 1, inverse, factor)
            if y is None:
                return None
            y = np.ascontiguousarray(y.swapaxes(axis, -1))
        x = y
    return x


def _last(x: Any, axis: int) -> Any:
    return np.ascontiguousarray(x if axis == x.ndim - 1 else x.swapaxes(axis, -1))


def _back(y: Any, axis: int) -> Any:
    return y if axis == y.ndim - 1 else np.ascontiguousarray(y.swapaxes(axis, -1))


def _of_host(x: Any, axes: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.char in _HOST_KINDS and bool(axes)


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
    if _of_host(x, axes):
        scale = _scale(norm, forward, math.prod(x.shape[i] for i in axes))
        if (found := _along(x, axes, not forward, scale)) is not None:
            return found
    return (xp.fft.fftn if forward else xp.fft.ifftn)(x, axes=axes, norm=norm)


@fft_c2c.vjp
def _(xp, g, _y, _x, axes=(), norm="backward", forward=True):
    return xp.fft_c2c(g, axes, ADJOINT_NORM[norm], not forward)


@op(
    takes="f",
    dtypes="full",
    samples=lambda r: [
        (r(6, 9), (0,), "backward", True),
        (r(4, 9), (0,), "ortho", False),
        (r(2, 3), (1, 0), "forward", True),
    ],
)
def fft_real(xp, x, axes=(), norm="backward", forward=True):
    """`fft_c2c` of a real array: columns of the host by half as many complex numbers."""
    if _of_host(x, axes) and len(axes) == 1:
        scale = _scale(norm, forward, x.shape[axes[0]])
        if (found := _native_real_columns(np.ascontiguousarray(x), axes[0], not forward, scale)) is not None:
            return found
    return fft_c2c.formula(xp, x.astype(np.result_type(x.dtype, np.complex64)), axes, norm, forward)


@fft_real.vjp
def _(xp, g, _y, _x, axes=(), norm="backward", forward=True):
    return xp.real(xp.fft_c2c(g, axes, ADJOINT_NORM[norm], not forward))


@op(
    takes="f",
    dtypes="full",
    samples=lambda r: [(r(5), (0,), "backward"), (r(3, 4), (1,), "ortho"), (r(3, 4, 2), (2, 1), "forward")],
)
def fft_r2c(xp, x, axes=(), norm="backward"):
    """The forward transform of a real array; of the last of `axes` only the first n // 2 + 1 frequencies."""
    if _of_host(x, axes) and x.size:
        scale = _scale(norm, True, math.prod(x.shape[i] for i in axes))
        half = _native_real(_last(x, axes[-1]), scale)
        if half is not None and (found := _along(_back(half, axes[-1]), axes[:-1], False)) is not None:
            return found
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
    if _of_host(x, axes) and x.size and (first := _along(x, axes[:-1], True)) is not None:
        found = _native_to_real(_last(first, axes[-1]), n, _scale(norm, False, math.prod(sizes) * n))
        if found is not None:
            return _back(found, axes[-1])
    return xp.fft.irfftn(x, s=(*sizes, n), axes=axes, norm=norm)


@fft_c2r.vjp
def _(xp, g, _y, _x, axes=(), norm="backward", n=0):
    half = xp.fft_r2c(g, axes, ADJOINT_NORM[norm])
    weights = np.full(half.shape[axes[-1]], 2.0)  # every frequency stands for its mirror image, too
    weights[0] = 1
    if n % 2 == 0:
        weights[-1] = 1
    return half * xp.constant(weights.reshape((-1,) + (1,) * (half.ndim - 1 - axes[-1])), half)
