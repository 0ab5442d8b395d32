"""Joins samples into a batch, as torch.utils.data.default_collate does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.errors import UsageError


def default_convert(data: Any) -> Any:
    """`data` with numpy arrays and scalars turned into tensors, inside containers too; everything else as it is."""
    if isinstance(data, np.ndarray | np.generic):
        return data if data.dtype.kind in "SUOMm" else Tensor._wrap(np.asarray(data))
    if isinstance(data, Mapping):
        return {key: default_convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(default_convert(value) for value in data))
    if isinstance(data, tuple | list):
        return [default_convert(value) for value in data]
    return data


def default_collate(batch: Sequence[Any]) -> Any:
    """Join samples of equal structure: tensors, arrays and numbers are stacked along a new first dimension.

    Tensors and arrays keep their dtype. Python numbers take the dtype that holds them all: ints int64, bools bool;
    floats become float64, or the default dtype where the first sample is an int or a bool, as in PyTorch. Strings and
    bytes stay a list. Mappings are joined by key, tuples and lists by place, named tuples by field.
    Raises: UsageError when shapes or lengths differ, TypeError for a type it does not know (give a `collate_fn`).
    """
    first = batch[0]
    if isinstance(first, Tensor):
        _need_only(Tensor, batch)
        return Tensor._wrap(_stack([sample.detach()._array for sample in batch]))
    if isinstance(first, np.ndarray | np.generic):
        if first.dtype.kind in "SUOMm":
            raise TypeError(f"default_collate: arrays of dtype {first.dtype} cannot become a tensor; give a collate_fn")
        return Tensor._wrap(_stack([np.asarray(sample) for sample in batch]))
    if isinstance(first, int | float):  # bool too
        _need_only(Number, batch)
        return creation.tensor(list(batch), dtype=dtypes.float64 if isinstance(first, float) else None)
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        return _like(first, {key: default_collate([sample[key] for sample in batch]) for key in first})
    if isinstance(first, tuple | list):
        return _collate_sequences(batch)
    raise TypeError(
        "default_collate: samples must contain tensors, numpy arrays, numbers, strings, dicts or lists; "
        f"found {type(first).__name__}; give a collate_fn"
    )


def _need_only(kind: type, batch: Sequence[Any]) -> None:
    for sample in batch:
        if not isinstance(sample, kind):
            raise TypeError(
                f"default_collate: the samples of a batch should all be a {kind.__name__} as the first one is, found "
                f"{type(sample).__name__}; give a collate_fn"
            )


def _collate_sequences(batch: Sequence[Any]) -> Any:
    first = batch[0]
    lengths = {len(sample) for sample in batch}
    if len(lengths) != 1:
        raise UsageError(f"default_collate: samples should have equally many parts, got {sorted(lengths)}")
    columns = [default_collate(column) for column in zip(*batch, strict=True)]
    return type(first)(*columns) if hasattr(first, "_fields") else columns


def _like(mapping: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """`items` in the mapping's own type where that type can be built from a dict, else as a dict."""
    if type(mapping) is dict:
        return items
    try:
        return type(mapping)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def _stack(arrays: list[Any]) -> Any:
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        raise UsageError(
            f"default_collate: samples of a batch must have equal shapes, got {sorted(shapes)}; pad in a collate_fn"
        )
    return np.stack(arrays)
