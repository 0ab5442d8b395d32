"""Nested containers of plain values as JSON that keeps their types, and back. Runs no code of what it reads.

What JSON has not is tagged: `{"$": kind, "v": ...}` for tuples, sets, dicts with keys that are no text, complex
numbers, bytes, infinities, large integers, numpy's scalars, dtypes and devices. Tensors, arrays and other leaves are
the caller's: `encode` asks it for the tagged form of each, and `decode` hands that back.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from resilin._base.text import shown
from resilin.core import dtype as dtypes
from resilin.core import trees
from resilin.core.device import device
from resilin.core.state.size import Size
from resilin.errors import UsageError

_TAG = "$"
_MOST_BITS = 4096  # of an integer in the JSON: Python reads decimals of some thousand digits, no more
_MOST_ALIKE = 64  # keys of one hash: by chance, it is one
Leaf = Callable[[Any, str], Any]


def tagged(kind: str, value: Any) -> dict[str, Any]:
    """The JSON form of a leaf that the caller will know by `kind`; `value` is JSON."""
    return {_TAG: kind, "v": value}


def encode(value: Any, path: str, leaf: Leaf) -> Any:
    """The JSON form of `value`, which messages call `path`.

    leaf: asked for the form of everything that is no list, dict, text, number, bool or None: `tagged(...)`, or None for
          what it does not know. UsageError names the place of an object that nobody knows.
    A subclass of list, tuple, dict or str becomes what it is a subclass of, but for OrderedDict, Counter and Size.
    RecursionError when it is nested too deeply, or contains itself. UsageError for few containers that hold one another
    so often that their JSON would be without end.
    """
    trees.check_shared(value, f"save: {path}")
    return _form(value, path, leaf)


def _form(value: Any, path: str, leaf: Leaf) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) is int:
        return value if value.bit_length() <= _MOST_BITS else tagged("int", hex(value))
    if isinstance(value, float) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else tagged("float", repr(value))
    if isinstance(value, list):
        return [_form(v, f"{path}[{i}]", leaf) for i, v in enumerate(value)]
    if isinstance(value, dict):
        return _dict(value, path, leaf)
    known = leaf(value, path)
    return _tagged(value, path, leaf) if known is None else known


def _dict(value: dict[Any, Any], path: str, leaf: Leaf) -> Any:
    if all(isinstance(k, str) for k in value) and _TAG not in value and type(value) is dict:
        return {k: _form(v, f"{path}[{k!r}]", leaf) for k, v in value.items()}
    pairs = [[_form(k, f"key of {path}", leaf), _form(v, f"{path}[{k!r}]", leaf)] for k, v in value.items()]
    if isinstance(value, OrderedDict) and hasattr(value, "_metadata"):  # a module's state_dict, with versions
        return tagged("state", [pairs, _form(value._metadata, f"{path}._metadata", leaf)])
    kind = "ordered" if isinstance(value, OrderedDict) else "counter" if isinstance(value, Counter) else "dict"
    return tagged(kind, pairs)


def _tagged(value: Any, path: str, leaf: Leaf) -> Any:
    if isinstance(value, tuple):
        kind = "size" if isinstance(value, Size) else "tuple"
        return tagged(kind, [_form(v, f"{path}[{i}]", leaf) for i, v in enumerate(value)])
    if isinstance(value, set | frozenset):
        kind = "set" if isinstance(value, set) else "frozenset"
        return tagged(kind, [_form(v, path, leaf) for v in sorted(value, key=repr)])
    if isinstance(value, bytes | bytearray):
        kind = "bytes" if isinstance(value, bytes) else "bytearray"
        return tagged(kind, base64.b64encode(value).decode("ascii"))
    if isinstance(value, complex):
        return tagged("complex", [repr(value.real), repr(value.imag)])
    if isinstance(value, dtypes.dtype):
        return tagged("dtype", value.name)
    if isinstance(value, device):
        return tagged("device", str(value))
    if isinstance(value, np.generic):
        name = check_kind(value, path)
        return tagged("scalar", [name, base64.b64encode(value.tobytes()).decode("ascii")])
    raise UsageError(
        f"save: {path} is a {type(value).__qualname__}; expected tensors, numbers, text, bytes, lists, tuples, "
        "sets or dicts of these: save its state_dict() instead"
    )


def check_kind(value: Any, path: str) -> str:
    """The name of the dtype of numpy's `value`. UsageError for text, objects, dates and records."""
    try:
        return dtypes.from_numpy(value.dtype).name
    except TypeError as error:
        raise UsageError(f"save: {path} is numpy's {type(value).__name__} of {value.dtype}: {error}") from None


