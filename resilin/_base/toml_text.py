"""TOML that others wrote: as `json_text`, whatever is wrong with it is a ValueError."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from resilin._base import json_text

_MOST_TOLD = 200  # letters of what is wrong with it
_MOST_PARTS = 16  # of a key: Python's reader takes memory for their number squared
_LONG_KEY = re.compile(
    rb"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){%d}" % _MOST_PARTS, re.ASCII
)


def parse(text: bytes) -> dict[str, Any]:
    """What `text` says. ValueError for what is no TOML, or is nested too deeply."""
    if _LONG_KEY.search(text):
        raise ValueError(
            f"it is nested too deeply: a key, or a text, of more than {_MOST_PARTS} parts with dots between"
        )
    try:
        found: dict[str, Any] = json_text.not_deep(tomllib.loads(text.decode("utf-8")))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{error!s:.{_MOST_TOLD}}") from None
    return found
