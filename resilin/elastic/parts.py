"""How one registered object takes part in commit, rollback and transfer. No collective, no thread.

Every object is seen as *guarded* tensors (large, changed by `optimizer.step()` alone, never copied at a commit) and
one *small* tree (everything else, copied at every commit):

    nn.Module        guarded: parameters             small: buffers
    optim.Optimizer  guarded: state tensors          small: param_groups, step numbers, the layout of the state
    anything else    guarded: nothing                small: its state_dict(), tensors in it included
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from resilin.core.tensor import Tensor
from resilin.errors import StateError, UsageError

_SCALARS = frozenset((int, float, str, bytes, bool, type(None), complex))


Layout = tuple[tuple[str, tuple[int, ...], str], ...]  # (name, shape, dtype) of guarded tensors, in their order


class Hole(int):
    """Stands in a small tree where the guarded tensor with this number belongs."""


class Part(Protocol):
    """One object of a `State`."""

    name: str

    def capture(self) -> tuple[Any, list[Tensor]]:
        """The small tree, a copy that later changes of the object do not touch, and the guarded tensors, live.

        Their order is equal on all ranks.
        """

    def layout(self) -> Layout:
        """What the guarded tensors look like."""

    def restore(self, small: Any) -> None:
        """Take `small` back. The guarded tensors are the ones of the commit that `small` was captured at."""

    def accept(self, layout: Layout) -> list[Tensor]:
        """Tensors to be filled with another rank's guarded ones, laid out as there. StateError: they do not fit."""

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Become equal to the rank that captured `small`; `tensors`, from `accept`, are filled."""


def part_of(name: str, thing: Any) -> Part:
    """The part for `thing`. UsageError when it has no state_dict and load_state_dict."""
    if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise UsageError(
            f"State: {name!r} is a {type(thing).__name__}, which has no state_dict() and load_state_dict()"
        )
    if hasattr(thing, "named_parameters") and hasattr(thing, "named_buffers"):
        return ModulePart(name, thing)
    if hasattr(thing, "param_groups") and hasattr(thing, "state"):
        return OptimizerPart(name, thing)
    return ObjectPart(name, thing)


class ModulePart:
    """An nn.Module: parameters in place, buffers copied (always: who wrote them through a numpy array is not known)."""

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self._module = module
        self._parameters: dict[str, Tensor] = dict(module.named_parameters())

    def capture(self) -> tuple[Any, list[Tensor]]:
        """Copies of the buffers; the parameters, in the order of registration."""
        buffers = {name: buffer._array.copy() for name, buffer in self._module.named_buffers()}
        return buffers, list(self._parameters.values())

    def layout(self) -> Layout:
        """The parameters'."""
        return tuple((name, *_shape(tensor)) for name, tensor in self._parameters.items())

    def restore(self, small: Any) -> None:
        """Write the buffers back, in place."""
        buffers = dict(self._module.named_buffers())
        for name, array in small.items():
            if name not in buffers or buffers[name]._array.shape != array.shape:
                raise StateError(f"{self.name}: buffer {name!r} has changed its shape or is gone, cannot restore it")
            _write(buffers[name], array)

    def accept(self, layout: Layout) -> list[Tensor]:
        """The own parameters, which must have the names, shapes and dtypes of the source's."""
        mine = self.layout()
        for here, there in zip_longest(mine, layout):
            if here != there:
                raise StateError(
                    f"{self.name}: parameter {(here or there)[0]!r} is {_text(here)} here and {_text(there)} at the "
                    "source; all ranks must build the same model"
                )
        return list(self._parameters.values())

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """The parameters are filled; the buffers follow."""
        for tensor in tensors:
            tensor._bump()
        self.restore(small)


