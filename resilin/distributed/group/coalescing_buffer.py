"""Hold calls of a group until its `_coalescing_manager` block ends, and find which of them can be one. No I/O.

Small all_reduces that follow one another, with one dtype and one op, become one over their elements in a row, where
the bits stay those of separate calls: where the order of reduction makes no difference (two ranks; integers, MIN and
MAX), or the backend says that it does not depend on an element's place (`one_path`, as shared memory does). Elsewhere
they are started one after the other.

The layout of a pack goes into the number of its call (`Call.carry`), so that ranks whose packs are made of other shapes
are found by the check that every collective makes.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from resilin.core.kernels.common import address_of
from resilin.distributed.group.arguments import Output
from resilin.distributed.group.default_group import resolve
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire.reduce_op import Array, PremulSum, ReduceOp, scaled
from resilin.distributed.work.future import catch_up, collect_all, refuse_first
from resilin.distributed.work.work import Work
from resilin.errors import UsageError

PACK_BYTES = 128 << 10  # beyond it copying costs more than a call of its own
_WORK: Any = 10_000  # candidates that are looked at to tell whether two arrays share memory: about a millisecond

Launch = Callable[[bool], "Work | None"]  # with async_op


class Reduction:
    """An all_reduce that waits: its tensor and op, both checked."""

    def __init__(self, target: Output, op: ReduceOp | PremulSum) -> None:
        self.target = target
        self.op = op

    def joins(self, other: Reduction) -> bool:
        """Return whether the two can be in one pack, as far as dtype and op go."""
        mine, its = self.target.flat, other.target.flat
        same_op = self.op == other.op or (isinstance(self.op, PremulSum) and isinstance(other.op, PremulSum))
        return type(mine) is type(its) is np.ndarray and mine.dtype == its.dtype and same_op

    def terms(self) -> Array:
        """Return what is summed of it."""
        return scaled(self.op, self.target.load())


class CoalescingBuffer:
    """Hold what the manager gives: `works` are there once the block has ended with `async_ops`."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.calls: list[Reduction | Launch] = []

    def append(self, work: Work | None) -> None:
        """Let `wait` wait for `work`, too."""
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        """Wait for all calls of the block; raises the first error."""
        for work in self.works:
            work.wait()

    def add(self, call: Reduction | Launch, async_op: bool) -> Any:
        """Take a call. What stands for its Work raises UsageError, whatever is asked of it."""
        self.calls.append(call)
        return _Postponed() if async_op else None


class _Postponed:
    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(f"Work.{name}: this call runs when its _coalescing_manager block ends: wait for the manager")


_OPEN: dict[
    tuple[ProcessGroup, int], CoalescingBuffer
] = {}  # each of the thread that opened it: callbacks run in others


def open_block(group: ProcessGroup) -> CoalescingBuffer | None:
    """The block that collects what this thread calls of `group` now."""
    return _OPEN.get((group, threading.get_ident())) if _OPEN else None


def at_once(group: Any, what: str) -> ProcessGroup | None:
    """Return what `resolve` gives, for the call `what`, whose result is needed when it returns.

    UsageError while a block of the group is open: the calls before it in the block have not run yet. Nothing is sent.
    """
    found = resolve(group, what)
    if found is not None and open_block(found) is not None:
        raise UsageError(
            f"{what}, {found.title()}: its result is needed at once, but a _coalescing_manager block is open, whose "
            f"calls run when it ends: call {what} before or after the block"
        )
    return found


def begin(group: ProcessGroup) -> CoalescingBuffer:
    """Collect what this thread calls of `group` from now on."""
    catch_up()
    if open_block(group) is not None:
        raise UsageError(f"_coalescing_manager: a block of {group!r} is open already: blocks of one group do not nest")
    block = _OPEN[group, threading.get_ident()] = CoalescingBuffer()
    return block


def end(group: ProcessGroup) -> None:
    """Collect no more calls of `group`."""
    del _OPEN[group, threading.get_ident()]


