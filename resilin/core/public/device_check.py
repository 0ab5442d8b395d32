"""Whether tensors of several devices may be given to a function together.

`dispatch` asks here when the tensors among a public function's arguments are not all of one device, so calls that
are right pay nothing. A single number on the CPU may be beside tensors of any device, as in PyTorch.
"""

from __future__ import annotations

from typing import Any

from resilin.core.device import CPU, device, different_devices

# Functions that copy from one device to another, or look at no element
_COPY = ("__deepcopy__", "__set__", "backward", "copy_", "new_tensor", "set_", "to", "type_as")
_LOOK = ("broadcast_tensors", "expand_as", "is_same_size", "is_set_to", "reshape_as", "resize_as_", "view_as")
_ANY = frozenset((*_COPY, *_LOOK, "result_type"))
# Functions whose first tensor says where the others are, or they are on the CPU: indices and lengths
_BESIDE_CPU = frozenset(("__getitem__", "__setitem__", "index_put", "index_put_", "ctc_loss", "tensor_split"))


def meet(function: Any, given: tuple[Any, ...]) -> None:
    """RuntimeError names two devices when `function` cannot be called with the tensors among the values `given`."""
    name = function.__name__
    if name in _ANY:
        return
    beside = name in _BESIDE_CPU
    home: device | None = None
    for tensor in _tensors(given):
        where = tensor._dev
        if where is CPU and (home is not None if beside else not tensor._array.ndim):
            continue
        if home is not None and where is not home:
            raise different_devices(name.strip("_"), home, where)
        home = where


def _tensors(given: tuple[Any, ...]) -> list[Any]:
    flat = [each for value in given for each in (value if isinstance(value, list | tuple) else (value,))]
    return [each for each in flat if isinstance(getattr(each, "_dev", None), device)]
