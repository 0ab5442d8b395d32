"""Count calls, bytes and latencies of each function."""

from __future__ import annotations

from typing import Any

_BUCKETS = 40  # of powers of two in microseconds: the last begins at 6 days


class Counts:
    """What calls of one function have cost, on one side. Counted without a lock: a lost count harms nobody."""

    __slots__ = ("bytes", "calls", "errors", "latency")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.bytes = 0
        self.latency = [0] * _BUCKETS

    def add(self, seconds: float, failed: bool) -> None:
        """Count a call that has ended."""
        self.calls += 1
        self.errors += failed
        self.latency[min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)] += 1

    def shown(self) -> dict[str, Any]:
        """Return the counts; `latency_us` maps the upper end of a bucket, a power of two in us, to its calls."""
        found = {1 << exponent: count for exponent, count in enumerate(self.latency) if count}
        return {"calls": self.calls, "errors": self.errors, "bytes": self.bytes, "latency_us": found}


class Stats:
    """The counts of one worker."""

    def __init__(self) -> None:
        self._out: dict[bytes, Counts] = {}
        self._in: dict[bytes, Counts] = {}
        self.cancelled = 0
        """Calls that were dropped unrun: their callers had given up."""
        self.unsent = 0
        """Replies that a caller did not take in time."""

    def called(self, name: bytes) -> Counts:
        """Return the counts of calls of `name` that this worker has made."""
        return self._out.get(name) or self._out.setdefault(name, Counts())

    def served(self, name: bytes) -> Counts:
        """Return the counts of calls of `name` that this worker has run."""
        return self._in.get(name) or self._in.setdefault(name, Counts())

    def shown(self) -> dict[str, Any]:
        """Return everything that was counted, by the functions' names."""
        return {
            "calls": {name.decode(): counts.shown() for name, counts in list(self._out.items())},
            "served": {name.decode(): counts.shown() for name, counts in list(self._in.items())},
            "cancelled": self.cancelled,
            "unsent": self.unsent,
        }
