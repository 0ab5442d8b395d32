"""Copy, take apart and compare trees of state (dicts, lists, tuples, leaves). Pure."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from resilin.core import host_copies
from resilin.core.host_copies import on_host
from resilin.core.tensor import Tensor
from resilin.distributed.wire import object_codec
from resilin.distributed.wire.object_codec import Hole
from resilin.elastic.worker.digests import SCALARS, digest
from resilin.errors import StateError

_MAPPINGS = frozenset((dict, OrderedDict))
_CONTAINERS = _MAPPINGS | {list, tuple}
_LEAVES = SCALARS | {Hole}
_NUMBERS = "biufc"  # kinds of arrays that need no further look
_FEW_KEYS, _LARGE = 4096, 1 << 60  # so many, and so small ones, are cheap keys whatever they are


def frozen(tree: Any) -> Any:
    """A copy of `tree`, tensors included, that later changes do not touch."""
    bare, tensors = split(tree)
    return {"tree": bare, "arrays": host_copies.copies(tensors)}


def thawed(small: Any) -> Any:
    """A copy of the tree that `frozen` was given; its tensors are on the CPU."""
    tensors = [Tensor._wrap(array.copy()) for array in small["arrays"]]
    return join(copy.deepcopy(small["tree"]), tensors)


def split(tree: Any) -> tuple[Any, list[Tensor]]:
    """A copy of `tree` (dicts, lists, tuples, leaves) with a `Hole` for every tensor, and the tensors in order."""
    tensors: list[Tensor] = []
    append = tensors.append

    def copied(node: Any) -> Any:
        kind = type(node)
        if kind in SCALARS:
            return node
        if kind is dict:
            return {key: copied(value) for key, value in node.items()}
        if isinstance(node, OrderedDict):  # a module's state_dict() is of a kind of its own, until it has been saved
            return OrderedDict((key, copied(value)) for key, value in node.items())
        if kind is Tensor or isinstance(node, Tensor):
            append(node)
            return Hole(len(tensors) - 1)
        if kind is list or kind is tuple:
            return kind(map(copied, node))
        return copy.deepcopy(node)

    return copied(tree), tensors


def join(tree: Any, tensors: list[Tensor]) -> Any:
    """The inverse of `split`: `tree` with `tensors` in its holes."""
    if isinstance(tree, Hole):
        return tensors[tree]
    if type(tree) in (dict, OrderedDict):
        return type(tree)((key, join(value, tensors)) for key, value in tree.items())
    if type(tree) in (list, tuple):
        return type(tree)(join(value, tensors) for value in tree)
    return tree


def not_plain(tree: Any) -> tuple[str, str] | None:
    """Where and what the first thing in `tree` is that `object_codec` does not read with weights_only; None: nothing.

    What is obviously plain is seen here, at every commit; the codec is asked of the few others.
    """
    todo, seen = [tree], set()
    while todo:
        node = todo.pop()
        kind = type(node)
        if kind in _LEAVES or (kind is np.ndarray and node.dtype.kind in _NUMBERS):
            continue
        if kind not in _CONTAINERS:
            asked: Any = node
        elif id(node) in seen:
            continue
        else:
            seen.add(id(node))
            items = node.values() if kind in _MAPPINGS else node
            if not _LEAVES.issuperset(map(type, items)):
                todo += items
            if kind not in _MAPPINGS or _have_plain_keys(node):
                continue
            asked = dict.fromkeys(node)
        why = object_codec.refused(asked)
        if why is not None:
            what = f"a {kind.__module__}.{kind.__qualname__}" if asked is node else "a dict with such keys"
            return _path_to(node, tree), f"{what} ({why})"
    return None


def _have_plain_keys(node: Mapping[Any, Any]) -> bool:
    kinds = set(map(type, node))
    if kinds <= {str}:
        return True
    return kinds <= {int} and len(node) <= _FEW_KEYS and min(node) > -_LARGE and max(node) < _LARGE


def _path_to(wanted: Any, tree: Any) -> str:
    """As "['state'][0]"; empty for the tree itself."""
    todo: list[tuple[Any, str]] = [(tree, "")]
    seen: set[int] = set()
    while todo:
        node, path = todo.pop()
        if node is wanted:
            return path
        if type(node) in _CONTAINERS and id(node) not in seen:
            seen.add(id(node))
            items = node.items() if type(node) in _MAPPINGS else enumerate(node)
            todo += [(value, f"{path}[{key!r:.80}]") for key, value in items]
    return ""


def difference(expected: Any, got: Any, common: bool = False, path: str = "") -> str | None:
    """Say where and how the tree `got` is not `expected`, in words; None when they are equal.

    common: leave out keys that only one of two dicts has.
    """
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        if expected.keys() != got.keys() and not common:
            return f"{path or 'it'} has the keys {_short(list(got))}, expected {_short(list(expected))}"
        below = [(f"{path}[{key!r}]", expected[key], got[key]) for key in expected if key in got]
    elif isinstance(expected, list | tuple) and isinstance(got, list | tuple) and len(expected) == len(got):
        below = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(expected, got, strict=True))]
    elif digest(expected) == digest(got) or _equal(expected, got):
        return None
    else:
        return f"{path or 'it'} is {_short(got)}, expected {_short(expected)}"
    found = (difference(there, here, common, at) for at, there, here in below)
    return next((text for text in found if text is not None), None)


def different_tensor(expected: Sequence[Tensor], got: Sequence[Tensor]) -> str | None:
    """The first tensor of `got` that has not the bits of its counterpart, in words; None when all have."""
    for number, (there, here) in enumerate(zip(expected, got, strict=True)):
        if here is not there and digest(on_host(there)) != digest(on_host(here)):
            return f"tensor {number}, {text_of(('', *shape_of(here)))}, differs from {text_of(('', *shape_of(there)))}"
    return None


def check_loaded(name: str, thing: Any, saved: Any) -> None:
    """StateError when `thing` did not take `saved` over: what both now and then have must be equal.

    Another dtype of tensors is fine, and options that only one of two versions has.
    """
    (then, expected), (now, got) = split(saved), split(thing.state_dict())
    wrong = difference(then, now, common=True)
    for number, (there, here) in enumerate(zip(expected, got, strict=False)):
        if wrong is None and not _same_numbers(on_host(there), on_host(here)):
            wrong = f"tensor {number} differs"
    if wrong is not None:
        raise StateError(
            f"{name}: after load_state_dict() {wrong}: this is not the state of the checkpoint; load_state_dict() must "
            "take over everything that state_dict() returns"
        )


def _same_numbers(there: Any, here: Any) -> bool:
    return np.array_equal(there.astype(here.dtype), here, equal_nan=True)


def _equal(expected: Any, got: Any) -> bool:
    """Whether numbers and text are the same in another type, as a checkpoint's format may give them back."""
    plain = (int, float, complex, str, bytes, np.generic)
    return isinstance(expected, plain) and isinstance(got, plain) and bool(expected == got)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def shape_of(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    """Shape and dtype."""
    return tensor._array.shape, tensor._array.dtype.name


def text_of(entry: tuple[str, tuple[int, ...], str] | None) -> str:
    """A name, shape and dtype in words."""
    return "absent" if entry is None else f"{entry[0]} {entry[1]} {entry[2]}"
