"""What differs between two states: names, shapes, dtypes, and elements by their bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from resilin.checkpoint.tools.states import Leaf, SavedState


@dataclass(frozen=True)
class Difference:
    """One name that differs.

    what: "only in A", "only in B", "shape", "dtype", "elements" or "value". a and b: in words.
    differing and largest: of "elements", how many differ in a bit, and the largest difference of two numbers among them
    (NaN where only one is NaN; 0 when only signs of zero or bits of NaN differ).
    """

    name: str
    what: str
    a: str = ""
    b: str = ""
    differing: int = 0
    largest: float = 0.0


def compare(a: SavedState, b: SavedState) -> list[Difference]:
    """All differences, by name; empty when both have the same names, values, and bits. Blocks are held, no tensors."""
    if isinstance(a.tree, Leaf) and isinstance(b.tree, Leaf):  # two tensors, whatever each is called
        b = replace(b, name=a.name)
    (left, left_values), (right, right_values) = a.named(), b.named()
    found = []
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            found.append(_one_sided(name, left.get(name), right.get(name)))
        else:
            found += _tensors(name, left[name], right[name])
    if not _has_tensors_alone(a, b):
        names = left_values.keys() | right_values.keys()
        if _is_empty(a.tree) is not _is_empty(b.tree):  # all of the other one's names tell it; its own is none
            names -= {""} - (right_values if _is_empty(a.tree) else left_values).keys()
        for name in sorted(names):
            one, other = (repr(values[name]) if name in values else "" for values in (left_values, right_values))
            if one != other:
                what = "value" if one and other else "only in A" if one else "only in B"
                found.append(Difference(name, what, _short(one), _short(other)))
    return found


def uncompared(a: SavedState, b: SavedState) -> list[str]:
    """Names of the plain values of one that are left out, as the other cannot have any."""
    if not _has_tensors_alone(a, b):
        return []
    return sorted(name for state in (a, b) for name, value in state.named()[1].items() if not _is_empty(value))


def _has_tensors_alone(a: SavedState, b: SavedState) -> bool:
    return "safetensors" in (a.kind, b.kind)


def described(leaf: Leaf) -> str:
    """A tensor's dtype and shape in a word, as in "float32[2, 3]"."""
    return f"{leaf.dtype.name}{list(leaf.shape)}"


def _one_sided(name: str, a: Leaf | None, b: Leaf | None) -> Difference:
    if a is not None:
        return Difference(name, "only in A", a=described(a))
    assert b is not None
    return Difference(name, "only in B", b=described(b))


def _tensors(name: str, a: Leaf, b: Leaf) -> list[Difference]:
    if a.shape != b.shape:
        return [Difference(name, "shape", described(a), described(b))]
    if a.dtype is not b.dtype:
        return [Difference(name, "dtype", described(a), described(b))]
    differing, largest = 0, 0.0
    for start, stop in a.ranges():
        one, other = np.ascontiguousarray(a.read(start, stop)), np.ascontiguousarray(b.read(start, stop))
        bits = (_bytes(one) != _bytes(other)).any(axis=1)
        if bits.any():
            differing += int(bits.sum())
            largest = _larger(largest, _distance(one[bits], other[bits]))
    if not differing:
        return []
    return [Difference(name, "elements", described(a), described(b), differing, largest)]


def _is_empty(tree: Any) -> bool:
    return isinstance(tree, dict | list | tuple) and not tree


def _bytes(array: Any) -> Any:
    return array.view(np.uint8).reshape(array.size, array.itemsize)


def _distance(a: Any, b: Any) -> float:
    """The largest difference of elements; NaN when one is NaN where the other is not."""
    wide = np.complex128 if a.dtype.kind == "c" else np.longdouble if a.dtype.kind in "iub" else np.float64
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a.astype(wide) - b.astype(wide))
    nan_a, nan_b = (np.isnan(each.astype(wide)) for each in (a, b))
    apart[(nan_a & nan_b) | (a.astype(wide) == b.astype(wide))] = 0  # infinities minus themselves, too
    return float(apart.max())


def _larger(a: float, b: float) -> float:
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:197]}..."
