"""What a forward is given and gives, changed tensor by tensor: moved to the module's device, or converted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.nn.utils.rnn import PackedSequence


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """`value` with `change(part)` for every tensor and PackedSequence, also inside lists, tuples, named tuples and
    dicts; anything else as it is."""
    if isinstance(value, Tensor | PackedSequence):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(changed(each, change) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(changed(each, change) for each in value)
    if isinstance(value, dict):
        return type(value)((changed(key, change), changed(each, change)) for key, each in value.items())
    return value


def moved(value: Any, to: device) -> Any:
    """`value` with its tensors on the device `to`; those that are there already stay as they are."""
    return changed(value, lambda part: part.to(to))
