"""`safetensors.numpy.save` and `save_file` take tensors beside numpy's arrays; what they load are numpy's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor


def adapt(module: ModuleType) -> None:
    """Let the functions that save convert tensors first."""
    for name in ("save", "save_file"):
        setattr(module, name, _taking(getattr(module, name)))


def _taking(save: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(save)
    def call(tensor_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return save({key: _array(value) for key, value in tensor_dict.items()}, *args, **kwargs)

    return call


def _array(value: Any) -> Any:
    return np.ascontiguousarray(value.detach().cpu().numpy()) if isinstance(value, Tensor) else value
