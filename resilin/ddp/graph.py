"""Which parameters the graph of a forward's output holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from resilin.core.autograd.tape import Node, edge_of
from resilin.core.tensor import Tensor
from resilin.nn import Module

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, Module)
_DEEP = 3  # objects inside objects: an output that refers to half the program must not have it searched


def tensors(output: Any) -> Iterator[Tensor]:
    """Every tensor in `output`: in lists, tuples, sets, mappings, and the attributes of objects that are no modules."""
    stack: list[tuple[Any, int]] = [(output, 0)]
    seen: set[int] = set()
    while stack:
        value, depth = stack.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            stack.extend((each, depth) for each in value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            stack.extend((each, depth) for each in value)
        elif depth < _DEEP:
            stack.extend((each, depth + 1) for each in _attributes(value))


def _attributes(value: Any) -> Iterator[Any]:
    yield from getattr(value, "__dict__", {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield getattr(value, name, None)


def reachable(outputs: list[Tensor]) -> set[int]:
    """ids of the leaves in the graph of `outputs`."""
    stack: list[Any] = [edge for edge in map(edge_of, outputs) if edge is not None]
    seen: set[int] = set()
    leaves: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Node):
            stack.extend(edge for edge in node.edges if edge is not None)
        else:
            leaves.add(id(node))
    return leaves
