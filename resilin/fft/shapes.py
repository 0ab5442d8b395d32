"""Arguments of transforms: which dimensions, how many points, which dtype."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.ops import shape as shape_ops
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor

OPPOSITE = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def scaling(where: str, norm: str | None) -> str:
    """`norm` with its default. RuntimeError for an unknown one."""
    if norm not in OPPOSITE:
        raise RuntimeError(f'{where}: norm must be "backward", "ortho" or "forward", got {norm!r}')
    return norm or "backward"


def complex_input(where: str, input: Tensor) -> Tensor:
    """The input as a complex tensor of the same precision."""
    input = _full_precision(where, input)
    return input if input.is_complex() else shape_ops.astype.call(input, _complex_of(input))


def real_input(where: str, input: Tensor) -> Tensor:
    """The input as a floating point tensor. RuntimeError for a complex one."""
    if input.is_complex():
        raise RuntimeError(f"{where}: expected a real tensor, got {input.dtype}; complex ones go to fft")
    return _full_precision(where, input)


def _complex_of(input: Tensor) -> Any:
    return dtypes.to_numpy(dtypes.complex64 if input._array.dtype.itemsize == 4 else dtypes.complex128)


def _full_precision(where: str, input: Tensor) -> Tensor:
    if not isinstance(input, Tensor):
        raise TypeError(f"{where}: expected a Tensor, got {type(input).__name__}")
    kind = input._array.dtype.kind
    if kind in "biu":
        return shape_ops.astype.call(input, dtypes.default_np())  # type: ignore[no-any-return]
    if input._array.dtype.itemsize == 2:
        raise RuntimeError(f"{where}: transforms need float32 or float64, got {input.dtype}; convert it with .float()")
    return input


def dimensions(where: str, input: Tensor, s: Sequence[int] | None, dim: Any) -> tuple[tuple[int, ...], list[int]]:
    """The dimensions to transform, from the front, and the points of each: PyTorch's rules for `s` and `dim`.

    Without `dim` they are the last ones, as many as `s` has, or all; -1 in `s` keeps a length.
    """
    ndim = input._array.ndim
    dim, s = _several(dim), _several(s)
    if dim is not None:
        axes = tuple(check_dim(d, ndim) for d in dim)
        if ndim == 0 and axes:
            raise IndexError(f"{where}: dimension {dim[0]} was asked for, but the tensor has no dimensions")
        if len(set(axes)) != len(axes):
            raise RuntimeError(f"{where}: a dimension is named twice in {tuple(dim)}")
        if s is not None and len(s) != len(axes):
            raise RuntimeError(f"{where}: s {tuple(s)} and dim {tuple(dim)} must have the same length")
    else:
        count = ndim if s is None else len(s)
        if count > ndim:
            raise RuntimeError(f"{where}: got s with {count} values, but the tensor has only {ndim} dimensions")
        axes = tuple(range(ndim - count, ndim))
    lengths = [input._array.shape[axis] for axis in axes]
    given = [operator.index(n) for n in s or ()]
    sizes = lengths if s is None else [length if n == -1 else n for n, length in zip(given, lengths, strict=True)]
    for n in sizes:
        if n < 1:
            raise RuntimeError(f"{where}: cannot transform {n} data points; at least 1 is needed")
    return axes, sizes


def _several(given: Any) -> Any:
    return given if given is None or isinstance(given, tuple | list) else (operator.index(given),)


def is_last_given(s: Any) -> bool:
    """Whether `s`, a number or several or None, says how many points the last dimension has."""
    return s is not None and (s[-1] if isinstance(s, tuple | list) else s) != -1


def resized(input: Tensor, axes: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """The input cut or filled with zeros at the end of each of `axes`."""
    wanted = dict(zip(axes, sizes, strict=True))
    shape = input._array.shape
    widths = tuple((0, wanted.get(i, n) - n) for i, n in enumerate(shape))
    return input if all(w == (0, 0) for w in widths) else shape_ops.pad_constant.call(input, widths)
