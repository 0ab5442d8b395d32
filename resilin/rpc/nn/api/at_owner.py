"""Make, run and ask a module at the worker where it lies: what a RemoteModule calls there."""

from __future__ import annotations

from typing import Any

from resilin.core import trees
from resilin.core.device import device
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.rpc.references import direct
from resilin.rpc.references.rref import RRef


def make(module_cls: Any, args: Any, kwargs: Any, on: str) -> Module:
    """Return the module, on its device."""
    module = module_cls(*args, **kwargs)
    if not isinstance(module, Module):
        raise UsageError(
            "Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, "
            f"but it returns an instance of {type(module)}."
        )
    return module.to(on)


def parameters(module_rref: RRef[Module], recurse: bool) -> list[RRef[Any]]:
    """Return references to the parameters of a module."""
    return [RRef(parameter) for parameter in module_rref.local_value().parameters(recurse)]


def train(module_rref: RRef[Module], mode: bool) -> None:
    """Bring a module into the mode of training, or out of it."""
    module_rref.local_value().train(mode)


def forward(module_rref: RRef[Module], *args: Any, **kwargs: Any) -> Any:
    """Run a module of the host."""
    return module_rref.local_value().forward(*args, **kwargs)


def forward_at(place: bytes, *args: Any, **kwargs: Any) -> Any:
    """Run a module of the host, which is named without a reference of its own to it."""
    return direct.value_at(place).forward(*args, **kwargs)


def forward_on(module_rref: RRef[Module], on: str, keep: bool, args: Any, kwargs: Any) -> Any:
    """Run a module of a device: tensors are brought there, and results back to the host unless they are to `keep`."""
    where = device(on)
    args, kwargs = trees.transform(lambda leaf: leaf.to(where) if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    result = module_rref.local_value().forward(*args, **kwargs)
    return result if keep else trees.transform(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, result)