def packs(calls: Sequence[Reduction | Launch], group: ProcessGroup) -> list[list[Reduction] | Launch]:
    """The calls in their order, reductions that can be one call of `group` in one list."""
    found: list[list[Reduction] | Launch] = []
    pack: _Pack | None = None
    for call in calls:
        if not isinstance(call, Reduction):
            found.append(call)
            pack = None
        elif pack is None or not pack.takes(call):
            pack = _Pack(call, group)
            found.append(pack.calls)
    return found


class _Pack:
    """Reductions that can be one call: small, of one dtype and op, and none writes memory of another."""

    def __init__(self, first: Reduction, group: ProcessGroup) -> None:
        flat = first.target.flat
        self.calls = [first]
        self._bytes = flat.nbytes
        self._written = _Memory()
        self._written.takes(first.target.array)
        exact = flat.dtype.kind in "bui" or first.op in (ReduceOp.MIN, ReduceOp.MAX)
        any_order = exact or group.size() <= 2 or group.backend.one_path
        self._open = type(flat) is np.ndarray and any_order

    def takes(self, call: Reduction) -> bool:
        """Whether `call` is one of them; it is then added."""
        size = self._bytes + call.target.flat.nbytes
        if not self._open or size > PACK_BYTES or not call.joins(self.calls[0]):
            return False
        if not self._written.takes(call.target.array):
            return False
        self._bytes = size
        self.calls.append(call)
        return True


class _Memory:
    """Memory of arrays none of which has an element of another, whatever lies between theirs (columns of a matrix)."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []  # apart from one another, in their order
        self._arrays: list[list[Array]] = []  # in each

    def takes(self, array: Array) -> bool:
        """Whether `array` shares nothing with the others; it is then one of them."""
        low, high = _span(array)
        first = bisect.bisect_right(self._ranges, low, key=lambda taken: taken[1])
        last = bisect.bisect_left(self._ranges, high, first, key=lambda taken: taken[0])
        around = [other for arrays in self._arrays[first:last] for other in arrays]
        if any(_shares(array, other) for other in around):
            return False
        if around:
            low, high = min(low, self._ranges[first][0]), max(high, self._ranges[last - 1][1])
        self._ranges[first:last] = [(low, high)]
        self._arrays[first:last] = [[*around, array]]
        return True


def _shares(one: Array, other: Array) -> bool:
    """Whether they have an element in common; yes also where that is hard to say."""
    try:
        return np.shares_memory(one, other, max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def _span(array: Array) -> tuple[int, int]:
    """From the first byte of an array to behind its last."""
    if array.flags.c_contiguous:
        start = address_of(array)
        return start, start + array.nbytes
    low, high = np.lib.array_utils.byte_bounds(array)
    return int(low), int(high)


def buffer_of(arrays: Sequence[Array], xp: Any = np) -> Array:
    """The elements of all arrays in a row. xp: the array module of their device."""
    row: Array = xp.concatenate([array.reshape(-1) for array in arrays])
    return row


def parts_of(buffer: Array, arrays: Sequence[Array]) -> list[Array]:
    """The parts of what `buffer_of` made of `arrays`, in their shapes."""
    starts = itertools.accumulate((int(array.size) for array in arrays), initial=0)
    return [buffer[at : at + array.size].reshape(array.shape) for at, array in zip(starts, arrays, strict=False)]


def joined(what: str, works: Sequence[Work], outputs: list[Any]) -> Work:
    """A Work that is done when all of `works` are, with the first error in their order."""
    futures = [work.get_future() for work in works]
    all_done = collect_all(futures)
    one = Work(what, refuse=partial(refuse_first, futures), line=all_done.line)

    def settle(_: Any) -> None:
        error = next((work.exception() for work in works if work.exception() is not None), None)
        if error is None:
            one._future.settle(outputs, None)
        else:
            one._future.settle(None, error)

    all_done.when_done(settle)
    return one
