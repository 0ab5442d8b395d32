"""PyTorch's root, given by resilin's. Processes that one with `resilin.as_torch` starts find it by PYTHONPATH."""

from __future__ import annotations

import importlib
from typing import Any

import resilin as _resilin
import resilin.as_torch as _as_torch
from resilin.as_torch.torch_version import TorchVersion as _TorchVersion

_as_torch.install()

_OWN = ("_C", "__config__", "_custom_ops", "_prims_common", "ao", "fx", "version")

__version__ = _TorchVersion(_as_torch.VERSION)


def _sample_dirichlet(alpha: Any, generator: Any = None) -> Any:
    """Draw from the Dirichlet distributions of these concentrations: torchvision calls it by this name."""
    return _resilin.distributions.Dirichlet(alpha).sample()


def _shape_as_tensor(tensor: Any) -> Any:
    """Return the lengths of a tensor's dimensions: torchvision calls it by this name."""
    return _resilin.tensor(tuple(tensor.shape), dtype=_resilin.int64)


def __getattr__(name: str) -> Any:
    if name in _OWN:  # the modules below that are not resilin's
        return importlib.import_module(f"torch.{name}")
    try:
        value = getattr(_resilin, name)
    except AttributeError as error:
        raise AttributeError(str(error).replace("module 'resilin'", "module 'torch'"), name=name) from None
    if not name.startswith("__"):
        globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(_resilin)})
