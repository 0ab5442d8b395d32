"""Finds the moments of memory that lie in a span of time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any


class MemRecordsAcc:
    """Records of memory by time. Each is a sequence whose first entry has `start_ns()`."""

    def __init__(self, mem_records: Sequence[Any]) -> None:
        self._records = sorted(mem_records, key=lambda record: record[0].start_ns())
        self._times = [record[0].start_ns() for record in self._records]

    def in_interval(self, start_ns: int, end_ns: int) -> Iterator[Any]:
        """Give the records from `start_ns` to `end_ns`, both included, by time."""
        yield from self._records[bisect_left(self._times, start_ns) : bisect_right(self._times, end_ns)]
