"""What commands print: lines for people, in which nothing of others reaches the terminal as a command, or JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from resilin._base.text import visible

_HOME_AND_CLEAR = "\x1b[H\x1b[J"


def show(*lines: str, clear: bool = False) -> None:
    """Print each of `lines`, in which names, reasons and messages may be anybody's. clear: what is there goes first."""
    text = (_HOME_AND_CLEAR if clear else "") + "\n".join(map(visible, lines))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def show_json(value: Any, indent: int | None = None) -> None:
    """Print `value` as JSON in ASCII, which says by itself what is no visible character."""
    print(json.dumps(value, indent=indent), flush=True)
