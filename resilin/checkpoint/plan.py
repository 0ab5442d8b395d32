"""Which rank writes which elements, and in which files. Pure: sizes in, ranges out, the same on every rank.

What only some ranks hold is written by its holders. What all hold is rank 0's where it is small, and small is more
where it has one dimension: statistics and counters, which may differ between ranks, are of one rank whatever they are
cut into. The rest is laid in one row of bytes and cut so that the ranks write equally much in all:

    held in parts         rank 0 ███        rank 1 █████
    held by all, small    rank 0    █
    held by all           rank 0     ███    rank 1      ██     one row, in the order of the tensors
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resilin.checkpoint.manifest import Logical
from resilin.errors import UsageError

FILE_BYTES = 1 << 30  # of one data file: few enough files, and none too large for an upload
SMALL_BYTES = 256 << 10  # of a whole tensor that rank 0 writes: as a step of the row, little for a disk
SMALL_ROW_BYTES = 16 << 20  # of one that has no more than one dimension: statistics of four million channels
_CUT_BYTES = 64 << 10  # cuts within a tensor lie at multiples: smaller pieces cost more names than they balance


@dataclass(frozen=True, slots=True)
class Range:
    """Elements [start, stop) of tensor number `tensor`."""

    tensor: int
    start: int
    stop: int


Held = Mapping[int, Sequence[tuple[int, int, int]]]
"""Tensors that are held in parts, by number: (rank, start, stop) of each part."""


def shares(tensors: Sequence[Logical], held: Held, world_size: int) -> list[list[Range]]:
    """What each rank writes: every element of every tensor once.

    UsageError names a tensor of which no rank holds some elements. Of elements that several hold, one writes.
    Of what all hold, rank 0 writes tensors of up to `SMALL_BYTES`, and `SMALL_ROW_BYTES` in up to one dimension.
    """
    made: list[list[Range]] = [[] for _ in range(world_size)]
    for number, parts in sorted(held.items()):
        for rank, start, stop in _cover(tensors[number], parts):
            made[rank].append(Range(number, start, stop))
    sizes = [tensor.dtype.itemsize for tensor in tensors]
    for number, tensor in enumerate(tensors):
        if number not in held and _is_small(tensor):
            made[0] += [Range(number, 0, tensor.numel())] if tensor.numel() else []
    loads = [sum((one.stop - one.start) * sizes[one.tensor] for one in ranges) for ranges in made]
    common = [number for number, tensor in enumerate(tensors) if number not in held and not _is_small(tensor)]
    total = sum(tensors[number].numel() * sizes[number] for number in common)
    ends = _ends(loads, total)
    rank = before = 0  # the rank whose turn it is; bytes in the row before this tensor
    for number in common:
        start, numel = 0, tensors[number].numel()
        while start < numel:
            while rank < world_size - 1 and before + start * sizes[number] >= ends[rank]:
                rank += 1
            stop = numel if rank == world_size - 1 else _cut(ends[rank] - before, start, numel, sizes[number])
            made[rank].append(Range(number, start, stop))
            start = stop
        before += numel * sizes[number]
    return made


def _is_small(tensor: Logical) -> bool:
    """Whether a tensor that all ranks hold is written by rank 0."""
    size: int = tensor.numel() * tensor.dtype.itemsize
    return size <= (SMALL_ROW_BYTES if len(tensor.shape) < 2 else SMALL_BYTES)


def _cover(tensor: Logical, parts: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(rank, start, stop) that cover the tensor once, from parts that may overlap."""
    made = []
    end, numel = 0, tensor.numel()
    while end < numel:
        reach, rank = max(((stop, -rank) for rank, start, stop in parts if start <= end), default=(0, 0))
        if reach <= end:
            until = min((start for _, start, _ in parts if start > end), default=numel)
            raise UsageError(f"save: no rank holds elements [{end}, {until}) of {tensor.name!r}; parts must cover it")
        made.append((-rank, end, reach))
        end = reach
    return made


def _ends(loads: Sequence[int], total: int) -> list[int]:
    """Where each rank's turn ends in a row of `total` bytes, so that loads and turns add up to about the same."""
    ordered = sorted(loads)
    level = 0
    for count in range(1, len(loads) + 1):  # the level that the lightest `count` ranks reach together
        level = (sum(ordered[:count]) + total) // count
        if count == len(loads) or level <= ordered[count]:
            break
    ends, end = [], 0
    for load in loads:
        end += max(0, level - load)
        ends.append(min(end, total))
    return ends


def _cut(place: int, start: int, numel: int, itemsize: int) -> int:
    """The element where a turn that should end at byte `place` of the tensor ends, after `start`."""
    step = max(1, _CUT_BYTES // itemsize)
    stop = -(-place // (step * itemsize)) * step
    return numel if numel - stop < step else max(stop, start + 1)


def files(ranges: Sequence[Range], tensors: Sequence[Logical], file_bytes: int = FILE_BYTES) -> list[list[Range]]:
    """A rank's ranges by file, each of at most `file_bytes` of tensors; ranges are cut where a file is full."""
    made: list[list[Range]] = []
    room = 0
    for one in ranges:
        itemsize = tensors[one.tensor].dtype.itemsize
        start = one.start
        while start < one.stop:
            if room < itemsize:
                made.append([])
                room = max(file_bytes, itemsize)
            stop = min(one.stop, start + room // itemsize)
            made[-1].append(Range(one.tensor, start, stop))
            room -= (stop - start) * itemsize
            start = stop
    return made
