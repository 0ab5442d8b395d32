"""Sets of times as sorted intervals that do not touch. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return what at least one interval covers."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def total(intervals: Iterable[Interval]) -> int:
    """Return how long they are together."""
    return sum(end - start for start, end in intervals)


def common(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Return what both cover."""
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            found.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Return what the first covers and the other does not."""
    found, j = [], 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        k = j
        while k < len(other) and other[k][0] < end:
            if other[k][0] > start:
                found.append((start, other[k][0]))
            start = max(start, other[k][1])
            k += 1
        if start < end:
            found.append((start, end))
    return found


def within(intervals: Sequence[Interval], start: int, end: int) -> list[Interval]:
    """Return what lies between `start` and `end` of intervals in order that do not overlap, found quickly."""
    first = bisect_right(intervals, start, key=lambda each: each[1])
    last = bisect_left(intervals, end, key=lambda each: each[0])
    return clip(intervals[first:last], start, end)


def clip(intervals: Iterable[Interval], start: int, end: int) -> list[Interval]:
    """Return what of them lies between `start` and `end`."""
    cut = ((max(a, start), min(b, end)) for a, b in intervals)
    return [(a, b) for a, b in cut if a < b]
