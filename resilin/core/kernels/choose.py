"""Elements of one array or another, by a condition."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

_native_choose = kernel("choose_elements")


def where(condition: Any, *choices: Any) -> Any:
    """`np.where`: the first choice where `condition` holds, else the second; without choices, the places."""
    if len(choices) == 2:
        found: Array | None = _native_choose(condition, *choices)
        if found is not None:
            return found
    return np.where(condition, *choices)
