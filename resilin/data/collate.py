"""Joins samples into a batch, as torch.utils.data.default_collate does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import joining
from resilin.core.backends import small_array
from resilin.core.device import CPU
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.data.containers import like_mapping, like_sequence, map_structure
from resilin.errors import UsageError

CollateMap = dict[type | tuple[type, ...], Callable[..., Any]]


def default_convert(data: Any) -> Any:
    """`data` with numpy arrays and scalars turned into tensors, inside containers too; everything else as it is.

    Containers keep their type where it allows that, but tuples become lists, as in PyTorch.
    """
    if isinstance(data, np.ndarray | np.generic):
        return data if data.dtype.kind in "SUOMm" else creation.as_tensor(np.asarray(data))
    if isinstance(data, tuple) and not hasattr(data, "_fields"):
        return [default_convert(value) for value in data]
    return map_structure(default_convert, data)


def default_collate(batch: Sequence[Any]) -> Any:
    """Join samples of equal structure: tensors, arrays and numbers are stacked along a new first dimension.

    Tensors and arrays keep their dtype. Python numbers take the dtype that holds them all: ints int64, bools bool;
    floats become float64, or the default dtype where the first sample is an int or a bool, as in PyTorch. Strings and
    bytes stay a list. Mappings are joined by key, sequences by place, named tuples by field; a tuple becomes a list.
    Other types: register a function in `resilin.data.collate.default_collate_fn_map`.
    Raises: UsageError when shapes or lengths differ, TypeError for a type it does not know (give a `collate_fn`).
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)


def collate(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Join samples by the function that `collate_fn_map` has for the first one's type, or for a base class of it.

    A key is a type or a tuple of types; exact types first, then in order of insertion. A function is called as
    `function(batch, collate_fn_map=collate_fn_map)`. Without one, mappings and sequences are joined part by part.
    Raises: IndexError for an empty batch, UsageError when samples differ in length, TypeError for an unknown type.
    """
    first = batch[0]
    function = _function_for(first, collate_fn_map or {})
    if function is not None:
        return function(batch, collate_fn_map=collate_fn_map)
    if isinstance(first, Mapping):
        return like_mapping(
            first, {key: collate([sample[key] for sample in batch], collate_fn_map=collate_fn_map) for key in first}
        )
    if isinstance(first, Sequence):
        return _collate_sequences(batch, collate_fn_map)
    raise _unknown(type(first).__name__)


def _function_for(sample: Any, functions: CollateMap) -> Callable[..., Any] | None:
    exact = functions.get(type(sample))
    if exact is not None:
        return exact
    return next((function for kind, function in functions.items() if isinstance(sample, kind)), None)


def _unknown(found: str) -> TypeError:
    return TypeError(
        "default_collate: samples must contain tensors, numpy arrays, numbers, strings, dicts or lists; "
        f"found {found}; give a collate_fn"
    )


def _need_only(kind: type, batch: Sequence[Any]) -> None:
    for found in dict.fromkeys(map(type, batch)):  # few: asking abstract classes about each sample takes long
        if not issubclass(found, kind):
            raise TypeError(
                f"default_collate: the samples of a batch should all be a {kind.__name__} as the first one is, found "
                f"{found.__name__}; give a collate_fn"
            )


def _need_numbers(batch: Sequence[Any]) -> None:
    """TypeError for what is no number, and no tensor of one element, which counts as one here."""
    _need_only(Number, [sample for sample in batch if not isinstance(sample, Tensor)])


def _collate_sequences(batch: Sequence[Any], collate_fn_map: CollateMap | None) -> Any:
    first = batch[0]
    _need_only(Sequence, batch)
    lengths = set(map(len, batch))
    if len(lengths) != 1:
        raise UsageError(f"default_collate: samples should have equally many parts, got {sorted(lengths)}")
    columns = [collate(column, collate_fn_map=collate_fn_map) for column in zip(*batch, strict=True)]
    is_plain_tuple = isinstance(first, tuple) and not hasattr(first, "_fields")
    return columns if is_plain_tuple else like_sequence(first, columns)


def collate_tensor_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Tensor:
    """Tensors of one shape, stacked. Gradients flow through where a sample requires them, in process."""
    _need_only(Tensor, batch)
    arrays = [sample._array for sample in batch]
    _need_one_shape(arrays)
    plain = all([sample._dev is CPU and not _may_require_grad(sample) for sample in batch])
    if plain and len({array.dtype for array in arrays}) == 1:
        return Tensor._wrap(small_array.stack(arrays))
    return joining.stack(list(batch))


def _may_require_grad(sample: Tensor) -> bool:
    return sample._rg or (sample._view is not None and sample._view.base._rg)


def collate_numpy_array_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Any:
    """Arrays of one shape, stacked to a tensor; through `collate_fn_map` where their dtypes differ."""
    first = batch[0]
    if first.dtype.kind in "SUOMm":
        raise _unknown(f"an array of dtype {first.dtype}")
    arrays = [np.asarray(sample) for sample in batch]
    _need_one_shape(arrays)
    if len({array.dtype for array in arrays}) == 1:
        return creation.as_tensor(small_array.stack(arrays))
    return collate([creation.as_tensor(array) for array in arrays], collate_fn_map=collate_fn_map)


def collate_numpy_scalar_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Tensor:
    """numpy's scalars, as one tensor of their dtype."""
    return creation.as_tensor(np.stack(batch))


def collate_float_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Tensor:
    """Numbers of which the first is a float: float64."""
    _need_numbers(batch)
    return creation.tensor(list(batch), dtype=dtypes.float64)


def collate_int_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Tensor:
    """Numbers of which the first is an int or a bool."""
    _need_numbers(batch)
    return creation.tensor(list(batch))


def collate_str_fn(batch: Sequence[Any], *, collate_fn_map: CollateMap | None = None) -> Sequence[Any]:
    """Strings or bytes, as they are."""
    return batch


default_collate_fn_map: CollateMap = {
    Tensor: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    (np.bool_, np.number, np.object_): collate_numpy_scalar_fn,
    float: collate_float_fn,
    int: collate_int_fn,  # bool too
    str: collate_str_fn,
    bytes: collate_str_fn,
}
"""What `default_collate` does with a type; add one in place to extend it. A function must return memory of its own."""


def stacks_tensors() -> bool:
    """Whether `default_collate` stacks tensors, as it does unless the table was changed."""
    return default_collate_fn_map.get(Tensor) is collate_tensor_fn


def _need_one_shape(samples: Sequence[Any]) -> None:
    shapes = {sample.shape for sample in samples}
    if len(shapes) != 1:
        raise UsageError(
            f"default_collate: samples of a batch must have equal shapes, got {sorted(shapes)}; pad in a collate_fn"
        )
