"""How tensors are printed, character by character as PyTorch does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.device import CPU
from resilin.core.public import dispatch
from resilin.core.tensor import Tensor

_PROFILES: dict[str, dict[str, Any]] = {
    "default": {"precision": 4, "threshold": 1000, "edgeitems": 3, "linewidth": 80},
    "short": {"precision": 2, "threshold": 1000, "edgeitems": 2, "linewidth": 80},
    "full": {"precision": 4, "threshold": math.inf, "edgeitems": 3, "linewidth": 80},
}
_OPTIONS: dict[str, Any] = {**_PROFILES["default"], "sci_mode": None}


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """How tensors are printed: digits, size above which the middle is left out, elements kept there, line width.

    `profile` ("default", "short" or "full") sets all of these first; `sci_mode` None chooses by the numbers.
    """
    if profile is not None:
        if profile not in _PROFILES:
            raise ValueError(f"set_printoptions: profile must be one of {sorted(_PROFILES)}, got {profile!r}")
        _OPTIONS.update(_PROFILES[profile])
    given = {"precision": precision, "threshold": threshold, "edgeitems": edgeitems, "linewidth": linewidth}
    _OPTIONS.update({key: value for key, value in given.items() if value is not None}, sci_mode=sci_mode)


def text(self: Tensor) -> str:
    """E.g. `tensor([1., 2.], grad_fn=<MulBackward>)`."""
    array = self._array if not self._dev.xp.elements else self._dev.backend.to_host(self._array)
    suffix = []
    if self._dev is not CPU:
        suffix.append(f"device='{self._dev}'")
    if (array.size == 0 and array.ndim != 1) or not self._dev.xp.elements:
        suffix.append(f"size={tuple(array.shape)}")
    default = dtypes.default_np()
    usual = array.dtype in (default, dtypes.complex_of(default), np.dtype(np.int64), np.dtype(np.bool_))
    if (
        array.dtype != default
        if not self._dev.xp.elements
        else not usual or (array.size == 0 and array.dtype != default)
    ):
        suffix.append(f"dtype={self.dtype!r}")
    if self._node is not None:
        suffix.append(f"grad_fn=<{self._node.name()}>")
    elif self._rg:
        suffix.append("requires_grad=True")
    prefix = f"{type(self).__name__}(" if dispatch.overrides(self) else "tensor("
    elements = _elements(array, len(prefix)) if self._dev.xp.elements else "..."
    return _with_suffix(prefix + elements, suffix, len(prefix))


def _with_suffix(body: str, suffix: list[str], indent: int) -> str:
    """The parts of `suffix` behind the numbers, on a new line where the last one would become too long."""
    length = len(body) - body.rfind("\n")
    out = body
    for part in suffix:
        if length + len(part) + 2 > _OPTIONS["linewidth"]:
            out += ",\n" + " " * indent + part
            length = indent + len(part)
        else:
            out += ", " + part
            length += len(part) + 2
    return out + ")"


def _elements(array: Any, indent: int) -> str:
    if array.size == 0:
        return "[]"
    if array.dtype.kind == "V":
        array = array.astype(np.float32)
    summarize = array.size > _OPTIONS["threshold"]
    shown = _corners(array) if summarize else array
    write, width = _complex_writer(shown) if shown.dtype.kind == "c" else _writer(shown)
    return _lines(array, indent, summarize, write, width)


def _corners(array: Any) -> Any:
    """Only what a summary shows."""
    keep = _OPTIONS["edgeitems"]
    for axis, length in enumerate(array.shape):
        if length > 2 * keep:
            array = np.take(array, [*range(keep), *range(length - keep, length)], axis)
    return array


def _writer(array: Any) -> tuple[Callable[[Any], str], int]:
    """How one number is written, and the width of all: whole numbers as "1.", large ranges scientifically."""
    if array.dtype.kind != "f":
        width = max(len(str(v)) for v in array.reshape(-1).tolist())
        return (lambda v: str(v).rjust(width)), width
    style = _style(array)
    counted = array[np.isfinite(array) & (array != 0)]  # zeros, NaN and infinities widen nothing, as in PyTorch
    width = max((len(style(v)) for v in counted), default=1)
    return (lambda v: style(v).rjust(width)), width


def _style(array: Any) -> Callable[[Any], str]:
    precision, scientific = _OPTIONS["precision"], _OPTIONS["sci_mode"]
    sizes = np.abs(array[np.isfinite(array) & (array != 0)].astype(np.float64))
    if sizes.size == 0:
        low = high = 1.0
        whole = True
    else:
        low, high, whole = float(sizes.min()), float(sizes.max()), bool(np.all(sizes == np.ceil(sizes)))
    if scientific is None:
        wide = high / low > 1000 or high > 1e8
        scientific = sizes.size > 0 and (wide if whole else wide or low < 1e-4)
    if scientific and sizes.size:
        return lambda v: f"{v:.{precision}e}"
    if whole:
        return lambda v: f"{v:.0f}." if np.isfinite(v) else f"{v:.0f}"
    return lambda v: f"{v:.{precision}f}"


def _complex_writer(array: Any) -> tuple[Callable[[Any], str], int]:
    (real, left), (imaginary, right) = _writer(array.real), _writer(array.imag)

    def write(v: Any) -> str:
        part = imaginary(v.imag).lstrip()
        return f"{real(v.real)}{part}j" if part[0] in "+-" else f"{real(v.real)}+{part}j"

    return write, left + right + 1


def _lines(array: Any, indent: int, summarize: bool, write: Callable[[Any], str], width: int) -> str:
    """Nested brackets, `indent` columns in; a summary keeps the ends of long dimensions."""
    if array.ndim == 0:
        return write(array[()])
    keep = _OPTIONS["edgeitems"]
    cut = summarize and array.shape[0] > 2 * keep
    rows = [*range(keep), *range(array.shape[0] - keep, array.shape[0])] if cut else range(array.shape[0])
    if array.ndim > 1:
        parts = [_lines(array[i], indent + 1, summarize, write, width) for i in rows]
        if cut:
            parts.insert(keep, "...")
        return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"
    cells = [write(array[i]) for i in rows]
    if cut:
        cells.insert(keep, " ...")
    per_line = max(1, (_OPTIONS["linewidth"] - indent) // (width + 2))
    lines = [", ".join(cells[i : i + per_line]) for i in range(0, len(cells), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"
