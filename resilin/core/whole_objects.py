"""Objects that `save` pickles whole, as modules are: their tensors are stored as all others are, not in the pickle.

Reading them runs the code of the classes that the file names. `load` does so for those that the program named before
(`serialization.add_safe_globals`), and for all, which it imports, when it is told to.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin.core import safe_globals
from resilin.core.device import device
from resilin.core.dtype import dtype
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import CheckpointError, UnsafePickle, UsageError, UsageUnpicklingError

_PLAIN = (tuple, set, frozenset, bytes, bytearray, complex, dtype, device, np.generic)  # JSON's types aside


def is_whole(value: Any) -> bool:
    """Whether `value`, no number, text, list or dict, is saved whole: the file has no other form for it."""
    return not isinstance(value, _PLAIN)


def place_here(module_name: str) -> str:
    """The name that a module of PyTorch's has here; other names as they are."""
    root, dot, rest = module_name.partition(".")
    return f"resilin{dot}{rest}" if root == "torch" else module_name


class NotLoaded(Exception):
    """Carries what went wrong, and is no damage of the file: `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, keep: Callable[[Tensor], int]) -> None:
        super().__init__(file, protocol=4)
        self._keep = keep

    def persistent_id(self, obj: Any) -> Any:
        """The number of a plain tensor or parameter in the file; None for all else, which is pickled."""
        plain = type(obj) is Tensor or (type(obj) is Parameter and not vars(obj))
        return self._keep(obj) if plain and obj.is_leaf else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The class or function of a name; a program that `as_torch` ran names what is resilin's by `torch`."""
        return super().find_class(place_here(module_name), global_name)

    def persistent_load(self, pid: Any) -> Any:
        """The tensor of a number."""
        return self._tensors[pid]


def pickled(value: Any, path: str, keep: Callable[[Tensor], int]) -> tuple[bytes, str]:
    """The pickle of `value`, and the name of its class. `keep` stores a tensor and gives its number.

    UsageError names the place of an object that cannot be pickled.
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, keep).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"save: {path} is a {type(value).__qualname__}, which cannot be pickled: {error}. Save its state_dict()"
        ) from None
    return buffer.getvalue(), f"{type(value).__module__}.{type(value).__qualname__}"


def unpickled(form: Any, tensors: Sequence[Tensor], name: str, weights_only: bool) -> Any:
    """The object of a file called `name`. NotLoaded carries what unpickling raised, or that only weights are wanted."""
    kind, number = str(form[0]), int(form[1])
    data = tensors[number].numpy().tobytes()
    if weights_only:
        return _by_trust(kind, data, tensors, name)
    try:
        return _Unpickler(io.BytesIO(data), tensors).load()
    except Exception as error:  # of the classes' own code
        raise NotLoaded(error) from error


def _by_trust(kind: str, data: bytes, tensors: Sequence[Tensor], name: str) -> Any:
    """The object, if the program said before that it trusts the classes it is made of."""
    trusted = safe_globals.by_name()
    torch_files = importlib.import_module("resilin.checkpoint.torch_files")  # a package above this one
    try:
        return torch_files.read_pickle(data, tensors.__getitem__, name, trusted)
    except UnsafePickle as error:
        raise NotLoaded(
            UsageUnpicklingError(
                f"load: {name} holds a whole {kind:.200}, which asks for {error.refused:.200}, and that would run code "
                "which the file names. Name it in serialization.add_safe_globals if you trust it, give "
                "weights_only=False if you trust who wrote the file, or save a state_dict()"
            )
        ) from None
    except CheckpointError as error:
        raise NotLoaded(error) from error
