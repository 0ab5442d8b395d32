"""Spectra of short pieces of signals, and the windows that pieces are seen through.

`__all__` are the functions of `resilin`, `METHODS` are methods of `Tensor`.
Shapes: B signals of L samples give N frames of S = n_fft samples, hop_length apart, and K frequencies of each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import indexing, joining, shaping
from resilin.core.api.mathematics import complexes
from resilin.core.ops import creation
from resilin.core.ops import fft as ops
from resilin.core.ops import index as index_ops
from resilin.core.ops import shape as shape_ops
from resilin.core.tensor import Tensor, wrap

METHODS = ["istft", "stft"]
__all__ = [
    "bartlett_window",
    "blackman_window",
    "hamming_window",
    "hann_window",
    "istft",
    "kaiser_window",
    "stft",
]

_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # PyTorch's names of numpy's
_LEAST_ENVELOPE = 1e-11  # below it, dividing by the sum of squared windows would only show rounding


def window(where: str, length: int, periodic: bool, shape: Callable[[Any, int], Any], options: Any) -> Tensor:
    """`shape(n, last)` for n = 0 ... length - 1; `last` is the n of the mirror image of 0."""
    if length < 0:
        raise RuntimeError(f"{where} requires non-negative window_length, got window_length={length}")
    dtype = dtypes.get_default_dtype() if options.get("dtype") is None else options["dtype"]
    if not dtype.is_floating_point:
        raise RuntimeError(f"{where} expects floating point dtypes, got: {dtype}")
    last = length if periodic else length - 1
    values = np.ones(length) if length == 1 else shape(np.arange(length), last)
    return creation.tensor(values, **{**options, "dtype": dtype})


@creation.factory
def bartlett_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """A triangle from 0 up to 1 and back. `periodic`: without the last of the values that would mirror the first."""
    return window("bartlett_window", window_length, periodic, lambda n, last: 1 - abs(2 * n / last - 1), options)


@creation.factory
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **options: Any
) -> Tensor:
    """alpha - beta * cos(2 pi n / (length - 1)), or over length where `periodic`."""

    def shape(n: Any, last: int) -> Any:
        return alpha - beta * np.cos(2 * np.pi * n / last)

    return window("hamming_window", window_length, periodic, shape, options)


@creation.factory
def hann_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """0.5 - 0.5 * cos(2 pi n / (length - 1)), or over length where `periodic`."""

    def shape(n: Any, last: int) -> Any:
        return 0.5 - 0.5 * np.cos(2 * np.pi * n / last)

    return window("hann_window", window_length, periodic, shape, options)


@creation.factory
def blackman_window(window_length: int, periodic: bool = True, **options: Any) -> Tensor:
    """0.42 - 0.5 * cos(a) + 0.08 * cos(2 a) for a = 2 pi n / (length - 1), or over length where `periodic`."""

    def shape(n: Any, last: int) -> Any:
        angle = 2 * np.pi * n / last
        return 0.42 - 0.5 * np.cos(angle) + 0.08 * np.cos(2 * angle)

    return window("blackman_window", window_length, periodic, shape, options)


@creation.factory
def kaiser_window(window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> Tensor:
    """I0(beta * sqrt(1 - (2 n / (length - 1) - 1) ** 2)) / I0(beta), or over length where `periodic`."""

    def shape(n: Any, last: int) -> Any:
        return np.i0(beta * np.sqrt(np.maximum(1 - (2 * n / last - 1) ** 2, 0))) / np.i0(beta)

    return window("kaiser_window", window_length, periodic, shape, options)


def _lengths(where: str, n_fft: int, hop: int | None, length: int | None) -> tuple[int, int]:
    """(hop_length, win_length) with their defaults, checked."""
    hop, length = n_fft // 4 if hop is None else hop, n_fft if length is None else length
    if hop <= 0:
        raise RuntimeError(f"{where}: expected hop_length > 0, but got hop_length={hop}")
    if not 0 < length <= n_fft:
        raise RuntimeError(f"{where}: expected 0 < win_length <= n_fft={n_fft}, but got win_length={length}")
    return hop, length


def _full_window(where: str, window: Tensor | None, length: int, n_fft: int, like: Tensor) -> Tensor:
    """The window with zeros on both sides up to n_fft; ones when there is none."""
    if window is None:
        window = wrap(np.ones(length, like.dtype.to_real().np)).to(like._dev)
    elif window._array.shape != (length,):
        raise RuntimeError(
            f"{where}: expected a 1D window tensor of size equal to win_length={length}, but got window with size "
            f"{tuple(window.shape)}"
        )
    left = (n_fft - length) // 2
    if length == n_fft:
        return window
    return shape_ops.pad_constant.call(window, ((left, n_fft - length - left),), 0.0)


def _padded(signal_BL: Tensor, width: int, mode: str) -> Tensor:
    if mode == "constant":
        return shape_ops.pad_constant.call(signal_BL, ((0, 0), (width, width)), 0.0)
    if mode not in _MODES:
        raise NotImplementedError(f"stft: pad_mode must be constant, {', '.join(_MODES)}, got {mode!r}")
    length = signal_BL._array.shape[1]
    if width >= length and mode == "reflect":
        raise RuntimeError(
            f"stft: padding size should be less than the input dimension, but got: padding {width} of {length} samples"
        )
    numpy_mode: Any = _MODES[mode]
    return indexing.getitem(signal_BL, (slice(None), np.pad(np.arange(length), width, numpy_mode)))


def _frames(count: int, n_fft: int, hop: int) -> Any:
    """For each sample of each frame, its place in the signal."""
    return np.arange(count)[:, None] * hop + np.arange(n_fft)


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Tensor:
    """The Fourier transforms of pieces of n_fft samples, hop_length apart: (L) or (B, L) gives (B, K, N), complex.

    `center` pads the signal by n_fft // 2 on both sides, so that frame t is about sample t * hop_length. `onesided`
    (the default of real input) leaves out the mirror images, K is then n_fft // 2 + 1. `normalized` divides by
    sqrt(n_fft). With return_complex=False the last dimension holds pairs of reals.
    """
    if align_to_window:
        raise NotImplementedError("stft: align_to_window is not supported; leave it out")
    if input._array.ndim not in (1, 2) or input._array.dtype.kind not in "fVc":
        raise RuntimeError(f"stft: expected a floating point or complex 1D or 2D tensor, got {_described(input)}")
    is_complex = input.is_complex() or (window is not None and window.is_complex())
    if return_complex is None and not is_complex:
        raise RuntimeError("stft requires the return_complex parameter be given for real inputs: True or False")
    if onesided and is_complex:
        raise RuntimeError("Cannot have onesided output if window or input is complex")
    signal = input if input._array.ndim == 2 else shaping.unsqueeze(input, 0)
    if center:
        signal = _padded(signal, n_fft // 2, pad_mode)
    length = signal._array.shape[1]
    if not 0 < n_fft <= length:
        raise RuntimeError(f"stft: expected 0 < n_fft <= {length}, but got n_fft={n_fft}")
    hop, win_length = _lengths("stft", n_fft, hop_length, win_length)
    seen = _full_window("stft", window, win_length, n_fft, signal)
    frames_BNS = indexing.unfold(signal, 1, n_fft, hop) * seen
    norm = "ortho" if normalized else "backward"
    half = not is_complex and onesided is not False
    if half:
        spectra = ops.fft_r2c.call(frames_BNS, (2,), norm)
    else:
        spectra = ops.fft_c2c.call(shape_ops.astype.call(frames_BNS, _complex(frames_BNS)), (2,), norm, True)
    out = shaping.transpose(spectra, 1, 2)
    out = out if input._array.ndim == 2 else shaping.squeeze(out, 0)
    return complexes.view_as_real(out) if return_complex is False else out


def _complex(x: Tensor) -> Any:
    return dtypes.complex_of(x._array.dtype)


def _described(x: Tensor) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}"


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor:
    """The signals (B, L) whose `stft` with the same arguments comes nearest to `input` (B, K, N), complex.

    Frames are added where they overlap, in order, and divided by the sum of the squared windows; RuntimeError where
    that is zero. `length` cuts the signal, or fills it with zeros.
    """
    if not input.is_complex() or input._array.ndim not in (2, 3) or 0 in input._array.shape:
        raise RuntimeError(f"istft: expected a complex tensor of 2 or 3 dimensions, not empty, got {_described(input)}")
    hop, win_length = _lengths("istft", n_fft, hop_length, win_length)
    spectra = shaping.transpose(input if input._array.ndim == 3 else shaping.unsqueeze(input, 0), 1, 2)
    kept = spectra._array.shape[2]
    half = kept != n_fft if onesided is None else onesided
    if kept != (n_fft // 2 + 1 if half else n_fft):
        raise RuntimeError(f"istft: expected n_fft={n_fft} {'// 2 + 1 ' if half else ''}frequencies, but got {kept}")
    if return_complex and half:
        raise RuntimeError("istft: cannot have onesided input if the output is complex")
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = ops.fft_c2c.call(spectra, (2,), norm, False)
    else:  # of mirror images, one half says everything
        frames = ops.fft_c2r.call(joining.narrow(spectra, 2, 0, n_fft // 2 + 1), (2,), norm, n_fft)
    seen = _full_window("istft", window, win_length, n_fft, frames)
    signal = _overlapped(frames * seen, shaping.expand(seen * seen, (1, *frames.shape[1:])), hop, center, length)
    return signal if input._array.ndim == 3 else shaping.squeeze(signal, 0)


def _overlapped(frames_BNS: Tensor, weights_1NS: Tensor, hop: int, center: bool, length: int | None) -> Tensor:
    """The frames added at their places over the added weights, without what centring had padded."""
    count, n_fft = frames_BNS._array.shape[1:]
    total = n_fft + hop * (count - 1)
    places = (slice(None), _frames(count, n_fft, hop))
    start = n_fft // 2 if center else 0
    end = total - start if length is None else min(start + length, total)
    signal, envelope = (
        index_ops.index_add_zeros.call(x, (x._array.shape[0], total), places)[:, start:end]
        for x in (frames_BNS, weights_1NS)
    )
    least = float(envelope.detach().abs().min()) if end > start else 1.0
    if least < _LEAST_ENVELOPE:
        raise RuntimeError(
            f"istft: the windows of neighbouring frames add up to {least} at some sample; use a shorter hop_length or "
            "another window"
        )
    signal = signal / envelope
    missing = 0 if length is None else length - (end - start)
    if missing <= 0:
        return signal
    warnings.warn("The length of signal is shorter than the length parameter. Result is being padded", stacklevel=3)
    return shape_ops.pad_constant.call(signal, ((0, 0), (0, missing)), 0.0)
