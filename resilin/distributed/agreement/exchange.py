"""Every rank's object on every rank, and work that all ranks do or none.

Sizes travel first, in a collective that says whose it is, then the padded bytes; so errors and order are those of
tensors. A rank whose object cannot be pickled refuses the first of the two: the others raise an error of the class of
its own, and the group stays usable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from resilin.distributed.agreement.guard import abort_group, abort_group_on_error
from resilin.distributed.agreement.refuse import propagate_errors
from resilin.distributed.backends.base import Call
from resilin.distributed.group.process_group import ProcessGroup
from resilin.distributed.wire import object_codec, record_codec
from resilin.distributed.wire.error_codec import telling_once
from resilin.distributed.wire.frames import Kind
from resilin.distributed.wire.reduce_op import Array
from resilin.errors import DistError, UsageError

T = TypeVar("T")

_MOST_BYTES = 1 << 47  # of what a process can address
FAILED = "failed"
OTHERS = "all ranks must run the same version of resilin"


def gather_objects(function: str, mine: Any, group: ProcessGroup) -> list[Any]:
    """Every rank's `mine`, by rank, in a call of `function`, one of message.FUNCTIONS: plain values and containers.

    CollectiveMismatch, which names both, where other ranks are in another function; else as `all_gather_object`.
    """
    with propagate_errors(group, Kind.ALL_GATHER, function=function):
        data = dump(function, group, mine)
    return load_all(function, group, *gather_bytes(function, data, group), True, OTHERS)


def gather_records(function: str, kind: type[T], mine: T, group: ProcessGroup) -> list[T]:
    """As `gather_objects`, of dataclasses: DistError names the rank that sent anything but a `kind`."""
    said = gather_objects(function, record_codec.plain(kind, mine), group)
    return [record_of(kind, one, rank, group) for rank, one in enumerate(said)]


def record_of(kind: type[T], sent: Any, rank: int, group: ProcessGroup) -> T:
    """The record that the plain values `sent` by rank `rank` of the group stand for. DistError if they are none."""
    try:
        made: T = record_codec.record(kind, sent)
        return made
    except ValueError as error:
        raise DistError(
            f"{group.title()}: what rank {group.ranks[rank]} sent is no {kind.__name__}: {error}; {OTHERS}"
        ) from None


def on_all_ranks(
    group: ProcessGroup | None,
    function: str,
    work: Callable[[], T],
    give: Callable[[T], Any] = lambda result: None,
) -> tuple[T, list[Any]]:
    """Do `work` on every rank, then exchange `give(result)`: this rank's result, and what each rank gives.

    A rank whose work raises, raises that; the others an error of the same class that names it, in a call of `function`.
    What is given is plain values and containers. group: None: this process alone.
    """
    if group is None:
        result = work()
        return result, [give(result)]
    with telling_once():
        with propagate_errors(group, Kind.ALL_GATHER, function=function, verb=FAILED):
            result = work()
            data = dump(function, group, give(result))
        return result, load_all(function, group, *gather_bytes(function, data, group), True, OTHERS)


def gather_bytes(function: str, data: Array, group: ProcessGroup) -> tuple[Array, list[int]]:
    """Every rank's `data` in a row of its own, and how much of it that is: the first collectives of `function`."""
    with on_its_way(function, group):
        sizes = gather_sizes(function, data.size, group)
        rows = room_for(group.size(), enumerate(sizes))
        padded, backend = pad_for(data, sizes), group.backend
        group.run(Kind.ALL_GATHER, lambda call: backend.all_gather(call, padded, list(rows)))
    return rows, sizes


def dump(function: str, group: ProcessGroup, thing: Any) -> Array:
    """The bytes of an object. UsageError for what pickle cannot write; MemoryError as it is."""
    try:
        return np.frombuffer(object_codec.dump(thing), np.uint8)
    except MemoryError:
        raise
    except Exception as error:  # whatever a __reduce__ raises
        raise UsageError(
            f"{function}, {group.title()}: expected an object that pickle can write, got {type(thing).__name__}: "
            f"{error}; no object was sent, and the group stays usable"
        ) from error


def load(
    function: str,
    group: ProcessGroup,
    source: int,
    data: Array,
    weights_only: bool,
    instead: str = object_codec.INSTEAD,
) -> Any:
    """The object of rank `source` of the group. DistError for what cannot be made of its bytes here."""
    try:
        return object_codec.load(data.tobytes(), weights_only, instead)
    except (Exception, SystemExit) as error:  # whatever a class raises that is made here, or is not there
        raise DistError(
            f"{function}, {group.title()}: the object of rank {group.ranks[source]} cannot be loaded here: "
            f"{error if isinstance(error, DistError) else f'{type(error).__name__}: {error}'}"
        ) from error


def load_all(
    function: str,
    group: ProcessGroup,
    rows: Array,
    sizes: Sequence[int],
    weights_only: bool,
    instead: str = object_codec.INSTEAD,
) -> list[Any]:
    """The objects of all ranks."""
    return [load(function, group, rank, rows[rank, :size], weights_only, instead) for rank, size in enumerate(sizes)]


def gather_sizes(function: str, mine: int, group: ProcessGroup) -> list[int]:
    """The size that each rank has, in the first collective of `function`."""
    sizes, given, backend = np.empty((group.size(), 1), np.int64), np.array([mine], np.int64), group.backend

    def task(call: Call) -> None:
        call.begins(function)
        backend.all_gather(call, given, list(sizes))

    group.run(Kind.ALL_GATHER, task)
    return [int(size) for size in sizes[:, 0]]


class _TooLarge(Exception):
    """No memory holds an object of a size that a rank has announced."""


@contextmanager
def on_its_way(what: str, group: ProcessGroup, begun: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Abort the group if objects stay half-way, with DistError for what no memory holds: a rank announces its object's
    size, and may say anything."""
    with abort_group_on_error(group, f"left {what} half-way", begun=begun):
        try:
            yield
        except _TooLarge as error:
            expected = f"expected objects that there is memory for, but {error}; the group is aborted"
            refused = DistError(f"{what}, {group.title()}: {expected}")
            abort_group(group, refused, f"left {what} half-way")  # of its class are errors that all ranks have
            raise refused from error


def room_for(lines: int, announced: Iterable[tuple[int, int]]) -> Array:
    """Memory for so many of the largest of objects, which is touched as bytes come. announced: by which rank, and size.

    _TooLarge says who announces what no memory holds.
    """
    sizes = list(announced)
    for rank, size in sizes:
        if not 0 <= size < _MOST_BYTES:
            raise _TooLarge(f"rank {rank} announces an object of {size} bytes")
    rank, largest = max(sizes, key=lambda one: one[1])
    try:
        return np.empty((lines, largest), np.uint8)
    except (MemoryError, ValueError):
        raise _TooLarge(f"rank {rank} announces an object of {largest} bytes, times {lines}") from None


def pad_for(data: Array, sizes: Sequence[int]) -> Array:
    """`data` with zeros behind it, as long as the largest that a rank announces: who has no room hears which."""
    largest = max(sizes)
    try:
        return pad(data, largest)
    except _TooLarge:
        raise _TooLarge(f"rank {sizes.index(largest)} announces an object of {largest} bytes") from None


def pad(data: Array, size: int) -> Array:
    """`data` with zeros behind it, `size` bytes in all."""
    try:
        out = np.zeros(size, np.uint8)
    except (MemoryError, ValueError):
        raise _TooLarge(f"those of this rank are padded to {size} bytes") from None
    out[: data.size] = data
    return out
