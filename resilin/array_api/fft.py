"""The standard's extension `fft`: `resilin.fft` under the standard's signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import resilin.fft as transforms
from resilin.core.tensor import Tensor

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]


def _one(transform: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def along(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
        return transform(x, n, axis, norm)

    return _named(along, transform)


def _several(transform: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def over(x: Tensor, /, *, s: Any = None, axes: Any = None, norm: str = "backward") -> Tensor:
        return transform(x, s, axes, norm)

    return _named(over, transform)


def _shift(transform: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def shifted(x: Tensor, /, *, axes: Any = None) -> Tensor:
        return transform(x, axes)

    return _named(shifted, transform)


def _named(made: Callable[..., Tensor], transform: Callable[..., Tensor]) -> Callable[..., Tensor]:
    made.__name__ = made.__qualname__ = transform.__name__
    made.__doc__ = f"`resilin.fft.{transform.__name__}`, with `axis` or `axes` for `dim`."
    return made


fft, ifft, rfft, irfft, hfft, ihfft = map(
    _one,
    (transforms.fft, transforms.ifft, transforms.rfft, transforms.irfft, transforms.hfft, transforms.ihfft),
)
fftn, ifftn, rfftn, irfftn = map(_several, (transforms.fftn, transforms.ifftn, transforms.rfftn, transforms.irfftn))
fftshift, ifftshift = _shift(transforms.fftshift), _shift(transforms.ifftshift)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of an n-point `fft` of samples `d` apart."""
    return transforms.fftfreq(n, d, dtype=dtype, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The n // 2 + 1 frequencies of `rfft`."""
    return transforms.rfftfreq(n, d, dtype=dtype, device=device)
