"""How one registered object takes part in commit, rollback and transfer. No collective, no thread.

Every object is seen as *guarded* tensors (large, changed by `optimizer.step()` alone, never copied at a commit) and
one *small* tree (everything else, copied at every commit):

    nn.Module        guarded: parameters             small: buffers, extra state
    optim.Optimizer  guarded: state tensors          small: param_groups, step numbers, the layout of the state
    anything else    guarded: nothing                small: its state_dict(), tensors in it included
"""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from resilin.core.tensor import Tensor
from resilin.errors import StateError, UsageError
from resilin.nn import Module

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

    def drop_gradients(self) -> None:
        """Forget gradients: those of a step that was interrupted must not count in the step that redoes it."""


def part_of(name: str, thing: Any) -> Part:
    """The part for `thing`. UsageError when it has no state_dict and load_state_dict."""
    if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise UsageError(
            f"State: {name!r} is a {type(thing).__name__}, which has no state_dict() and load_state_dict()"
        )
    if isinstance(thing, Module):
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
        """Copies of the buffers and of what `get_extra_state` gives; the parameters, in the order of registration."""
        buffers = {name: buffer._array.copy() for name, buffer in self._module.named_buffers()}
        extra = {name: frozen(module.get_extra_state()) for name, module in self._with_extra_state()}
        return {"buffers": buffers, "extra": extra}, list(self._parameters.values())

    def _with_extra_state(self) -> list[tuple[str, Any]]:
        plain = Module.get_extra_state
        return [(name, each) for name, each in self._module.named_modules() if type(each).get_extra_state is not plain]

    def layout(self) -> Layout:
        """The parameters'."""
        return tuple((name, *_shape(tensor)) for name, tensor in self._parameters.items())

    def restore(self, small: Any) -> None:
        """Write the buffers back, in place, and the extra state."""
        for name, module in self._with_extra_state():
            module.set_extra_state(thawed(small["extra"][name]))
        buffers = dict(self._module.named_buffers())
        for name, array in small["buffers"].items():
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

    def drop_gradients(self) -> None:
        """The parameters'."""
        for param in self._parameters.values():
            param._grad = None


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

    def drop_gradients(self) -> None:
        """Those of all that it updates: modules may not be registered."""
        for group in self._optimizer.param_groups:
            for param in group["params"]:
                param._grad = None


class ObjectPart:
    """Anything with state_dict and load_state_dict: a scheduler, a sampler, a loss scaler, an average of weights."""

    def __init__(self, name: str, thing: Any) -> None:
        self.name = name
        self._thing = thing

    def capture(self) -> tuple[Any, list[Tensor]]:
        """A deep copy of state_dict(); nothing is guarded."""
        return frozen(self._thing.state_dict()), []

    def layout(self) -> Layout:
        """Empty."""
        return ()

    def restore(self, small: Any) -> None:
        """load_state_dict of a copy, so that the commit stays as it was."""
        self._thing.load_state_dict(thawed(small))

    def accept(self, layout: Layout) -> list[Tensor]:
        """Nothing to fill."""
        return []

    def settle(self, small: Any, tensors: list[Tensor]) -> None:
        """Same as restore."""
        self.restore(small)

    def drop_gradients(self) -> None:
        """It has none."""


def frozen(tree: Any) -> Any:
    """A copy of `tree`, tensors included, that later changes do not touch."""
    bare, tensors = split(tree)
    return {"tree": bare, "arrays": [tensor._array.copy() for tensor in tensors]}


def thawed(small: Any) -> Any:
    """A copy of the tree that `frozen` was given."""
    tensors = [Tensor._wrap(array.copy()) for array in small["arrays"]]
    return join(copy.deepcopy(small["tree"]), tensors)


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


def difference(expected: Any, got: Any, common: bool = False, path: str = "") -> str | None:
    """Where and how the tree `got` is not `expected`, in words; None when they are equal.

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
        if here is not there and digest(there._array) != digest(here._array):
            return f"tensor {number}, {_text(('', *_shape(here)))}, differs from {_text(('', *_shape(there)))}"
    return None


def check_loaded(name: str, thing: Any, saved: Any) -> None:
    """StateError when `thing` did not take `saved` over: what both now and then have must be equal.

    Another dtype of tensors is fine, and options that only one of two versions has.
    """
    (then, expected), (now, got) = split(saved), split(thing.state_dict())
    wrong = difference(then, now, common=True)
    for number, (there, here) in enumerate(zip(expected, got, strict=False)):
        if wrong is None and not np.array_equal(there._array.astype(here._array.dtype), here._array, equal_nan=True):
            wrong = f"tensor {number} differs"
    if wrong is not None:
        raise StateError(
            f"{name}: after load_state_dict() {wrong}: this is not the state of the checkpoint; load_state_dict() must "
            "take over everything that state_dict() returns"
        )


def _equal(expected: Any, got: Any) -> bool:
    """Whether numbers and text are the same in another type, as a checkpoint's format may give them back."""
    plain = (int, float, complex, str, bytes, np.generic)
    return isinstance(expected, plain) and isinstance(got, plain) and bool(expected == got)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


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
