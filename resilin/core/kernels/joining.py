"""Arrays joined along a dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_concatenate = kernel("concatenate")


def concatenate(arrays: Sequence[Array], axis: Any = 0) -> Array:
    """`np.concatenate(arrays, axis)`; contiguous arrays of one dtype are copied by blocks of memory."""
    y: Array | None = _native_concatenate(arrays, axis)
    return np.concatenate(arrays, axis) if y is None else y
