"""Discrete Fourier transforms: the names of torch.fft."""

from typing import TYPE_CHECKING

from resilin.core.public import dispatch as _dispatch
from resilin.fft.helpers import fftfreq, fftshift, ifftshift, rfftfreq
from resilin.fft.transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.core.tensor import Tensor as Tensor

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfft2",
    "hfftn",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfft2",
    "ihfftn",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

_dispatch.publish(__name__, globals(), __all__)
