"""einx takes tensors by the array API standard, for which it asks the package array-api-compat."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from types import ModuleType


def adapt(einx: ModuleType) -> None:
    """Import array-api-compat, by which einx knows what it can compute with. A warning says where it is missing."""
    if importlib.util.find_spec("array_api_compat") is None:
        warnings.warn(
            f"{einx.__name__} takes resilin's tensors by the array API standard: pip install array-api-compat",
            stacklevel=2,
        )
    else:
        importlib.import_module("array_api_compat")
