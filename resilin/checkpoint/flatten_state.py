"""State taken apart for saving: a tree as JSON, the tensors in it, and what of each lies here."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from resilin.checkpoint.flat import Flat
from resilin.checkpoint.manifest import Logical
from resilin.checkpoint.sliced import Sliced
from resilin.core import rng, typed_json
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.nn.parameter import is_lazy

TENSOR, ARRAY = "tensor", "array"  # kinds of leaves in the tree, by number
_KEYS = re.compile(r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]]*)\]""")


@dataclass(slots=True)
class Held:
    """An object in the state, and the tree that it gives for saving. `by`: the method that takes such a tree back."""

    thing: Any
    tree: Any
    by: str


def opened(thing: Any, where: str) -> Held | None:
    """What an object gives to be saved; None when it is no object with a state.

    In this order: `sharded_state_dict`, `state_dict`, and the state of a Generator. What these raise goes on as it is,
    with a note that says where: at `where`.
    """
    if isinstance(thing, Tensor | np.ndarray | type):
        return None
    for give, take in (("sharded_state_dict", "load_sharded_state_dict"), ("state_dict", "load_state_dict")):
        if callable(getattr(thing, give, None)) and callable(getattr(thing, take, None)):
            try:
                return Held(thing, getattr(thing, give)(), take)
            except BaseException as error:
                error.add_note(f"{where} is a {type(thing).__name__}, whose {give} raised this")
                raise
    if isinstance(thing, rng.Generator):
        return Held(thing, thing.get_state(), "set_state")
    return None


@dataclass
class Gathered:
    """State of this rank, without its elements: tensors by number, and for each a source of what is here."""

    tensors: list[Logical] = field(default_factory=list)
    sources: list[Flat] = field(default_factory=list)
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    """(start, stop) of what is here, of the tensors that are divided."""
    tree: Any = None
    _known: dict[Any, int] = field(default_factory=dict)  # what shares memory is one tensor
    _names: set[str] = field(default_factory=set)
    _kept: list[Any] = field(default_factory=list)  # while ids are compared

    def start(self, number: int) -> int:
        """The first element of tensor `number` that is here."""
        return self.held.get(number, (0, 0))[0]

    def leaf(self, value: Any, path: str) -> Any:
        """For `typed_json.encode`: numbers for tensors, trees for objects."""
        if isinstance(value, Tensor):
            return typed_json.tagged(TENSOR, self._tensor(value, path))
        if isinstance(value, np.ma.MaskedArray):
            raise UsageError(f"save: {path} is a masked array, whose mask would be lost: save its data and its mask")
        if isinstance(value, np.ndarray):
            typed_json.check_kind(value, path)
            native = value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))
            return typed_json.tagged(ARRAY, self._tensor(wrap(np.asarray(native)), path))
        if isinstance(value, Sliced):
            return typed_json.tagged(TENSOR, self._sliced(value, path))
        held = opened(value, f"save: {path}")
        return None if held is None else typed_json.encode(held.tree, path, self.leaf)

    def _tensor(self, tensor: Tensor, path: str) -> int:
        if is_lazy(tensor):
            raise UsageError(f"save: {path} has no shape yet: call the module once before saving it")
        array = tensor._array
        key = (tensor.device, tensor.data_ptr(), array.dtype, array.shape, array.strides) if array.size else None
        if key is not None and key in self._known:
            return self._known[key]
        number = self._add(Logical(self._name(path), tensor.dtype, tuple(array.shape)), tensor)
        if key is not None:
            self._known[key] = number
        return number

    def _sliced(self, sliced: Sliced, path: str) -> int:
        known = self._known.get(id(sliced))
        if known is not None:
            return known
        number = self._add(Logical(self._name(path), sliced.dtype, sliced.shape), sliced.tensor)
        self.held[number] = (sliced.start, sliced.stop)
        self._known[id(sliced)] = number
        self._kept.append(sliced)  # or another one, made later, would have its id
        return number

    def _add(self, logical: Logical, tensor: Tensor) -> int:
        self.tensors.append(logical)
        self.sources.append(Flat(tensor.detach()))
        self._kept.append(tensor)
        return len(self.tensors) - 1

    def _name(self, path: str) -> str:
        """A name for the tensor at `path`: its keys with "/" between, made unique."""
        name = base = _joined(path) or "tensor"
        count = 1
        while name in self._names or name == "__metadata__":
            count += 1
            name = f"{base}~{count}"
        self._names.add(name)
        return name


@functools.lru_cache(maxsize=1 << 14)  # the next save has the same
def _joined(path: str) -> str:
    """The keys of a path with "/" between."""
    return "/".join(_text(key) for key in _KEYS.findall(path))


def _text(key: str) -> str:
    """A key as it stands in a name: text without its quotes."""
    if key[:1] not in "'\"":
        return key
    return str(ast.literal_eval(key)) if "\\" in key else key[1:-1]


def gather(state: Any) -> Gathered:
    """`state` taken apart. UsageError names the place of an object that cannot be saved."""
    made = Gathered()
    try:
        made.tree = typed_json.encode(state, "the state", made.leaf)
    except RecursionError:
        raise UsageError("save: the state is nested too deeply, or contains itself") from None
    return made
