"""Check limits of waits, as users give them."""

from __future__ import annotations

import math
from datetime import timedelta
from numbers import Real

from resilin.errors import UsageError

LONGEST_S = 24 * 86400.0  # what poll() takes; some of the system's waits fail with more


def seconds(timeout: timedelta | float | None, what: str = "timeout") -> float | None:
    """A timeout given as timedelta or seconds, in seconds; all that is longer than 24 days is that.

    UsageError for anything else, and below 0. what: which argument it is, for errors.
    """
    if timeout is None or (type(timeout) is float and 0.0 <= timeout <= LONGEST_S):  # the quick way
        return timeout
    given = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not isinstance(given, Real) or math.isnan(given):
        raise UsageError(f"{what}: expected seconds or a timedelta, got {timeout!r}")
    if given < 0:
        raise UsageError(f"{what}: expected seconds or a timedelta, none below 0, got {timeout!r}")
    return min(given, LONGEST_S)
