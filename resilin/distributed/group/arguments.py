"""Turn what users pass (tensors, ranks, lists) into contiguous arrays and ranks in the group."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from resilin.core.device import CPU
from resilin.core.kernels.common import address_of
from resilin.core.state.write_log import before_write
from resilin.distributed.backends import per_device
from resilin.distributed.group.default_group import get_group_rank
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.reduce_op import DTYPE_CODES, Array
from resilin.errors import UsageError, UsageTypeError


def array_of(tensor: Any, what: str) -> Array:
    """The array of a Tensor, which shows by its type on which device it is; arrays pass. UsageError for anything else.

    The group's backends (`dist.backends.devices`) go by that type. what: which argument it is, for errors.
    """
    array, device = getattr(tensor, "_array", tensor), getattr(tensor, "_dev", None)
    if device is not None and device is not CPU:
        array = per_device.of_device(array, device.type)
    elif isinstance(array, np.memmap):
        array = array.view(np.ndarray)
    elif type(array) is not np.ndarray:
        if isinstance(array, np.matrix | np.ma.MaskedArray):
            raise UsageTypeError(
                f"{what}: expected a tensor or a plain array, got a {type(array).__name__}, of which collectives would "
                f"lose {'the mask' if isinstance(array, np.ma.MaskedArray) else 'its two dimensions'}: pass "
                f"{'array.data or array.filled(...)' if isinstance(array, np.ma.MaskedArray) else 'np.asarray(array)'}"
            )
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            raise UsageTypeError(f"{what}: expected a tensor, got {type(tensor).__name__}")
        try:
            per_device.type_of(array)
        except UsageError as error:
            raise UsageTypeError(f"{what}: {error}") from None
    if array.dtype not in DTYPE_CODES:
        raise UsageError(f"{what}: collectives do not carry dtype {array.dtype}")
    found: Array = array
    return found


class Input:
    """A tensor that a collective reads: `flat`, its contiguous memory, which may be a copy that `load` fills.

    `load` is for when the call runs, not when it is made: calls before it may still write into the tensor.
    """

    __slots__ = ("array", "flat")

    def __init__(self, tensor: Any, what: str) -> None:
        self.flat = self.array = array_of(tensor, what)
        if not self.array.flags.c_contiguous:
            on_host = type(self.array) is np.ndarray
            self.flat = np.empty(self.array.shape, self.array.dtype) if on_host else self.array.copy(order="C")

    def load(self) -> Array:
        """`flat`, with what is in the tensor now."""
        if self.flat is not self.array:
            self.flat[...] = self.array
        return self.flat


class Output(Input):
    """A tensor that a collective writes: its contiguous memory, and how it gets back into the tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any, what: str) -> None:
        super().__init__(tensor, what)
        if hasattr(tensor, "_bump"):  # a Tensor
            before_write(tensor)
        self.tensor = tensor
        if not getattr(self.array.flags, "writeable", True):  # arrays of devices are never read-only
            kind = "an expanded tensor" if 0 in self.array.strides else "a read-only tensor"
            raise UsageError(
                f"{what} is {kind}, {self.array.dtype}{list(self.array.shape)}, which cannot be written: expected "
                "memory of its own for every element: pass tensor.contiguous(), or a copy of the array"
            )

    def take(self, result: Array) -> None:
        """Store `result`, which is `flat` itself or what goes there."""
        if result is not self.flat:
            self.flat[...] = result
        self.store()

    def store(self) -> None:
        """Copy staged memory back and count the write."""
        if self.flat is not self.array:
            self.array[...] = self.flat
        bump = getattr(self.tensor, "_bump", None)
        if bump is not None:
            bump()


def outputs_of(tensors: Any, what: str, load: bool = False) -> list[Output]:
    """The Outputs of a list of tensors. UsageError when two share memory, unless they bring what is in it (`load`)."""
    outputs = [Output(tensor, f"{what}[{i}]") for i, tensor in enumerate(listed(tensors, what))]
    pair = None if load else _together([output.array for output in outputs])
    if pair is not None:
        raise UsageError(
            f"{what}[{pair[1]}] lies in the memory of [{pair[0]}]: expected memory of its own for each, as in "
            "[torch.zeros_like(tensor) for _ in range(world_size)]"
        )
    return outputs


def _together(arrays: Sequence[Array]) -> tuple[int, int] | None:
    """Two places whose arrays share memory, if there are any: who wrote last would decide. On the host only."""
    for array in arrays:
        if type(array) is not np.ndarray:
            return None
    if len(arrays) > _PAIRS_OF:  # one after the other in memory; looking at each address costs a microsecond
        spans = sorted((address_of(a), a.nbytes, i) for i, a in enumerate(arrays) if a.nbytes and a.flags.c_contiguous)
        for (start, size, i), (after, _, j) in itertools.pairwise(spans):
            if after < start + size:
                return min(i, j), max(i, j)
        return None
    for j in range(1, len(arrays)):
        second = arrays[j]
        for i in range(j):
            if _may_share(arrays[i], second) and _share(arrays[i], second):
                return i, j
    return None


def _share(first: Array, second: Array) -> bool:
    """Whether two arrays in one stretch of memory have an element in common: columns of a matrix do not."""
    if first.flags.c_contiguous and second.flags.c_contiguous:
        return True
    try:
        return bool(np.shares_memory(first, second, max_work=_MAX_WORK))  # type: ignore[arg-type] # stubs know -1 and 0
    except np.exceptions.TooHardError:
        return False


