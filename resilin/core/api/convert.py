"""Moving and converting tensors: `to`, `cpu`, `float`, ..., and PyTorch's way of printing them."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.device import CPU, device
from resilin.core.ops.shape import astype
from resilin.core.ops.transfer import move
from resilin.core.tensor import Tensor


def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`to(dtype)`, `to(device)`, `to(device, dtype)` or `to(other)`; itself when nothing changes, unless `copy`."""
    kwargs.pop("non_blocking", None)
    kwargs.pop("memory_format", None)
    copy = kwargs.pop("copy", False)
    dev, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    if kwargs:
        raise TypeError(f"to() got an unexpected argument {next(iter(kwargs))!r}")
    for value in args:
        if isinstance(value, Tensor):
            dev, dtype = value._dev, value.dtype
        elif isinstance(value, dtypes.dtype) or value in (float, int, bool):
            dtype = value
        elif isinstance(value, device | str):
            dev = value
        elif isinstance(value, bool):
            copy = copy or (value and value is args[-1] and len(args) > 3)
        elif value is not None:
            raise TypeError(f"to(): expected a dtype, device or Tensor, got {type(value).__name__}")
    out = self
    if dev is not None and device(dev) is not self._dev:
        out = move(out, device(dev))
    if dtype is not None and dtypes.to_numpy(dtype) != out._array.dtype:
        out = _cast(out, dtypes.to_numpy(dtype))
    return out.clone() if copy and out is self else out


def _cast(self: Tensor, target: Any) -> Tensor:
    if self._array.dtype.kind == "c" and target.kind != "c":
        self = self.real
    with np.errstate(all="ignore"):
        return astype.call(self, target)


def type_as(self: Tensor, other: Tensor) -> Tensor:
    """`to` the other's dtype."""
    return to(self, other.dtype)


def _caster(name: str, target: dtypes.dtype) -> Any:
    def cast(self: Tensor) -> Tensor:
        return self if self._array.dtype == target.np else _cast(self, target.np)

    cast.__name__ = name
    cast.__doc__ = f"`to({target.name})`."
    return cast


CASTS = {
    name: _caster(name, target)
    for name, target in {
        "float": dtypes.float32,
        "double": dtypes.float64,
        "half": dtypes.float16,
        "bfloat16": dtypes.bfloat16,
        "int": dtypes.int32,
        "long": dtypes.int64,
        "short": dtypes.int16,
        "char": dtypes.int8,
        "byte": dtypes.uint8,
        "bool": dtypes.bool_,
        "cfloat": dtypes.complex64,
        "cdouble": dtypes.complex128,
    }.items()
}


def cpu(self: Tensor) -> Tensor:
    """`to("cpu")`."""
    return self if self._dev is CPU else move(self, CPU)


def cuda(self: Tensor, device: Any = None) -> Tensor:
    """`to("cuda")`."""
    return to(self, "cuda" if device is None else f"cuda:{device}" if isinstance(device, int) else device)


def type_(self: Tensor, dtype: Any = None) -> Any:
    """The name of the tensor's type, or the tensor converted to `dtype`."""
    return f"resilin.{self.dtype.name}" if dtype is None else to(self, dtype)


# Printing

_OPTIONS: dict[str, Any] = {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": None}


def set_printoptions(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    sci_mode: bool | None = None,
) -> None:
    """How tensors are printed: digits, size above which the middle is left out, elements kept there, line width."""
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _OPTIONS.update({key: value for key, value in given.items() if value is not None}, sci_mode=sci_mode)


def text(self: Tensor) -> str:
    """E.g. `tensor([1., 2.], grad_fn=<MulBackward>)`."""
    array = self._dev.backend.to_host(self._array)
    suffix = []
    if self._dev is not CPU:
        suffix.append(f"device='{self._dev}'")
    if array.size == 0 and array.shape != (0,):
        suffix.append(f"size={tuple(array.shape)}")
    default = dtypes.default_np()
    usual = array.dtype in (default, dtypes.complex_of(default), np.dtype(np.int64), np.dtype(np.bool_))
    if not usual or (array.size == 0 and array.dtype != dtypes.default_np()):
        suffix.append(f"dtype=resilin.{self.dtype.name}")
    if self._node is not None:
        suffix.append(f"grad_fn=<{self._node.name()}>")
    elif self._rg:
        suffix.append("requires_grad=True")
    return f"tensor({_elements(array)}{''.join(', ' + part for part in suffix)})"


def _elements(array: Any) -> str:
    if array.size == 0:
        return "[]"
    if array.dtype.kind == "V":
        array = array.astype(np.float32)
    options = {key: _OPTIONS[key] for key in ("threshold", "edgeitems")}
    formatter: Any = {"float_kind": _number_format(array), "bool": lambda v: "True" if v else "False"}
    if array.dtype.kind == "c":
        parts = np.stack([array.real, array.imag])
        style, mark = (".0f", ".") if np.array_equal(parts, np.round(parts)) else (f".{_OPTIONS['precision']}f", "")
        formatter = {"complex_kind": lambda v: f"{v.real:{style}}{mark}{v.imag:+{style}}{mark}j"}
    return np.array2string(
        array, separator=", ", prefix="tensor(", formatter=formatter, max_line_width=_OPTIONS["linewidth"], **options
    )


def _number_format(array: Any) -> Any:
    """PyTorch's rule: whole numbers as "1.", large ranges in scientific notation, else fixed digits, one width."""
    precision = _OPTIONS["precision"]
    if array.dtype.kind != "f":
        return str
    finite = np.abs(array[np.isfinite(array) & (array != 0)].astype(np.float64))
    scientific = _OPTIONS["sci_mode"]
    if finite.size == 0:
        low = high = 1.0
        whole = True
    else:
        low, high, whole = float(finite.min()), float(finite.max()), bool(np.all(finite == np.ceil(finite)))
    if scientific is None:
        scientific = high / low > 1000 or high > 1e8 or low < 1e-4 if not whole else high > 1e8
    style = f".{precision}e" if scientific else ".0f" if whole else f".{precision}f"
    mark = "." if whole and not scientific else ""

    def one(v: Any) -> str:
        return f"{v:{style}}{mark if np.isfinite(v) else ''}"

    shown = array if array.size <= _OPTIONS["threshold"] else finite[:1000]
    width = max((len(one(v)) for v in shown.reshape(-1)), default=0)
    return (lambda v: one(v).rjust(width)) if array.ndim else one
