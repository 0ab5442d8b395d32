"""What a gradient rule is given for the inputs of its op."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.dtype import NpDtype
from resilin.core.ops.errstate import FLOAT32, ON_HOST, is_half, widened
from resilin.core.tensor import Tensor


class Meta:
    """What a rule gets for an input that was not saved: its shape and (numpy) dtype."""

    __slots__ = ("dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: NpDtype) -> None:
        self.shape, self.dtype = shape, dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


def is_wide(how: bool | str, g: Any) -> bool:
    """Whether a rule computes in float32 where `Impl.wide` says `how`, for the gradient `g` of 16-bit floats."""
    return how != ON_HOST or isinstance(g, np.ndarray | list)


def wide(value: Any) -> Any:
    """What a rule gets for an input of 16-bit floats where it is to compute in float32."""
    return Meta(value.shape, FLOAT32) if type(value) is Meta and is_half(value) else widened(value)


def wide_recorded(xp: Any, value: Any) -> Any:
    """`wide` for a rule that is recorded."""
    if not isinstance(value, Tensor):
        return wide(value)
    return xp.astype(value, FLOAT32) if is_half(value._array) else value