_may_share = np.may_share_memory
_PAIRS_OF = 8  # up to so many arrays each pair is compared, a quarter of a microsecond each
_MAX_WORK = 10_000


def inputs_of(tensors: Any, what: str) -> list[Input]:
    """The Inputs of a list of tensors."""
    return [Input(tensor, f"{what}[{i}]") for i, tensor in enumerate(listed(tensors, what))]


def listed(tensors: Any, what: str) -> Sequence[Any]:
    """`tensors`. UsageTypeError unless it is a list or a tuple: a tensor would be cut into its rows."""
    if not isinstance(tensors, list | tuple):
        raise UsageTypeError(f"{what}: expected a list of tensors, got {type(tensors).__name__}")
    return tensors


def given(tensors: Any, what: str) -> bool:
    """Return whether there is anything in a list that may be None or empty. UsageTypeError for what is none."""
    return tensors is not None and len(listed(tensors, what)) > 0


def contiguous(tensor: Any, what: str) -> Array:
    """The tensor's array, or a contiguous copy of what is in it now."""
    array = array_of(tensor, what)
    return array if array.flags.c_contiguous else array.copy(order="C")


def root_of(group: ProcessGroup, rank: int | None, group_rank: int | None, what: str) -> int:
    """The rank in `group` that an argument means. `what`: "function: argument"; the other one is group_argument."""
    function, _, name = what.rpartition(": ")
    where = f"{function}: group_{name}"
    if group_rank is not None:
        if rank is not None:
            raise UsageError(f"{function}: give {name} or group_{name}, not both")
        if not _is_rank(group_rank):
            raise UsageTypeError(f"{where}: expected a rank in {group!r}, an integer, got {group_rank!r}")
        if not 0 <= group_rank < group.size():
            raise UsageError(f"{where}: expected a rank in {group!r}, got {group_rank!r}")
        return group_rank
    if rank is None:
        raise UsageError(f"{function}: give {name} or group_{name}")
    if not _is_rank(rank):
        raise UsageTypeError(f"{what}: expected a rank, an integer, got {rank!r}")
    try:
        return get_group_rank(group, rank)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None


def _is_rank(rank: Any) -> bool:
    return type(rank) is int or isinstance(rank, Integral)  # the first is quick


def same_layout(arrays: Sequence[Array], like: Array, count: int, what: str) -> None:
    """UsageError unless there are `count` arrays of the dtype and size of `like`."""
    if len(arrays) != count:
        raise UsageError(f"{what}: expected {count} tensors, one per rank, got {len(arrays)}")
    for i, array in enumerate(arrays):
        if array.dtype != like.dtype or array.size != like.size:
            raise UsageError(
                f"{what}[{i}] is {array.dtype}{list(array.shape)}, expected {like.dtype}{list(like.shape)}"
            )


def one_dtype(arrays: Sequence[Array], what: str) -> None:
    """UsageError unless all arrays have the dtype of the first."""
    for array in arrays:
        if array.dtype != arrays[0].dtype:
            raise UsageError(f"{what}: expected tensors of one dtype, got {arrays[0].dtype} and {array.dtype}")


def shaped(arrays: Sequence[Array], like: Array) -> list[Array]:
    """The arrays in the shape of `like`."""
    return [array.reshape(like.shape) for array in arrays]


def rows_of(flat: Array, like: Array, count: int, what: str) -> list[Array]:
    """`flat` cut into `count` arrays like `like`."""
    if flat.dtype != like.dtype or flat.size != like.size * count:
        raise UsageError(
            f"{what} is {flat.dtype} with {flat.size} elements, expected {like.dtype} with {count} x {like.size}"
        )
    return shaped(list(flat.reshape(count, like.size)), like)


def _whole(sizes: Sequence[int] | None, what: str) -> list[int]:
    """The sizes as numbers of Python; none for None. UsageError unless all are whole and none is below 0."""
    if not isinstance(sizes, Sequence | None) or isinstance(sizes, str | bytes):
        raise UsageTypeError(f"{what}: expected a list of numbers of rows, got {sizes!r:.80}")
    for size in sizes or ():
        if not isinstance(size, Integral):
            raise UsageTypeError(f"{what}: expected whole numbers of rows, got {size!r:.80}")
        if size < 0:
            raise UsageError(f"{what}: expected numbers of rows from 0 on, got {size}")
    return [int(size) for size in sizes or ()]


def cut(array: Array, sizes: Sequence[int] | None, count: int, what: str) -> list[Array]:
    """`array` cut along its first dimension, evenly or by `sizes`."""
    if array.ndim == 0:
        raise UsageError(f"{what} is a scalar, expected at least one dimension to cut along")
    rows = array.shape[0]
    sizes = _whole(sizes, f"{what}_split_sizes")
    if not sizes:
        if rows % count:
            raise UsageError(f"{what} has {rows} rows, which do not divide over {count} ranks; give {what}_split_sizes")
        sizes = [rows // count] * count
    if len(sizes) != count or sum(sizes) != rows:
        raise UsageError(f"{what}_split_sizes {list(sizes)} must be {count} numbers that add up to {rows} rows")
    starts = [sum(sizes[:i]) for i in range(count + 1)]
    return [array[starts[i] : starts[i + 1]] for i in range(count)]
