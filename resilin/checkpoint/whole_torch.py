"""Unpickles whole objects from PyTorch's files, for `load(..., weights_only=False)`: this runs what the files name.

What a file finds below `torch` is looked up below `resilin`: modules have PyTorch's names and attributes here.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from typing import Any, NoReturn

from resilin._base.pickles.costs import Costs
from resilin._base.pickles.unpickling import Allowed, Lacking
from resilin.checkpoint.torch_names import NAMES, Memory
from resilin.core.device import device
from resilin.core.tensor import Parameter, Tensor
from resilin.core.whole_objects import place_here
from resilin.errors import UsageUnpicklingError


class WholeUnpickler(pickle.Unpickler):
    """Reads a pickle of PyTorch's with all that it names; UsageUnpicklingError for what resilin has nothing of."""

    def __init__(self, file: Any, memory: Callable[[Any], Memory], where: str) -> None:
        super().__init__(file)
        self._memory, self._where = memory, where

    def find_class(self, module_name: str, global_name: str) -> Any:
        """Return what stands for a name: a tensor's maker, resilin's own for `torch`'s, else what Python finds."""
        if (module_name, global_name) in _OWN:
            return _OWN[module_name, global_name]
        known = NAMES.get((module_name, global_name))
        if isinstance(known, Lacking):
            self._refuse(f"{module_name}.{global_name}", f"{known.what}; save {known.instead}")
        if isinstance(known, Allowed) and module_name.partition(".")[0] == "torch":
            return _called(known)
        if known is not None and not isinstance(known, Allowed):
            return known
        if module_name == "torch._C._nn":  # where functions such as gelu are compiled
            module_name = "torch.nn.functional"
        if module_name.partition(".")[0] != "torch":
            return super().find_class(module_name, global_name)
        try:
            found: Any = importlib.import_module(place_here(module_name))
            for part in global_name.split("."):
                found = getattr(found, part)
        except (ModuleNotFoundError, AttributeError) as error:
            self._refuse(f"{module_name}.{global_name}", f"which resilin does not have ({error}); save a state_dict()")
        return found

    def persistent_load(self, pid: Any) -> Any:
        """Return the memory of a storage; of a module's class, which old files keep with its source, the class."""
        return pid[1] if type(pid) is tuple and pid[:1] == ("module",) else self._memory(pid)

    def _refuse(self, name: str, why: str) -> NoReturn:
        raise UsageUnpicklingError(f"load: {self._where} asks for {name}, {why}")


def _called(known: Allowed) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return known.call(_Free(), *arguments) if known.counts else known.call(*arguments)

    return call


class _Free(Costs):
    """Costs of a file that is trusted: none."""

    def __init__(self) -> None:
        super().__init__(frozenset(), lambda what: None)  # type: ignore[arg-type,return-value]

    def spend(self, count: int) -> None:
        """Spend nothing."""


def _rebuilt(make: Callable[..., Any], kind: type, arguments: tuple[Any, ...], state: Any) -> Any:
    """torch._tensor._rebuild_from_type_v2: a tensor with attributes, or of a class of its own."""
    made = make(*arguments)
    if kind not in (Tensor, Parameter) and type(made) is not kind:
        made = made.as_subclass(kind)
    fields, slots = state if isinstance(state, tuple) else (state, None)
    if type(made) is not Tensor:  # a plain one takes no attributes
        for name, value in {**(fields or {}), **(slots or {})}.items():
            setattr(made, name, value)
    return made


_OWN: dict[tuple[str, str], Any] = {
    ("torch", "Tensor"): Tensor,
    ("torch", "device"): device,
    ("torch.nn.parameter", "Parameter"): Parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuilt,
}
