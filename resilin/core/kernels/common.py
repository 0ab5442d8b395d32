"""What the kernels share: the array type and the dtype they compute in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_FLOAT32 = np.dtype(np.float32)


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype sums are kept in: float32 for 16-bit floats, else the dtype itself."""
    return _FLOAT32 if dtype.itemsize == 2 else dtype
