"""What may be given for an argument that is a plain value: a flag, a size. Each value is returned in Python's own type.

PyTorch takes whatever is true or false for a flag; a text "no" is true, so only what can mean nothing else is taken.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from resilin.errors import UsageError, UsageTypeError


def flag(name: str, value: Any) -> bool:
    """`value`, which is True, False, 0 or 1, also numpy's, as a bool. UsageTypeError that begins with `name`, else."""
    if isinstance(value, int | np.bool_ | np.integer) and value in (0, 1):
        return bool(value)
    raise UsageTypeError(f"{name} must be True or False, got {value!r:.80}")


def whole(name: str, value: Any, least: int = 0) -> int:
    """`value`, a whole number of at least `least`, also numpy's, as an int. Errors begin with `name`.

    UsageTypeError for what is no whole number, a bool among them; UsageError for a smaller one.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageTypeError(f"{name} must be an integer of at least {least}, got {value!r:.80}")
    if value < least:
        raise UsageError(f"{name} must be an integer of at least {least}, got {value!r:.80}")
    return int(value)


def real(name: str, value: Any, least: float = 0) -> float:
    """`value`, a finite real number of at least `least`, also numpy's, as an int or a float. Errors begin with `name`.

    UsageTypeError for what is no number, a bool among them; UsageError for a smaller one, an infinity or NaN.
    """
    bound = "" if least == -math.inf else f" of at least {least:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageTypeError(f"{name} must be a number{bound}, got {value!r:.80}")
    number = float(value)
    if not (number >= least and math.isfinite(number)):
        raise UsageError(f"{name} must be a finite number{bound}, got {value!r:.80}")
    return int(value) if isinstance(value, Integral) else number


_OF_WRONG_TYPES = (
    "not supported between instances of",
    "unsupported operand type",
    "bad operand type",
    "cannot be interpreted as an integer",
    "object is not iterable",
    "has no len()",
)


def plain_words(error: Exception) -> str:
    """What `error` says; of a TypeError of an operator or of native code, first of all what it means."""
    text = str(error)
    if not isinstance(error, TypeError) or "of a wrong type" in text:
        return text
    if "(): incompatible function arguments" in text:
        given = text.rpartition("Invoked with types: ")[2].strip()
        return f"an argument is of a wrong type, one of {given}"
    return f"an argument is of a wrong type: {text}" if any(words in text for words in _OF_WRONG_TYPES) else text


def mebibytes(name: str, value: Any) -> float:
    """`value` as a float: any real number above 0, also numpy's. Errors begin with `name`.

    UsageTypeError for what is no number, a bool among them; UsageError for one that is not positive and finite.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageTypeError(f"{name} is a number of MiB, got {value!r:.80}")
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise UsageError(f"{name} must be positive and finite, got {value!r:.80}")
    return number
