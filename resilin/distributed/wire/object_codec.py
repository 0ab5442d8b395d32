"""Make bytes of objects: pickle, and for `weights_only` a machine that makes only plain values, arrays and tensors."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from resilin._base.pickles.costs import Costs
from resilin._base.pickles.plain_names import CONTAINERS, VALUE_KEYS, VALUES, listed
from resilin._base.pickles.unpickling import Allowed, Unpickler
from resilin._base.text import shown
from resilin.core import dtype as dtypes
from resilin.core.device import device
from resilin.core.public import methods
from resilin.core.state.size import Size
from resilin.core.tensor import Parameter, Tensor
from resilin.distributed.wire.array_codec import ARRAY_KEYS, ARRAY_STATES, ARRAYS
from resilin.errors import CorruptFile, DistError, UnsafePickle

_WHERE = "weights_only=True: the object that arrived"
INSTEAD = "receive others with weights_only=False, if you trust the sender to run anything here"


class Hole(int):
    """Stands in a tree where the tensor with this number belongs, which travels apart."""


def _size(lengths: Any) -> Size:
    if not all(type(length) is int for length in listed(lengths)):
        raise TypeError(f"a Size is made of {shown(lengths)}")
    return Size(lengths)


def _device(name: Any) -> device:
    if type(name) is not str:
        raise TypeError(f"a device is called {shown(name)}")
    return device(name)


def _dtype(name: Any) -> Any:
    if type(name) is not str:
        raise TypeError(f"a dtype is called {shown(name)}")
    return dtypes.by_name(name)


def _tensor(costs: Costs, kind: Any, array: Any, where: Any, grad: Any) -> Any:
    """As `methods._reduce_ex` takes it apart."""
    if (kind is not _TENSOR and kind is not _PARAMETER) or type(array) is not np.ndarray:
        raise TypeError(f"a tensor is made of {shown(kind)}, {shown(array)}")
    if type(where) is not str or type(grad) is not bool:
        raise TypeError(f"a tensor is on {shown(where)}, its requires_grad is {shown(grad)}")
    if not array.dtype.isnative:
        costs.spend(array.nbytes)
        array = array.astype(array.dtype.newbyteorder("="))
    if where != "cpu":
        costs.spend(array.nbytes)
    return methods._rebuild(Tensor if kind is _TENSOR else Parameter, array, where, grad)


def _set_attributes(costs: Costs, target: Any, state: Any) -> Any:
    """What a program has set at a parameter; nothing that parameters have of themselves."""
    if type(state) is not dict or not hasattr(target, "__dict__"):
        return None
    if any(type(name) is not str or hasattr(type(target), name) or name.startswith("__") for name in state):
        return None
    target.__dict__.update(state)
    return target


def _hole(number: Any) -> Hole:
    if type(number) is not int:
        raise TypeError(f"the number of a tensor is {shown(number)}")
    return Hole(number)


def _no_call(*arguments: Any) -> Any:
    raise TypeError("a class of tensors is called, which pickles only name")


_TENSOR = Allowed("resilin.core.tensor.Tensor", _no_call)
_PARAMETER = Allowed("resilin.core.tensor.Parameter", _no_call)
# What a `weights_only` stream may name. None of them runs code that the stream chooses.
_NAMES: Mapping[tuple[str, str], Any] = {
    **CONTAINERS,
    **VALUES,
    **ARRAYS,
    **dict.fromkeys([("resilin", "Size"), ("torch", "Size")], Allowed("resilin.Size", _size)),
    **dict.fromkeys([("resilin.core.device", "device"), ("torch", "device")], Allowed("resilin.device", _device)),
    ("resilin.core.dtype", "by_name"): Allowed("resilin.core.dtype.by_name", _dtype),
    ("resilin.core.public.methods", "_rebuild"): Allowed("resilin.core.public.methods._rebuild", _tensor, counts=True),
    ("resilin.distributed.wire.object_codec", "Hole"): Allowed("resilin.distributed.wire.object_codec.Hole", _hole),
    **dict.fromkeys([("resilin.core.tensor", "Tensor"), ("torch", "Tensor")], _TENSOR),  # the latter: as_torch's
    **dict.fromkeys([("resilin.core.tensor", "Parameter"), ("torch.nn.parameter", "Parameter")], _PARAMETER),
}
_STATES: Mapping[type, Callable[[Costs, Any, Any], Any]] = {
    **ARRAY_STATES,
    Tensor: _set_attributes,
    Parameter: _set_attributes,
}
_KEYS = VALUE_KEYS | ARRAY_KEYS | {dtypes.dtype, device}


def dump(thing: Any) -> bytes:
    """The bytes of `thing`. Raises what its parts raise when they cannot be pickled."""
    return pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)


def load(data: bytes, weights_only: bool = False, instead: str = INSTEAD) -> Any:
    """The object that `dump` wrote. DistError with `weights_only` when it is of another kind than named above.

    instead: what to do then, for the error.
    """
    return _plain(data, instead) if weights_only else pickle.loads(data)


def refused(thing: Any) -> str | None:
    """What of `thing` a receiver refuses with `weights_only`, in words; None where it takes all of it."""
    try:
        _machine(dump(thing)).load()
    except UnsafePickle as error:
        return f"it holds {error.refused}"
    except Exception as error:  # noqa: BLE001 - whatever a __reduce__ raises
        return f"it cannot be sent: {type(error).__name__}: {error!s:.200}"
    return None


def _machine(data: bytes) -> Unpickler:
    size = len(data)
    return Unpickler(data, _NAMES, None, _WHERE, size, steps=size, states=_STATES, keys=_KEYS)


def _plain(data: bytes, instead: str) -> Any:
    try:
        return _machine(data).load()
    except UnsafePickle as error:
        raise DistError(
            f"{_WHERE} holds {error.refused}: expected plain values, containers, numpy arrays and tensors; {instead}"
        ) from None
    except CorruptFile as error:
        raise DistError(
            f"{error}; nothing of it was run. Send it again, by a rank of this version of resilin"
        ) from None
