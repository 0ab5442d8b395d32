"""`save` and `load`: nested containers of tensors and plain values in one file. Never pickle.

Format (little-endian), in the manner of safetensors:

    8 bytes   magic b"RESILIN1"
    8 bytes   length H of the header
    H bytes   header, JSON: {"tree": ..., "tensors": [{"dtype", "shape", "start", "stop", "device", "grad"}, ...]}
    rest      the tensors' bytes in C order, each at a multiple of 64 from the start of this part, in order

A file is read only if the offsets cover this part exactly; every way to be wrong is an UsageError that says which.
Tuples, sets of plain values, dicts with non-text keys, complex numbers, bytes and dtypes are tagged in the tree; any
other object is refused when saving.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.device import device
from resilin.core.tensor import Parameter, Tensor, wrap
from resilin.errors import UsageError

_MAGIC = b"RESILIN1"
_ALIGN = 64  # cache line: a mapped file's tensors can be used in place
_MAX_HEADER_BYTES = 1 << 30
_TAG = "$"


class _Writer:
    """Turns an object into a JSON tree and a list of arrays."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.arrays: list[Any] = []
        self._seen: dict[int, int] = {}
        self._end = 0

    def tree(self, value: Any, path: str) -> Any:
        """The JSON form of `value`."""
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
        if isinstance(value, Tensor):
            return {_TAG: "tensor", "v": self._tensor(value)}
        if isinstance(value, list):
            return [self.tree(v, f"{path}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, dict):
            return self._dict(value, path)
        return self._tagged(value, path)

    def _dict(self, value: dict[Any, Any], path: str) -> Any:
        if all(isinstance(k, str) for k in value) and _TAG not in value and type(value) is dict:
            return {k: self.tree(v, f"{path}[{k!r}]") for k, v in value.items()}
        pairs = [[self.tree(k, f"key of {path}"), self.tree(v, f"{path}[{k!r}]")] for k, v in value.items()]
        return {_TAG: "ordered" if isinstance(value, OrderedDict) else "dict", "v": pairs}

    def _tagged(self, value: Any, path: str) -> Any:
        if isinstance(value, tuple):
            return {_TAG: "tuple", "v": [self.tree(v, f"{path}[{i}]") for i, v in enumerate(value)]}
        if isinstance(value, set | frozenset):
            return {_TAG: "set", "v": [self.tree(v, path) for v in sorted(value, key=repr)]}
        if isinstance(value, bytes | bytearray):
            return {_TAG: "bytes", "v": base64.b64encode(value).decode("ascii")}
        if isinstance(value, complex):
            return {_TAG: "complex", "v": [repr(value.real), repr(value.imag)]}
        if isinstance(value, dtypes.dtype):
            return {_TAG: "dtype", "v": value.name}
        if isinstance(value, device):
            return {_TAG: "device", "v": str(value)}
        if isinstance(value, np.ndarray | np.generic):
            return {_TAG: "numpy", "v": self._tensor(wrap(np.asarray(value)))}
        raise UsageError(
            f"save: {path} is a {type(value).__qualname__}; expected tensors, numbers, text, bytes, lists, tuples, "
            "sets or dicts of these: save its state_dict() instead"
        )

    def _tensor(self, tensor: Tensor) -> int:
        known = self._seen.get(id(tensor))
        if known is not None:
            return known
        array = np.ascontiguousarray(tensor._dev.backend.to_host(tensor._array)).reshape(tensor._array.shape)
        start = -(-self._end // _ALIGN) * _ALIGN
        self._end = start + array.nbytes
        kind = "parameter" if isinstance(tensor, Parameter) else "tensor"
        self.entries.append(
            {
                "dtype": tensor.dtype.name,
                "shape": list(array.shape),
                "start": start,
                "stop": self._end,
                "device": str(tensor._dev),
                "grad": tensor._rg and tensor._node is None,
                "kind": kind,
            }
        )
        self.arrays.append(array)
        self._seen[id(tensor)] = len(self.entries) - 1
        return len(self.entries) - 1


def save(obj: Any, f: str | os.PathLike[str] | BinaryIO) -> None:
    """Write `obj` (tensors, numbers, text, bytes, in lists, tuples, sets and dicts) to a path or an open binary file.

    A path is written under another name first and renamed, so that a crash leaves the old file or the new one.
    UsageError names the place of an object that cannot be saved.
    """
    writer = _Writer()
    tree = writer.tree(obj, "the object")
    header = json.dumps({"tree": tree, "tensors": writer.entries}, separators=(",", ":")).encode()
    if not isinstance(f, str | os.PathLike):
        _write(f, header, writer)
        return
    partial = f"{os.fspath(f)}.partial-{os.getpid()}"
    try:
        with open(partial, "wb") as file:
            _write(file, header, writer)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, f)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def _write(file: Any, header: bytes, writer: _Writer) -> None:
    file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
    position = 0
    for entry, array in zip(writer.entries, writer.arrays, strict=True):
        file.write(bytes(entry["start"] - position))
        file.write(array.reshape(-1).view(np.uint8).data if array.size else b"")
        position = entry["stop"]


def load(f: str | os.PathLike[str] | BinaryIO, map_location: Any = None, *, weights_only: bool = True) -> Any:
    """Read what `save` wrote. Loading runs no code of the file, whatever it holds.

    `map_location`: the device (or a function of the saved device's name, or a dict of names) that tensors go to.
    UsageError when the file is not one of `save`'s, or is damaged.
    """
    if isinstance(f, str | os.PathLike):
        with open(f, "rb") as file:
            return _read(file, map_location, os.fspath(f))
    return _read(f, map_location, getattr(f, "name", "the file"))


def _read(file: Any, map_location: Any, name: str) -> Any:
    magic = file.read(8)
    if magic != _MAGIC:
        hint = " (it looks like a PyTorch file)" if magic[:2] in (b"PK", b"\x80\x02") else ""
        raise UsageError(f"load: {name} was not written by resilin.save: it starts with {magic!r}{hint}")
    length = int.from_bytes(file.read(8), "little")
    if length > _MAX_HEADER_BYTES:
        raise UsageError(f"load: {name} announces a header of {length} bytes, the limit is {_MAX_HEADER_BYTES}")
    try:
        header = json.loads(file.read(length))
        entries, tree = header["tensors"], header["tree"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"load: the header of {name} is damaged: {error!r}") from None
    body = bytearray(file.read())
    tensors = _tensors(entries, body, map_location, name)
    try:
        return _restore(tree, tensors)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise UsageError(f"load: the tree of {name} is damaged: {error!r}") from None


def _tensors(entries: Any, body: bytearray, map_location: Any, name: str) -> list[Tensor]:
    made = []
    end = 0
    for number, entry in enumerate(entries):
        try:
            dtype, shape = dtypes.by_name(entry["dtype"]), [int(n) for n in entry["shape"]]
            start, stop = int(entry["start"]), int(entry["stop"])
            where, kind, grad = str(entry["device"]), entry["kind"], bool(entry["grad"])
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"load: the entry of tensor {number} in {name} is damaged: {error!r}") from None
        expected = -(-end // _ALIGN) * _ALIGN
        if start != expected or stop - start != math.prod(shape) * dtype.itemsize or min(shape, default=0) < 0:
            raise UsageError(f"load: tensor {number} of {name} has impossible offsets {start} to {stop}")
        if stop > len(body):
            raise UsageError(f"load: {name} is cut short: tensor {number} ends at {stop} of {len(body)} bytes")
        end = stop
        array = np.frombuffer(body, dtype.np, math.prod(shape), start).reshape(shape) if stop > start else None
        tensor = wrap(np.zeros(shape, dtype.np) if array is None else array.copy())
        tensor = _placed(tensor, where, map_location)
        made.append(Parameter(tensor, grad) if kind == "parameter" else tensor.requires_grad_(grad))
    if end != len(body):
        raise UsageError(f"load: {name} has {len(body) - end} bytes that belong to no tensor")
    return made


def _placed(tensor: Tensor, saved_on: str, map_location: Any) -> Tensor:
    target: Any = map_location
    if callable(map_location) and not isinstance(map_location, device):
        result = map_location(tensor, saved_on)
        return tensor if result is None else result
    if isinstance(map_location, dict):
        target = map_location.get(saved_on)
    target = saved_on if target is None else target
    return tensor if str(target) == "cpu" else tensor.to(target)


_RESTORE: dict[str, Callable[[Any, list[Tensor]], Any]] = {
    "tensor": lambda v, tensors: tensors[v],
    "numpy": lambda v, tensors: tensors[v].numpy(),
    "float": lambda v, tensors: float(v),
    "tuple": lambda v, tensors: tuple(_restore(x, tensors) for x in v),
    "set": lambda v, tensors: {_restore(x, tensors) for x in v},
    "bytes": lambda v, tensors: base64.b64decode(v),
    "complex": lambda v, tensors: complex(float(v[0]), float(v[1])),
    "dtype": lambda v, tensors: dtypes.by_name(v),
    "device": lambda v, tensors: device(v),
    "dict": lambda v, tensors: {_restore(k, tensors): _restore(x, tensors) for k, x in v},
    "ordered": lambda v, tensors: OrderedDict((_restore(k, tensors), _restore(x, tensors)) for k, x in v),
}


def _restore(tree: Any, tensors: list[Tensor]) -> Any:
    if isinstance(tree, list):
        return [_restore(v, tensors) for v in tree]
    if isinstance(tree, dict):
        if _TAG in tree:
            return _RESTORE[tree[_TAG]](tree["v"], tensors)
        return {k: _restore(v, tensors) for k, v in tree.items()}
    return tree


def dumps(obj: Any) -> bytes:
    """`save` into bytes."""
    buffer = io.BytesIO()
    save(obj, buffer)
    return buffer.getvalue()


def loads(data: bytes, map_location: Any = None) -> Any:
    """`load` from bytes."""
    return load(io.BytesIO(data), map_location)


__all__ = ["dumps", "load", "loads", "save"]
