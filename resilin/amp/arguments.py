"""Checks the arguments of a loss scaler, each returned in Python's own type. Errors begin with `where`, the function's
name.

Of a type that has no number in it: UsageTypeError. Of a number without a meaning: UsageError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError


def scale(where: str, name: str, value: Any) -> float:
    """A factor of the loss: positive and finite."""
    return _within(where, name, value, "positive and finite", lambda number: 0 < number < math.inf)


def growth_factor(where: str, value: Any, fixed: bool = False) -> float:
    """What the scale is multiplied by when it grows. fixed: also 1, by which it never does."""
    if fixed:
        return _within(where, "growth_factor", value, "at least 1 and finite", lambda number: 1 <= number < math.inf)
    return _within(where, "growth_factor", value, "above 1 and finite", lambda number: 1 < number < math.inf)


def backoff_factor(where: str, value: Any, fixed: bool = False) -> float:
    """What the scale is multiplied by after an overflow. fixed: also 1, which leaves it as it is."""
    if fixed:
        return _within(where, "backoff_factor", value, "above 0 and at most 1", lambda number: 0 < number <= 1)
    return _within(where, "backoff_factor", value, "between 0 and 1", lambda number: 0 < number < 1)


def count(where: str, name: str, value: Any, least: int) -> int:
    """A number of steps."""
    wanted = f"a whole number of at least {least}"
    return int(_within(where, name, value, wanted, lambda number: number.is_integer() and number >= least))


def optimizer(where: str, value: Any) -> None:
    """Something whose parameters have gradients to look at."""
    if not (hasattr(value, "param_groups") and callable(getattr(value, "step", None))):
        raise UsageTypeError(f"{where}: optimizer must be one, with param_groups and step(), got {value!r:.80}")


def mapping(where: str, name: str, value: Any) -> None:
    """What has entries."""
    if not isinstance(value, Mapping):
        raise UsageTypeError(f"{where}: {name} must be a dict, as state_dict() returns, got {value!r:.80}")


def _within(where: str, name: str, value: Any, wanted: str, holds: Callable[[float], bool]) -> float:
    given = value.item() if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1 else value
    if isinstance(given, bool | np.bool_) or not isinstance(given, Real):
        raise UsageTypeError(f"{where}: {name} must be {wanted}, got {value!r:.80}")
    if not holds(float(given)):
        raise UsageError(f"{where}: {name} must be {wanted}, got {given}")
    return float(given)
