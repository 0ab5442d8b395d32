"""The `meta` device: arrays of a shape and a dtype, without elements. Nothing is computed, no memory is taken.

`array.py` is the array, `rules.py` and `products.py` say what shape and dtype each function of numpy gives, and
`backend.py` makes a namespace of them, in which ops and their gradients run as on any other device.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["load"]


def load(host: Any) -> Any:
    """The backend; its rules are loaded now. `host`, numpy's namespace, is not needed."""
    return importlib.import_module(f"{__name__}.backend").MetaBackend()