def decode(tree: Any, leaves: Mapping[str, Callable[[Any], Any]]) -> Any:
    """What `encode` was given. leaves: for each kind of leaf, what makes it of the `value` of its `tagged`.

    Raises KeyError, TypeError, IndexError, ValueError or RecursionError for what `encode` cannot have made.
    """
    if isinstance(tree, list):
        return [decode(v, leaves) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if _TAG not in tree:
        return {k: decode(v, leaves) for k, v in tree.items()}
    kind, value = tree[_TAG], tree["v"]
    if kind in leaves:
        return leaves[kind](value)
    return _PLAIN[kind](value) if kind in _PLAIN else _CONTAINERS[kind](value, leaves)


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "int": lambda v: int(v, 16),
    "scalar": lambda v: np.frombuffer(base64.b64decode(v[1]), dtypes.by_name(v[0]).np)[0],
    "size": Size,
    "bytes": base64.b64decode,
    "bytearray": lambda v: bytearray(base64.b64decode(v)),
    "complex": lambda v: complex(float(v[0]), float(v[1])),
    "dtype": dtypes.by_name,
    "device": device,
}
_CONTAINERS: dict[str, Callable[[Any, Mapping[str, Callable[[Any], Any]]], Any]] = {
    "tuple": lambda v, leaves: tuple(decode(x, leaves) for x in v),
    "set": lambda v, leaves: set(_keys([decode(x, leaves) for x in v])),
    "frozenset": lambda v, leaves: frozenset(_keys([decode(x, leaves) for x in v])),
    "dict": lambda v, leaves: dict(_pairs(v, leaves)),
    "ordered": lambda v, leaves: OrderedDict(_pairs(v, leaves)),
    "counter": lambda v, leaves: Counter(_CONTAINERS["dict"](v, leaves)),
    "state": lambda v, leaves: _state(_CONTAINERS["ordered"](v[0], leaves), decode(v[1], leaves)),
}


def _pairs(value: Any, leaves: Mapping[str, Callable[[Any], Any]]) -> Iterable[tuple[Any, Any]]:
    keys = _keys([decode(key, leaves) for key, _ in value])
    return zip(keys, [decode(one, leaves) for _, one in value], strict=True)


def _keys(keys: list[Any]) -> list[Any]:
    """`keys` of a dict, or members of a set. ValueError for many of one hash: each is compared with all others.

    Hashes of text are random; those of numbers, and of what is made of numbers, can be chosen by whoever writes a file.
    """
    if len(keys) > _MOST_ALIKE:
        hashes = sorted(hash(key) for key in keys if type(key) is not str)
        if any(a == b for a, b in zip(hashes, hashes[_MOST_ALIKE:], strict=False)):
            raise ValueError(f"more than {_MOST_ALIKE} keys of one hash")
    return keys


def _state(names: Any, metadata: Any) -> Any:
    """ValueError unless the metadata say of modules, by path, what their `state_dict` says: a version, if anything."""
    if not isinstance(metadata, dict):
        raise ValueError(f"the versions of a module are {shown(metadata)}")
    for about in metadata.values():
        if not isinstance(about, dict) or type(about.get("version", 1)) is not int:
            raise ValueError(f"the version of a module is {shown(about)}")
    names._metadata = metadata
    return names
