"""Arrays over given memory, deep copies that share it where their originals do, and what pickles take of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor

_MOST_REPEATED_BYTES = 1 << 30  # of an expanded tensor: masks for a batch have some megabytes


def array_over(memory: Any, dtype: Any, shape: Any, strides: Any, offset: int) -> Any:
    """The array of `shape` and `strides` (bytes) that starts `offset` bytes into `memory` (uint8).

    One whose elements lie upon one another is read-only, as numpy's broadcast ones are: in-place ops refuse it.
    """
    made: Any = np.ndarray(shape, dtype, memory, offset, strides)
    if any(step == 0 and length > 1 for step, length in zip(strides, shape, strict=True)):
        made.flags.writeable = False
    return made


def check_repeats(lengths: Sequence[int], itemsize: int, held: int) -> None:
    """ValueError when a view shows far more bytes than its storage holds: who writes or compares it looks at each."""
    shown = math.prod(lengths) * itemsize
    if shown > held + _MOST_REPEATED_BYTES:
        raise ValueError(
            f"a tensor of shape {list(lengths)} repeats its elements: {shown} bytes from a storage of {held}; at most "
            f"{_MOST_REPEATED_BYTES} more are read: save a smaller view of it"
        )


def are_booleans(array: Any) -> bool:
    """Whether all bytes of an array of booleans are 0 or 1: what is computed with others is anything.

    Of one whose elements lie upon one another, all bytes between its first and its last: they are fewer.
    """
    once = array[(*(slice(1) if step == 0 else slice(None) for step in array.strides), ...)]
    if not once.size:
        return True
    extent = 1 + sum([(length - 1) * abs(step) for length, step in zip(once.shape, once.strides, strict=True)])
    if extent < once.size:
        first = once[tuple(slice(None, None, -1) if step < 0 else slice(None) for step in once.strides)]
        once = np.lib.stride_tricks.as_strided(first, (extent,), (1,))
    return int(once.view(np.uint8).max()) <= 1


def copy_shared(array: Any, memo: dict[int, Any]) -> Any:
    """A copy of `array`, with its strides, in the copy of the memory it is a view of.

    `memo` is that of `copy.deepcopy`: the memory is copied once per `deepcopy`, whole, as PyTorch does. Memory that
    does not lie in one piece, and that of other array libraries, is copied by value.
    """
    whole = array
    while isinstance(getattr(whole, "base", None), np.ndarray):
        whole = whole.base
    if (
        not isinstance(whole, np.ndarray)
        or not (whole.flags.c_contiguous or whole.flags.f_contiguous)
        or not whole.size
    ):
        return array.copy()
    copied = memo.get(id(whole))
    if copied is None:
        copied = memo[id(whole)] = whole.copy(order="K")
        memo.setdefault(id(memo), []).append(whole)  # keeps the id its own, as `copy` does
    offset = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return array_over(copied.reshape(-1, order="A").view(np.uint8), array.dtype, array.shape, array.strides, offset)


class Elements:
    """The elements of a tensor, in a pickle: a copy, or in multiprocessing's pickles the memory itself."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the array itself is pickled: who reads it need not know of this class."""
        return self.array().__reduce_ex__(protocol)

    def array(self) -> Any:
        """What they are, on the host."""
        return self.tensor._dev.backend.to_host(self.tensor._array)


_may_share = False


def pickles_may_share() -> bool:
    """Whether a pickle may lead to a tensor's memory."""
    return _may_share


def let_pickles_share() -> None:
    """From now on tensors are pickled as `Elements`, which multiprocessing's pickles know."""
    global _may_share
    _may_share = True


def elements_of(tensor: Tensor) -> Any:
    """What a pickle takes of a tensor: its array, or what may become its memory."""
    elements = Elements(tensor)
    return elements if _may_share else elements.array()
