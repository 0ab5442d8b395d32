"""Move what goes from one partition to the next to its device; gradients come back the same way."""

from __future__ import annotations

from typing import Any

from resilin.core import trees
from resilin.core.device import device
from resilin.core.ops.transfer import move
from resilin.core.tensor import Tensor


def copy(value: Any, target: device) -> Any:
    """Return `value` with every tensor in it, however nested, on `target`; itself where all are there already."""
    if isinstance(value, Tensor):
        return value if value._dev is target else move(value, target)
    leaves, tree = trees.flatten(value)
    if all(not isinstance(leaf, Tensor) or leaf._dev is target for leaf in leaves):
        return value
    return trees.unflatten([copy(leaf, target) if isinstance(leaf, Tensor) else leaf for leaf in leaves], tree)
