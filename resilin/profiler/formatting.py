"""How tables and events write times, shares and bytes, as PyTorch does."""

from __future__ import annotations

_UNITS_US = (("s", 1e6), ("ms", 1e3))
_UNITS_BYTES = (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10))


def format_time(time_us: float, unit: str | None = None) -> str:
    """Write microseconds in `unit` ("s", "ms", "us"), by default in the largest one that leaves a digit."""
    for name, length in _UNITS_US:
        if unit == name or (unit not in ("s", "ms", "us") and time_us >= length):
            return f"{time_us / length:.3f}{name}"
    return f"{time_us:.3f}us"


def format_time_share(time_us: float, total_us: float) -> str:
    """Write a part of a total in percent. Of no time at all: "NaN"; AssertionError when the part is more than that."""
    if total_us == 0:
        assert time_us == 0, f"share of a total of 0: expected 0, got {time_us}"
        return "NaN"
    return f"{time_us * 100.0 / total_us:.2f}%"


def format_memory(nbytes: int) -> str:
    """Write bytes, with a sign where they were given back."""
    for name, size in _UNITS_BYTES:
        if abs(nbytes) >= size:
            return f"{nbytes / size:.2f} {name}"
    return f"{nbytes} B"
