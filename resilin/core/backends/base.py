"""What a backend gives the engine. `resilin.register_backend` adds one, also from outside the tree.

docs/backends.md shows how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

_NONE: Mapping[str, str] = MappingProxyType({})


class ArrayBackend(ABC):
    """Arrays of one kind of device, `type`: devices are called "type:0", "type:1" and so on.

    `xp` is the namespace that ops' forward and gradient functions get: numpy's names (array API) plus the extras listed
    in `backends/numpy.py`; each backend has its own, because the op registry completes it. An array has `shape`,
    `dtype` (numpy's), `ndim`, `size`, arithmetic operators and indexing. An op that asks `xp` for a function that is
    not there raises NotImplementedError, which names the op and the device type.
    """

    type: str
    xp: Any
    elements: bool = True
    """Whether arrays have elements; without them, `empty` makes what has a shape and a dtype only."""
    unsupported: Mapping[str, str] = _NONE
    """Ops that raise NotImplementedError on these devices, with the reason."""
    nondeterministic: Mapping[str, str] = _NONE
    """Ops whose results may differ from run to run, with the reason; "name_backward" for the gradient of op `name`.
    They raise while `use_deterministic_algorithms(True)` is in force."""

    def count(self) -> int:
        """Number of devices of this type; 1 unless overridden."""
        return 1

    def current(self) -> int:
        """The device that `type` without a number means; the first unless overridden."""
        return 0

    def choose(self, index: int) -> None:  # noqa: B027 - most have nothing to do
        """Have this thread compute on device `index`, where threads have a device of their own; else do nothing."""

    @abstractmethod
    def from_host(self, array: np.ndarray[Any, Any], index: int) -> Any:
        """A copy of a numpy array in the memory of device `index`."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A new array, of which nothing is known but shape and dtype; asked for where there are no `elements`."""
        raise NotImplementedError(f"backend {self.type!r} makes arrays by its `xp`")

    def draw(
        self, kind: str, take: Callable[..., Any], shape: tuple[int, ...], dtype: Any, index: int, **numbers: Any
    ) -> Any:
        """Random numbers, made in the memory of device `index` with the bits that the host draws; None: it shall.

        kind: uniform, normal, dropout_mask (with `p`) or bernoulli (with `p`, or the array `chance`). `take(count,
        dtype)` moves the generator and gives the draw's (seed, stream, offset): called only where this draws.
        """
        return None

    @abstractmethod
    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        """The array as a numpy array; a copy unless the memory is the host's."""

    @abstractmethod
    def synchronize(self, index: int) -> None:
        """Return when everything queued on device `index` is done."""

    def check(self) -> None:  # noqa: B027 - most find everything at once
        """Raise what was found wrong with values that the host has not looked at."""

    def explained(self, error: Exception, doing: str) -> Exception:
        """An error of the array library in this library's words, `doing` what it came from; else the error itself."""
        return error

    def pin(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A copy in host memory from which copies to the device are fastest; the array itself where none is special."""
        return array

    def is_pinned(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether the array lies in memory that `pin` gave."""
        return False
