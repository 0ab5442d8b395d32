"""JSON that others wrote: whatever is wrong with it is a ValueError, however deep or large it is."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


def parse(text: str | bytes, *, finite: bool = False) -> Any:
    """What `text` says. ValueError for what is no JSON, is nested too deeply, or, with `finite`, has infinite numbers.

    Python's own RecursionError is none of those that readers of files and messages expect.
    """
    try:
        if finite:
            return json.loads(text, parse_constant=_no_number, parse_float=_finite)
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text[:100])
