"""Hash state so that every process that holds equal state gets the same hash. Pure.

Neither the order in which keys of dicts or elements of sets came, nor the seed that Python hashes text with, nor
whether equal objects are one object or two, nor the number of a tensor's device changes it. Objects of other kinds are
taken apart as `pickle` does it.

    tree (dicts, lists, sets) ──> a word for each part, from the words of what is in it: every recovery waits for this
      └─ an object, or a tree deeper than DEEPEST ──> nodes: what a thing says of itself, and which nodes are below it;
         each thing is taken apart once, however often it is met ──> each node's hash from the hashes of those below it
"""

from __future__ import annotations

import copyreg
import hashlib
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.errors import StateError

SCALARS = frozenset((int, float, str, bytes, bool, type(None), complex))
DEEPEST = 50  # containers in one another; what goes in circles has no end
_MAPPING, _SEQUENCE, _SET, _OBJECT = b"{", b"[", b"<", b"o"
_PROTOCOL = 4  # in which objects are asked for their parts
_REFERENCE = b"#"  # where a node stands among the words of the one above it; no word begins so
Word = bytes | int  # what stands for itself, and says where it ends; or the number of a node


def digest(tree: Any) -> bytes:
    """blake2b of a tree: dicts, sets, lists, tuples, arrays, scalars, and any object that can be pickled.

    TypeError for what cannot be, as a lock; StateError for a function without a name of its own, as a lambda.
    """
    try:
        word, _ = _Tree().word(tree, 0)
    except _TooDeep:
        return _hash_of_graph(tree)
    return _hash(word)


class _TooDeep(Exception):
    """More containers are in one another than DEEPEST, wherever one is met."""


