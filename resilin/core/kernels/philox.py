"""Philox4x32-10: random numbers as a pure function of (seed, stream, offset).

Key = seed (64 bits); counter = (offset + block, stream), 64 bits each, low words first. A block is four 32-bit words;
word j of a draw is lane j % 4 of block offset + j // 4. `blocks()` says how far a draw moves the offset.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_MASK = (1 << 64) - 1
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_FLOAT32 = np.dtype(np.float32)
_FLOAT64 = np.dtype(np.float64)

_native_bits = kernel("philox_bits")
_native_uniform = kernel("philox_uniform")
_native_integers = kernel("philox_integers")
_native_normal = kernel("philox_normal")
_native_dropout = kernel("philox_dropout")


def blocks(count: int, dtype: DTypeLike = _FLOAT32) -> int:
    """How many counter blocks a draw of `count` values takes: float64 needs two words a value, all others one."""
    if dtype is not _FLOAT32 and np.dtype(dtype) == _FLOAT64:
        count *= 2
    return -(-count // 4)


def bits(seed: int, stream: int, offset: int, count: int) -> Array:
    """`count` random 32-bit words (uint32)."""
    words: Array | None = _native_bits(seed & _MASK, stream & _MASK, offset & _MASK, count)
    return reference_bits(seed, stream, offset, count) if words is None else words


def uniform(seed: int, stream: int, offset: int, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
    """Uniform in [0, 1): 24 random bits for float32, 53 for float64, 11 for float16, 8 for bfloat16."""
    dtype = np.dtype(dtype)
    wide = dtype is _FLOAT64  # one object each, as numpy keeps them
    if wide or dtype is _FLOAT32:
        flat: Array | None = _native_uniform(seed & _MASK, stream & _MASK, offset & _MASK, math.prod(shape), wide)
        if flat is not None:
            return flat if len(shape) == 1 else flat.reshape(shape)
    return reference_uniform(seed, stream, offset, shape, dtype)


def integers(seed: int, stream: int, offset: int, count: int, low: int, span: int) -> Array:
    """`count` integers, int64, from `low` on, `span` <= 2 ** 32 of them: the product with 64 random bits is scaled."""
    low = (low + (1 << 63) & _MASK) - (1 << 63)  # as int64 sees it
    found: Array | None = _native_integers(seed & _MASK, stream & _MASK, offset & _MASK, count, low, span)
    return reference_integers(seed, stream, offset, count, low, span) if found is None else found


def reference_integers(seed: int, stream: int, offset: int, count: int, low: int, span: int) -> Array:
    """numpy form of `integers`."""
    words = reference_bits(seed, stream, offset, 2 * count).astype(np.uint64).reshape(-1, 2)
    s = np.uint64(span)  # multiply-shift on 64 bits without overflow: high and low word apart
    value = (words[:, 0] * s + ((words[:, 1] * s) >> _SHIFT)) >> _SHIFT
    return (value + np.uint64(low & _MASK)).view(np.int64)


def normal(seed: int, stream: int, offset: int, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
    """Standard normal by Box-Muller: values 2i and 2i+1 come from the same pair of uniforms.

    Native code and the reference agree within rounding, not to the bit: their logarithm, sine and cosine differ.
    """
    dtype = np.dtype(dtype)
    if dtype is _FLOAT32:
        flat: Array | None = _native_normal(seed & _MASK, stream & _MASK, offset & _MASK, math.prod(shape))
        if flat is not None:
            return flat if len(shape) == 1 else flat.reshape(shape)
    return reference_normal(seed, stream, offset, shape, dtype)


def dropout_mask(seed: int, stream: int, offset: int, shape: tuple[int, ...], p: float) -> Array:
    """float32 factors: 0 with probability p, else 1 / (1 - p). Takes `blocks(count)` blocks, as `uniform` does."""
    flat: Array | None = _native_dropout(seed & _MASK, stream & _MASK, offset & _MASK, math.prod(shape), p)
    return reference_dropout_mask(seed, stream, offset, shape, p) if flat is None else flat.reshape(shape)


def reference_bits(seed: int, stream: int, offset: int, count: int) -> Array:
    """numpy form of `bits`."""
    number = np.arange(blocks(count), dtype=np.uint64) + np.uint64(offset & _MASK)
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    c0, c1 = number & _LOW, number >> _SHIFT
    c2 = np.full_like(number, stream & 0xFFFFFFFF)
    c3 = np.full_like(number, (stream >> 32) & 0xFFFFFFFF)
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (second >> _SHIFT) ^ c1 ^ np.uint64(key0), second & _LOW
        c2, c3 = (first >> _SHIFT) ^ c3 ^ np.uint64(key1), first & _LOW
        key0, key1 = (key0 + _WEYL[0]) & 0xFFFFFFFF, (key1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32).reshape(-1)[:count]


def reference_uniform(seed: int, stream: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """numpy form of `uniform`."""
    count = math.prod(shape)
    if dtype == _FLOAT64:
        pairs = reference_bits(seed, stream, offset, 2 * count).astype(np.uint64).reshape(-1, 2)
        words = pairs[:, 1] << _SHIFT | pairs[:, 0]
        return ((words >> np.uint64(11)) * 2.0**-53).reshape(shape)
    # as many bits as the dtype's significand holds, so that rounding cannot give 1
    precision = 24 if dtype.itemsize != 2 else 11 if dtype == np.float16 else 8
    words = reference_bits(seed, stream, offset, count) >> np.uint32(32 - precision)
    return (words.astype(np.float32) * np.float32(2.0**-precision)).astype(dtype).reshape(shape)


def reference_normal(seed: int, stream: int, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """numpy form of `normal`."""
    count = math.prod(shape)
    even = count + count % 2
    wide = dtype == _FLOAT64
    u = reference_uniform(seed, stream, offset, (even // 2, 2), _FLOAT64 if wide else _FLOAT32)
    radius = np.sqrt(-2 * np.log(1 - u[:, 0]))
    angle = u[:, 1] * u.dtype.type(2 * math.pi)
    out = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return out.reshape(-1)[:count].astype(dtype, copy=False).reshape(shape)


def reference_dropout_mask(seed: int, stream: int, offset: int, shape: tuple[int, ...], p: float) -> Array:
    """numpy form of `dropout_mask`."""
    if p >= 1:
        return np.zeros(shape, np.float32)
    keep = reference_uniform(seed, stream, offset, shape, _FLOAT32) >= np.float32(p)
    return np.where(keep, np.float32(1 / (1 - p)), np.float32(0))
