"""torch.version: that of the names, and what this installation is made of."""

from __future__ import annotations

import resilin.as_torch
import resilin.version
from resilin.version import __all__ as __all__

__version__ = resilin.as_torch.VERSION


def __getattr__(name: str) -> str | None:
    value: str | None = getattr(resilin.version, name)
    return value
