"""Complex numbers from their parts, and as pairs of reals.

`__all__` are the functions of `resilin`.
"""

from __future__ import annotations

from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.mathematics import arithmetic
from resilin.core.ops import shape as ops
from resilin.core.ops import strided
from resilin.core.tensor import Tensor

__all__ = ["complex", "polar", "view_as_complex", "view_as_real"]


def _check_parts(where: str, first: Any, second: Any) -> None:
    """Errors unless both are tensors of one dtype, float32 or float64."""
    for part in (first, second):
        if not isinstance(part, Tensor):
            raise TypeError(f"{where}(): expected two Tensors, got {type(first).__name__} and {type(second).__name__}")
        if part.dtype not in (dtypes.float32, dtypes.float64):
            raise RuntimeError(f"{where}(): expected both inputs to be float32 or float64 tensors, got {part.dtype}")
    if first.dtype is not second.dtype:
        raise RuntimeError(f"{where}(): expected both inputs of one dtype, got {first.dtype} and {second.dtype}")


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers from their real and imaginary parts: float32 or float64 tensors of one dtype, broadcast."""
    _check_parts("complex", real, imag)
    return ops.make_complex.call(real, imag)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers from their absolute values and angles in radians; broadcast."""
    _check_parts("polar", abs, angle)
    made: Tensor = ops.make_complex.call(abs * arithmetic.cos(angle), abs * arithmetic.sin(angle))
    return made


def view_as_real(input: Tensor) -> Tensor:
    """A view of complex numbers as pairs (real part, imaginary part) in a new last dimension."""
    if not input.is_complex():
        raise RuntimeError(f"view_as_real is only supported for complex tensors, got {input.dtype}")
    return strided.view_as_real.call(input)


def view_as_complex(input: Tensor) -> Tensor:
    """A view of pairs (real part, imaginary part) in a last dimension of length 2 as complex numbers.

    RuntimeError unless each pair lies together in memory, pairs begin at even places, and the dtype is float32 or
    float64.
    """
    if input.dtype not in (dtypes.float32, dtypes.float64):
        raise RuntimeError(f"view_as_complex is only supported for float32 and float64 tensors, got {input.dtype}")
    shape, strides = input._array.shape, input.stride()
    if not shape:
        raise RuntimeError("Input tensor must have one or more dimensions")
    if shape[-1] != 2:
        raise RuntimeError(f"Tensor must have a last dimension of size 2, got shape {tuple(shape)}")
    if input._array.size and strides[-1] != 1:
        raise RuntimeError(f"Tensor must have a last dimension with stride 1, got strides {strides}")
    if input._array.size == 0:
        return strided.view_as_complex.call(input.contiguous())
    if any(step % 2 for step, n in zip(strides[:-1], shape[:-1], strict=True) if n > 1) or input.storage_offset() % 2:
        raise RuntimeError(
            "Tensor must have a stride divisible by 2 for all but last dimension, and a storage_offset divisible by 2; "
            f"got strides {strides} and offset {input.storage_offset()}"
        )
    return strided.view_as_complex.call(input)
