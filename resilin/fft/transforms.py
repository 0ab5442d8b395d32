"""The transforms: every one is `_full` (complex), `_half` (real input) or `_real` (Hermitian input) over some dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.api.mathematics import arithmetic
from resilin.core.ops import fft as ops
from resilin.core.tensor import Tensor
from resilin.fft import shapes

Sizes = Sequence[int] | None
Dims = Sequence[int] | int | None


def _full(where: str, input: Tensor, s: Any, dim: Dims, norm: str | None, forward: bool) -> Tensor:
    norm = shapes.scaling(where, norm)
    axes, sizes = shapes.dimensions(where, input, s, dim)
    if len(axes) == 1 and axes[0] < input._array.ndim - 1 and not input.is_complex():  # columns
        input = shapes.real_input(where, input)
        return ops.fft_real.call(shapes.resized(input, axes, sizes), axes, norm, forward)  # type: ignore[no-any-return]
    input = shapes.resized(shapes.complex_input(where, input), axes, sizes)
    return ops.fft_c2c.call(input, axes, norm, forward) if axes else input


def _half(where: str, input: Tensor, s: Any, dim: Dims, norm: str | None) -> Tensor:
    norm = shapes.scaling(where, norm)
    input = shapes.real_input(where, input)
    axes, sizes = shapes.dimensions(where, input, s, dim)
    _not_empty(where, axes)
    return ops.fft_r2c.call(shapes.resized(input, axes, sizes), axes, norm)  # type: ignore[no-any-return]


def _real(where: str, input: Tensor, s: Any, dim: Dims, norm: str | None) -> Tensor:
    """The last of the sizes is that of the real result; by default the even number 2 * (half - 1)."""
    norm = shapes.scaling(where, norm)
    input = shapes.complex_input(where, input)
    axes, sizes = shapes.dimensions(where, input, s, dim)
    _not_empty(where, axes)
    n = sizes[-1] if shapes.is_last_given(s) else 2 * (sizes[-1] - 1)
    if n < 1:
        raise RuntimeError(f"{where}: cannot transform to {n} data points; at least 1 is needed")
    return ops.fft_c2r.call(shapes.resized(input, axes, [*sizes[:-1], n // 2 + 1]), axes, norm, n)  # type: ignore[no-any-return]


def _not_empty(where: str, axes: Sequence[int]) -> None:
    if not axes:
        raise RuntimeError(f"{where}: expected at least one dimension, got none")


def _mirrored(where: str, norm: str | None) -> str:
    """The norm under which an inverse transform scales as the forward one would with `norm`."""
    return shapes.OPPOSITE[shapes.scaling(where, norm)]


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The Fourier transform along `dim`, of `n` points (cut or filled with zeros). Complex, of the input's precision.

    `norm`: "backward" (the default) does not scale, "ortho" divides by sqrt(n), "forward" by n.
    """
    return _full("fft.fft", input, n, dim, norm, True)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `fft`: "backward" divides by n, "ortho" by sqrt(n), "forward" does not scale."""
    return _full("fft.ifft", input, n, dim, norm, False)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The first n // 2 + 1 frequencies of a real input's transform; the others are their mirror images."""
    return _half("fft.rfft", input, n, dim, norm)


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`, real, of `n` points (2 * (m - 1) for m frequencies unless given)."""
    return _real("fft.irfft", input, n, dim, norm)


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The real transform, of `n` points, of a Hermitian signal given by its first half."""
    return _real("fft.hfft", arithmetic.conj(input), n, dim, _mirrored("fft.hfft", norm))


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `hfft`: the first n // 2 + 1 values of a real input's inverse transform."""
    return arithmetic.conj(_half("fft.ihfft", input, n, dim, _mirrored("fft.ihfft", norm)))


def fft2(input: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """`fftn` over two dimensions."""
    return _full("fft.fft2", input, s, dim, norm, True)


def ifft2(input: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """`ifftn` over two dimensions."""
    return _full("fft.ifft2", input, s, dim, norm, False)


def rfft2(input: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """`rfftn` over two dimensions."""
    return _half("fft.rfft2", input, s, dim, norm)


def irfft2(input: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """`irfftn` over two dimensions."""
    return _real("fft.irfft2", input, s, dim, norm)


def hfft2(input: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """`hfftn` over two dimensions."""
    return hfftn(input, s, dim, norm)


def ihfft2(input: Tensor, s: Sizes = None, dim: Dims = (-2, -1), norm: str | None = None) -> Tensor:
    """`ihfftn` over two dimensions."""
    return ihfftn(input, s, dim, norm)


def fftn(input: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The transform over several dimensions, `s` points in each (-1: as many as there are).

    Without `dim` the last ones, as many as `s` has, or all. "ortho" and "forward" count the points of all of them.
    """
    return _full("fft.fftn", input, s, dim, norm, True)


def ifftn(input: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of `fftn`."""
    return _full("fft.ifftn", input, s, dim, norm, False)


def rfftn(input: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """`fftn` of a real input; of the last dimension only the first half of the frequencies."""
    return _half("fft.rfftn", input, s, dim, norm)


def irfftn(input: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`; the last of `s` is the number of real points (2 * (m - 1) unless given)."""
    return _real("fft.irfftn", input, s, dim, norm)


def hfftn(input: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The real transform of a signal that is Hermitian, given by the first half of its last dimension."""
    return _real("fft.hfftn", arithmetic.conj(input), s, dim, _mirrored("fft.hfftn", norm))


def ihfftn(input: Tensor, s: Sizes = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of `hfftn`."""
    return arithmetic.conj(_half("fft.ihfftn", input, s, dim, _mirrored("fft.ihfftn", norm)))
