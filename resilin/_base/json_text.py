"""JSON that others wrote: whatever is wrong with it is a ValueError, however deep or large it is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, BinaryIO, Final, NoReturn

DEEPEST: Final = 64  # containers in one another: records, reports and settings have five
_MOST_BYTES = 1 << 20


def parse(
    text: str | bytes,
    *,
    finite: bool = False,
    deepest: int | None = DEEPEST,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """What `text` says. ValueError for what is no JSON, is nested too deeply, or, with `finite`, has infinite numbers.

    Python's own RecursionError is none of those that readers of files and messages expect. deepest: None for what is
    read by something that takes any depth. pairs: makes an object of its names and values.
    """
    try:
        if finite:
            found = json.loads(text, parse_constant=_no_number, parse_float=_finite, object_pairs_hook=pairs)
        else:
            found = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found if deepest is None else not_deep(found, deepest)


def read(file: BinaryIO, most: int = _MOST_BYTES) -> bytes:
    """All of a file that should be small. ValueError, with no more read than that, when it is longer than `most`."""
    text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"it is longer than {most} bytes")
    return text


def not_deep(value: Any, deepest: int = DEEPEST) -> Any:
    """`value`, of dicts, lists and leaves. ValueError when more than `deepest` of them are in one another.

    Who shows, compares or walks through it does that by recursion.
    """
    level = [value]
    for _ in range(deepest + 1):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested too deeply: more than {deepest} lists or objects are in one another")


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text[:100])
