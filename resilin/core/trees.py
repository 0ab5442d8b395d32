"""Nested tuples, lists and dicts with anything at their leaves: taken apart and put together. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from resilin.core.return_types import ReturnType
from resilin.errors import UsageError

_T = TypeVar("_T")
_FREE_PLACES, _PLACES_PER_PART = 1_000_000, 64
_CONTAINERS = (dict, list, tuple)


class Tree:
    """The shape of a nested structure without its leaves. None is a leaf.

    The leaves of a dict come by its keys in a fixed order, so that two dicts that differ in order are alike; a dict
    that is built again has the order of the one that was taken apart.
    """

    __slots__ = ("children", "keys", "kind")

    def __init__(self, kind: Any, keys: Any, children: tuple[Tree, ...]) -> None:
        self.kind, self.keys, self.children = kind, keys, children

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Tree)
            and (self.kind, self.children) == (other.kind, other.children)
            and (self.keys is None or _ordered(self.keys) == _ordered(other.keys))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if self.kind is None:
            return "*"
        parts = ", ".join(map(repr, self.children))
        return f"{self.kind.__name__}({parts})"

    def build(self, leaves: Iterator[Any]) -> Any:
        """The structure with the next of `leaves` at its leaves, in the order of `flatten`."""
        if self.kind is None:
            return next(leaves)
        parts = [child.build(leaves) for child in self.children]
        if self.keys is not None:
            found = dict(zip(_ordered(self.keys), parts, strict=True))
            return self.kind((key, found[key]) for key in self.keys)
        return self.kind(*parts) if hasattr(self.kind, "_fields") else self.kind(parts)


def _ordered(keys: Iterable[Any]) -> list[Any]:
    return sorted(keys, key=lambda key: (type(key).__name__, repr(key)))


_LEAF = Tree(None, None, ())


def flatten(value: Any) -> tuple[list[Any], Tree]:
    """The leaves of nested tuples (also named ones), lists and dicts, and the structure around them."""
    leaves: list[Any] = []
    return leaves, _visit(value, leaves)


def _visit(value: Any, leaves: list[Any]) -> Tree:
    kind = type(value)
    if kind is dict or kind is OrderedDict:
        return Tree(kind, tuple(value), tuple(_visit(value[key], leaves) for key in _ordered(value)))
    if kind is tuple or kind is list or _has_named_parts(value):
        return Tree(kind, None, tuple(_visit(part, leaves) for part in value))
    leaves.append(value)
    return _LEAF


def _has_named_parts(value: Any) -> bool:
    return isinstance(value, tuple) and (hasattr(value, "_fields") or isinstance(value, ReturnType))


def unflatten(leaves: Any, tree: Tree) -> Any:
    """What `flatten` took apart, with these leaves."""
    return tree.build(iter(leaves))


def transform(fn: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with fn(leaf) at every leaf."""
    leaves, tree = flatten(value)
    return unflatten([fn(leaf) for leaf in leaves], tree)


def of_kind(kind: type[_T], value: Any) -> Iterator[_T]:
    """All instances of `kind` that `value` is, or that its lists and tuples hold, in order; dicts are not entered."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from of_kind(kind, part)


def spread(prefix: Any, value: Any, where: str) -> list[Any]:
    """For every leaf of `value`, what `prefix`, the same structure or one that ends earlier, has for it.

    ValueError, which begins with `where`, when they do not fit.
    """
    found: list[Any] = []
    if _spread(prefix, value, found):
        return found
    raise ValueError(f"{where} {prefix!r} does not have the structure of {flatten(value)[1]!r}, or the beginning of it")


def _spread(prefix: Any, value: Any, found: list[Any]) -> bool:
    if isinstance(prefix, dict) and isinstance(value, dict):
        return prefix.keys() == value.keys() and all(_spread(prefix[key], value[key], found) for key in _ordered(value))
    if isinstance(prefix, tuple | list):
        fits = isinstance(value, tuple | list) and isinstance(prefix, list) == isinstance(value, list)
        return (
            fits and len(prefix) == len(value) and all(_spread(a, b, found) for a, b in zip(prefix, value, strict=True))
        )
    found.extend([prefix] * len(flatten(value)[0]))
    return True


def check_shared(value: Any, what: str) -> None:
    """UsageError, which begins with `what`, where containers hold one another so often that `value` has far more places
    than parts: a list of twice the list before it has 2^39 after 39 of them. What contains itself counts once.
    """
    places: dict[int, int] = {}  # in each container, by identity, which holds as long as `value` does
    parts = 0
    left = [(value, False)]
    while left:
        one, ready = left.pop()
        held = one.values() if isinstance(one, dict) else one
        if ready:
            parts += len(held)
            places[id(one)] = min(1 + sum([places.get(id(part), 1) for part in held]), 1 << 62)
        elif isinstance(one, _CONTAINERS) and id(one) not in places:
            places[id(one)] = 1
            left.append((one, True))
            left += [(part, False) for part in held if isinstance(part, _CONTAINERS)]
    if places.get(id(value), 1) > _FREE_PLACES + _PLACES_PER_PART * parts:
        raise UsageError(
            f"{what} has {len(places)} lists, tuples and dicts that hold one another again and again, at more than "
            f"{_FREE_PLACES:,} places: expected a tree, or few that are shared"
        )