class OptimizerPart:
    """An optimizer: state tensors in place (a newcomer has none yet and makes them), options copied."""

    def __init__(self, name: str, optimizer: Any) -> None:
        self.name = name
        self._optimizer = optimizer

    def capture(self) -> tuple[Any, list[Tensor]]:
        """state_dict() with holes for the tensors, and the tensors."""
        return split(self._optimizer.state_dict())

    def layout(self) -> Layout:
        """The state's."""
        return tuple((str(number), *_shape(tensor)) for number, tensor in enumerate(self.capture()[1]))

    def restore(self, small: Any) -> None:
        """Options only: what else is small changes together with the tensors."""
        for group, saved in zip(self._optimizer.param_groups, small["param_groups"], strict=True):
            group.update({name: copy.copy(value) for name, value in saved.items() if name != "params"})

    def accept(self, layout: Layout) -> list[Tensor]:
        """New tensors in the layout of the source's state."""
        return [Tensor._wrap(np.empty(shape, _dtype(dtype))) for _, shape, dtype in layout]

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Load the filled tensors with everything else."""
        self._optimizer.load_state_dict(join(small, tensors))


class ObjectPart:
    """Anything with state_dict and load_state_dict: a scheduler, a sampler, a loss scaler, an average of weights."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self._thing = thing

    def capture(self) -> tuple[Any, list[Tensor]]:
        """A deep copy of state_dict(); nothing is guarded."""
        tree, tensors = split(self._thing.state_dict())
        return {"tree": tree, "arrays": [tensor._array.copy() for tensor in tensors]}, []

    def layout(self) -> Layout:
        """Empty."""
        return ()

    def restore(self, small: Any) -> None:
        """load_state_dict of a copy, so that the commit stays as it was."""
        tensors = [Tensor._wrap(array.copy()) for array in small["arrays"]]
        self._thing.load_state_dict(join(copy.deepcopy(small["tree"]), tensors))

    def accept(self, layout: Layout) -> list[Tensor]:
        """Nothing to fill."""
        return []

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Same as restore."""
        self.restore(small)


def split(tree: Any) -> tuple[Any, list[Tensor]]:
    """A copy of `tree` (dicts, lists, tuples, leaves) with a `Hole` for every tensor, and the tensors in order."""
    tensors: list[Tensor] = []
    append = tensors.append

    def copied(node: Any) -> Any:
        kind = type(node)
        if kind in _SCALARS:
            return node
        if kind is dict:
            return {key: copied(value) for key, value in node.items()}
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
    if isinstance(tree, dict):
        return {key: join(value, tensors) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(join(value, tensors) for value in tree)
    return tree


def digest(tree: Any) -> bytes:
    """blake2b of a small tree, independent of the order of dict keys and of how equal objects are shared in it."""
    hasher = hashlib.blake2b(digest_size=16)
    _feed(hasher, tree)
    return hasher.digest()


def _feed(hasher: Any, node: Any) -> None:
    if isinstance(node, Mapping):
        hasher.update(b"{%d" % len(node))
        for key in sorted(node, key=repr):
            _feed(hasher, key)
            _feed(hasher, node[key])
    elif isinstance(node, list | tuple):
        hasher.update(b"[%d" % len(node))
        for value in node:
            _feed(hasher, value)
    elif isinstance(node, np.ndarray):
        hasher.update(f"a{node.dtype}{node.shape}".encode())
        hasher.update(np.ascontiguousarray(node).reshape(-1).view(np.uint8))
    elif type(node) in _SCALARS or isinstance(node, Hole):
        hasher.update(f"{type(node).__name__}:{node!r};".encode())
    else:
        hasher.update(pickle.dumps(node))


def _shape(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    return tensor._array.shape, tensor._array.dtype.name


def _text(entry: tuple[str, tuple[int, ...], str] | None) -> str:
    return "absent" if entry is None else f"{entry[0]} {entry[1]} {entry[2]}"


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)  # bfloat16 and its like are known to numpy by name once ml_dtypes is imported, as core does


def _write(tensor: Tensor, array: Any) -> None:
    if not np.array_equal(tensor._array, array):
        tensor._array[...] = array
        tensor._bump()
