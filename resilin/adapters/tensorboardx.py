"""tensorboardX takes tensors wherever it takes numbers and arrays."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor


def adapt(tensorboardx: ModuleType) -> None:
    """Let the one function by which tensorboardX makes arrays know tensors, in each module that has it by name."""
    original = importlib.import_module(f"{tensorboardx.__name__}.x2num").make_np
    taking = _taking(original)
    for found in pkgutil.iter_modules(tensorboardx.__path__):
        module = sys.modules.get(f"{tensorboardx.__name__}.{found.name}")
        if module is not None and getattr(module, "make_np", None) is original:
            module.make_np = taking  # type: ignore[attr-defined]


def _taking(make_np: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(make_np)
    def call(x: Any) -> Any:
        return make_np(_array(x))

    return call


def _array(x: Any) -> Any:
    if isinstance(x, list):
        return [_array(part) for part in x]
    if not isinstance(x, Tensor):
        return x
    array = x.detach().cpu().numpy()
    return array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16
