"""einops takes tensors: `rearrange(x, "b c h w -> b (c h w)")`, `reduce`, `repeat`, `einsum`, `pack`, `unpack`."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np

from resilin.core.public import names as _names
from resilin.core.tensor import Tensor

names: Any = _names  # which are loaded on first use


def adapt(einops: ModuleType) -> None:
    """Add the backend that einops chooses for tensors: it looks through the classes below its own one."""
    if getattr(sys.modules.get("torch"), "Tensor", None) is Tensor:
        return  # a program for PyTorch (`as_torch`): einops' own backend for that takes them
    backends: Any = importlib.import_module(f"{einops.__name__}._backends")
    backends.ResilinBackend = _backend(backends.AbstractBackend)  # einops holds it weakly


def _backend(base: Any) -> type:
    class ResilinBackend(base):  # type: ignore[misc]
        """The operations that einops is made of, on tensors."""

        framework_name = "resilin"

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Any:
            made = names.from_numpy(x)
            return made.requires_grad_() if made.is_floating_point() else made

        def to_numpy(self, x: Any) -> Any:
            return x.detach().cpu().numpy()

        def arange(self, start: int, stop: int) -> Any:
            return names.arange(start, stop)

        def reduce(self, x: Any, operation: str, reduced_axes: Any) -> Any:
            axes = tuple(reduced_axes)
            if operation == "prod":
                for axis in sorted(axes, reverse=True):
                    x = x.prod(axis)
                return x
            return getattr(x, {"min": "amin", "max": "amax"}.get(operation, operation))(axes)

        def transpose(self, x: Any, axes: Any) -> Any:
            return x.permute(axes)

        def stack_on_zeroth_dimension(self, tensors: Any) -> Any:
            return names.stack(tensors)

        def add_axes(self, x: Any, n_axes: int, pos2len: dict[int, int]) -> Any:
            repeats = [-1] * n_axes
            for position, length in pos2len.items():
                x = x.unsqueeze(position)
                repeats[position] = length
            return x.expand(repeats)

        def tile(self, x: Any, repeats: Any) -> Any:
            return x.repeat(repeats)

        def concat(self, tensors: Any, axis: int) -> Any:
            return names.cat(tensors, axis)

        def add_axis(self, x: Any, new_position: int) -> Any:
            return x.unsqueeze(new_position)

        def is_float_type(self, x: Any) -> bool:
            return bool(x.is_floating_point())

        def einsum(self, pattern: str, *x: Any) -> Any:
            return names.einsum(pattern, *x)

        def shape(self, x: Any) -> Any:
            return tuple(int(n) for n in np.shape(x._array))

    return ResilinBackend