class _Tree:
    """Words of nested containers."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, bytes, int]] = {}  # by `id`, with the thing, which lives with its `id`

    def word(self, thing: Any, depth: int) -> tuple[bytes, int]:
        """What stands for `thing` and says where it ends, and how many containers are in one another there."""
        leaf = _word_of_leaf(thing)
        if leaf is not None:
            return leaf, 0
        if depth == DEEPEST:
            raise _TooDeep
        known = self._known.get(id(thing))
        if known is None:
            known = self._known[id(thing)] = thing, *self._word_of_container(thing, depth + 1)
        _, word, height = known
        if depth + height > DEEPEST:  # as if it were another one that is equal
            raise _TooDeep
        return word, height

    def _word_of_container(self, thing: Any, depth: int) -> tuple[bytes, int]:
        kind = _kind(thing)
        if kind == _OBJECT:
            return kind + _hash_of_graph(thing), 1
        parts = [part for key in thing for part in (key, thing[key])] if kind == _MAPPING else thing
        found = [self.word(part, depth) for part in parts]
        words = [word for word, _ in found]
        if kind == _MAPPING:
            words = [key + value for key, value in zip(words[::2], words[1::2], strict=True)]
        if kind != _SEQUENCE:
            words.sort()
        return kind + _hash(b"".join(words)), 1 + max((height for _, height in found), default=0)


def _hash_of_graph(thing: Any) -> bytes:
    root, nodes = _Walk().nodes_of(thing)
    return _hash(root) if isinstance(root, bytes) else _hash_of(root, nodes)


@dataclass(slots=True)
class _Node:
    """A thing that has others in it, or may have."""

    label: bytes = b""
    below: tuple[int, ...] = ()
    sorts: bool = False
    """Whether those below it have no order."""

    def hash(self, hashes: Sequence[bytes]) -> bytes:
        below = [hashes[number] for number in self.below]
        return _hash(self.label + b"".join(sorted(below) if self.sorts else below))


class _Walk:
    """Takes things apart, one after the other: however deep they lie, nothing here calls itself."""

    def __init__(self) -> None:
        self._nodes: list[_Node] = []
        self._numbers: dict[int, int] = {}  # by `id` of a thing
        self._met: list[Any] = []  # the things: while they live no other one gets their `id`
        self._todo: list[tuple[Any, int]] = []

    def nodes_of(self, thing: Any) -> tuple[Word, list[_Node]]:
        root = self._word(thing)
        while self._todo:
            self._take_apart(*self._todo.pop())
        return root, self._nodes

    def _word(self, thing: Any) -> Word:
        leaf = _word_of_leaf(thing)
        if leaf is not None:
            return leaf
        number = self._numbers.get(id(thing))
        if number is None:
            self._nodes.append(_Node())
            number = self._numbers[id(thing)] = len(self._nodes) - 1
            self._met.append(thing)
            self._todo.append((thing, number))
        return number

    def _take_apart(self, thing: Any, number: int) -> None:
        kind = _kind(thing)
        if kind == _MAPPING:
            words = [self._pair(key, thing[key]) for key in thing]
        else:
            words = self._parts_of(thing) if kind == _OBJECT else [self._word(each) for each in thing]
        self._nodes[number] = _node(kind, words, sorts=kind in (_MAPPING, _SET))

    def _pair(self, key: Any, value: Any) -> Word:
        words = self._word(key), self._word(value)
        if isinstance(words[0], bytes) and isinstance(words[1], bytes):
            return words[0] + words[1]
        self._nodes.append(_node(b":", words))
        return len(self._nodes) - 1

    def _parts_of(self, thing: Any) -> list[Word]:
        """What makes it, and what is put into it then (https://docs.python.org/3/library/pickle.html)."""
        if isinstance(thing, np.ma.MaskedArray):  # to look at it gives it a value to fill with
            parts = (type(thing), np.asarray(thing.data), np.ma.getmaskarray(thing), np.asarray(thing.fill_value))
            return [self._word(part) for part in parts]
        registered = copyreg.dispatch_table.get(type(thing))
        given = registered(thing) if registered is not None else thing.__reduce_ex__(_PROTOCOL)
        if isinstance(given, str):  # the name of something global
            return [f"n{getattr(thing, '__module__', '')}.{given};".encode()]
        make, arguments, state, items, pairs = (*given, None, None, None)[:5]
        if isinstance(thing, Tensor):  # each rank may have another device of the type
            arguments = [thing.device.type if _is_name(each, thing.device) else each for each in arguments]
        return [self._word(part) for part in (make, arguments, state, list(items or ()), list(pairs or ()))]


def _is_name(argument: Any, of: device) -> bool:
    return isinstance(argument, str) and argument == str(of)


def _node(kind: bytes, words: Sequence[Word], *, sorts: bool = False) -> _Node:
    labels = [word if isinstance(word, bytes) else _REFERENCE for word in words]
    label = b"%s%d" % (kind, len(words)) + b"".join(sorted(labels) if sorts else labels)
    return _Node(label, tuple(word for word in words if isinstance(word, int)), sorts)


def _hash_of(root: int, nodes: Sequence[_Node]) -> bytes:
    """From below upwards; what is then left lies on circles, or above them."""
    above: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for each in node.below:
            above[each].append(number)
    waits = [len(node.below) for node in nodes]
    ready = [number for number, count in enumerate(waits) if not count]
    hashes = [node.label for node in nodes]
    while ready:
        number = ready.pop()
        hashes[number] = nodes[number].hash(hashes)
        for each in above[number]:
            waits[each] -= 1
            if not waits[each]:
                ready.append(each)
    left = [number for number, count in enumerate(waits) if count]
    return _hash_in_circles(root, nodes, hashes, left) if waits[root] else hashes[root]


def _hash_in_circles(root: int, nodes: Sequence[_Node], hashes: list[bytes], left: Sequence[int]) -> bytes:
    """All hashes from the former ones, again and again until they tell no more things apart."""
    former, told_apart = hashes, 0
    while (count := len({hashes[number] for number in left})) > told_apart:
        told_apart, former, hashes = count, hashes, list(hashes)
        for number in left:
            hashes[number] = nodes[number].hash(former)
    # a hash says what is so many steps below; which one goes on as which says the rest
    return _hash(hashes[root] + b"".join(sorted({former[number] + hashes[number] for number in left})))


def _kind(thing: Any) -> bytes:
    if isinstance(thing, dict | Mapping):
        return _MAPPING
    if isinstance(thing, list | tuple):
        return _SEQUENCE
    return _SET if isinstance(thing, AbstractSet) else _OBJECT


def _word_of_leaf(thing: Any) -> bytes | None:
    """The word of a thing that has no parts; None of another one."""
    kind = type(thing)
    if kind in SCALARS:
        return _word_of_scalar(thing)
    if kind in (dict, list, tuple):
        return None
    if isinstance(thing, int) and not getattr(thing, "__dict__", None):  # one of its own kind, that is but a number
        return f"{kind.__name__}:{int(thing)};".encode()
    if kind in (np.ndarray, np.memmap) and not thing.dtype.hasobject:
        return _word_of_array(thing)
    if isinstance(thing, type | types.FunctionType):
        return f"n{_name(thing)};".encode()
    return None


def _word_of_scalar(thing: Any) -> bytes:
    if type(thing) is bytes:
        return b"b%d:" % len(thing) + thing
    return f"{type(thing).__name__}:{thing!r};".encode()


def _word_of_array(array: Any) -> bytes:
    head = f"a{array.dtype}{array.shape}".encode()
    if array.dtype.names:  # what lies between its fields has no meaning, and no value
        return head + b"".join(_word_of_array(array[name]) for name in array.dtype.names)
    return head + _hash(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _hash(data: Any) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _name(thing: type | types.FunctionType) -> str:
    if thing.__name__ == "<lambda>":
        raise StateError(
            f"state holds a lambda ({thing.__module__}.{thing.__qualname__}), which has no name that another process "
            "could find it by; define it with `def` at the top of a module"
        )
    return f"{thing.__module__}.{thing.__qualname__}"
