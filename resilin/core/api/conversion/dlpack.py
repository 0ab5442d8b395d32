"""Arrays to and from other libraries without a copy: DLPack, buffers, the array API standard.

`__all__` are the functions of `resilin`.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.device import CPU
from resilin.core.ops import creation
from resilin.core.tensor import Tensor, wrap

__all__ = ["from_dlpack", "frombuffer", "to_dlpack"]
_STANDARDS = ("2021.12", "2022.12", "2023.12", "2024.12")  # each contains those before it
_KDLCPU, _KDLCUDA = 1, 2  # DLPack's numbers of the host's memory and of a CUDA device's


def dlpack(
    self: Tensor,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule over the tensor's memory (a copy with `copy`), of version 1 when `max_version` allows it.

    BufferError for a tensor that requires a gradient, is not on the CPU, or has a dtype that DLPack's CPU form lacks.
    """
    if self.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if self._dev.type == "cuda":
        exported: Any = self._array
        return exported.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)
    if self._dev is not CPU:
        raise BufferError(f"__dlpack__: only CPU tensors can be exported, this one is on {self._dev}; use .cpu()")
    if self._array.dtype.kind == "V":
        raise BufferError(f"__dlpack__: {self.dtype} cannot be exported; convert it, e.g. to float32")
    array: Any = self._array
    return array.__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)


def dlpack_device(self: Tensor) -> tuple[int, int]:
    """DLPack's (type, number) of the tensor's device."""
    if self._dev.type == "cuda":
        return _KDLCUDA, self._dev.index or 0
    if self._dev is not CPU:
        raise BufferError(f"__dlpack_device__: only CPU tensors can be exported, this one is on {self._dev}")
    return _KDLCPU, 0


def array_namespace(self: Tensor, *, api_version: str | None = None) -> Any:
    """The Python array API standard's functions for tensors: `resilin.array_api`. ValueError for another version."""
    if api_version not in (None, *_STANDARDS):
        raise ValueError(f"__array_namespace__: resilin.array_api is of {_STANDARDS[-1]}, not {api_version!r}")
    return importlib.import_module("resilin.array_api")


def to_device(self: Tensor, device: Any, /, *, stream: Any = None) -> Tensor:
    """`to(device)`, as the array API standard calls it. ValueError for a stream: no device here has any."""
    if stream is not None:
        raise ValueError(f"to_device: stream must be None, got {stream!r}: no device has streams")
    moved: Tensor = self.to(device)
    return moved


class _Capsule:
    """A bare capsule as the object that holds it. Once."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_wishes: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _KDLCPU, 0


def from_dlpack(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of an object with `__dlpack__` (or of a capsule); a copy when `copy` says so.

    BufferError for a tensor that requires a gradient.
    """
    holder = ext_tensor if hasattr(ext_tensor, "__dlpack__") else _Capsule(ext_tensor)
    kind = type(ext_tensor).__name__
    if isinstance(holder, _Capsule) and kind != "PyCapsule":
        raise TypeError(f"from_dlpack(): expected an object with __dlpack__ or a capsule, got {kind}")
    made = wrap(np.from_dlpack(holder, copy=copy))
    return made if device is None else made.to(device)


def to_dlpack(tensor: Tensor) -> Any:
    """A DLPack capsule over the tensor's memory, for libraries that take no tensor-like objects."""
    return dlpack(tensor)


def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False) -> Tensor:
    """A vector over the memory of a bytes-like object: `count` elements (all when -1) from byte `offset`."""
    kind = dtypes.to_numpy(dtype)
    view = memoryview(buffer)
    if view.nbytes == 0 or count == 0:
        raise ValueError("frombuffer(): both buffer length and count must not be 0")
    if not 0 <= offset < view.nbytes:
        raise ValueError(f"frombuffer(): offset {offset} must be inside the buffer of {view.nbytes} bytes")
    left = view.nbytes - offset
    if count < 0 and left % kind.itemsize:
        raise ValueError(f"frombuffer(): {left} bytes after the offset are no multiple of {kind.itemsize}")
    if count * kind.itemsize > left:
        raise ValueError(f"frombuffer(): {count} elements of {kind.itemsize} bytes do not fit in {left} bytes")
    made = creation.from_numpy(np.frombuffer(buffer, kind, count, offset))
    return made.requires_grad_(requires_grad)
