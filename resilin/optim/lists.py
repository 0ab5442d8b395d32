"""The arrays of parameters that are stepped together, and what is counted after their step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.kernels.loader import kernel
from resilin.core.tensor import Tensor

Found = tuple[list[Tensor], list[dict[str, Any]], list[float], list[list[Any]]]

_native_lists = kernel("optimizer_lists")
_native_advance = kernel("optimizer_advance")


def usual(params: Any, state: Any, counters: tuple[str, ...], moments: tuple[str, ...]) -> Found | None:
    """The parameters with gradients, their entries in `state`, their counters, and `arrays` of them.

    None where they are not all on the CPU, without a state, or behind one another in their counters; and without
    native code.
    """
    if type(params) is not list or not isinstance(state, dict):
        return None
    found: Found | None = _native_lists(params, state, counters, moments)
    return found


def arrays(parameters: Sequence[Any], entries: Sequence[dict[str, Any]], moments: Sequence[str]) -> list[list[Any]]:
    """Lists of the arrays of parameters, of their gradients, and of their states that `moments` names."""
    states = [[entry[name]._array for entry in entries] for name in moments]
    return [[p._array for p in parameters], [p._grad._array for p in parameters], *states]


def advance(
    parameters: list[Any], entries: list[dict[str, Any]], counters: tuple[str, ...], values: tuple[float, ...]
) -> None:
    """Give all entries these counters, and count a write of each parameter."""
    if _native_advance(parameters, entries, counters, values):
        return
    for entry in entries:
        for name, value in zip(counters, values, strict=True):
            entry[name]._array.fill(value)
    for parameter in parameters:
        parameter._bump()
