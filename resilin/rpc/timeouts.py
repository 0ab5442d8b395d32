"""Read what callers name as a timeout."""

from __future__ import annotations

from typing import Any

from resilin.errors import UsageError, UsageTypeError

_LONGEST_S = 1e9  # waits of the system take no more than some 9e9 s: what is longer is without end


def seconds(value: Any, what: str) -> float:
    """Return a timeout in seconds; 0 is without end. UsageTypeError and UsageError, which name `what`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageTypeError(f"{what}: expected seconds as a number, got {value!r:.80}")
    if not value >= 0:
        raise UsageError(f"{what}: expected seconds, 0 for no limit, got {value!r}")
    return float(value) if value <= _LONGEST_S else 0.0
