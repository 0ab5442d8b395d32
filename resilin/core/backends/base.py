"""What a backend gives the engine. `resilin.core.device.register_backend` adds one, also from outside the tree."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Backend(Protocol):
    """Arrays of one kind of device.

    `xp` is the namespace that ops' forward and vjp functions get: numpy's names (array API) plus the extras listed in
    `backends/numpy.py`. An array has `shape`, `dtype` (numpy's), `ndim`, `size`, arithmetic operators and indexing.
    """

    type: str
    xp: Any

    def count(self) -> int:
        """Number of devices of this type."""
        ...

    def from_host(self, array: np.ndarray[Any, Any], index: int) -> Any:
        """A copy of a numpy array in the memory of device `index`."""
        ...

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """The array as a numpy array; a copy unless the memory is the host's."""
        ...

    def synchronize(self, index: int) -> None:
        """Return when everything queued on device `index` is done."""
        ...
