"""Batches in micro-batches: how arguments are split along a dimension or handed to all, and outputs joined again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from resilin.core import trees
from resilin.core.api.manipulation.joining import cat, tensor_split
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError

DEFAULT_CHUNK_DIM = 0


class TensorChunkSpec:
    """Says along which dimension a tensor is split into micro-batches, and joined again."""

    def __init__(self, split_dim: int) -> None:
        self.split_dim = split_dim

    def __repr__(self) -> str:
        return f"{type(self).__module__}.{type(self).__name__}({self.split_dim})"

    def __str__(self) -> str:
        return f"TensorChunkSpec({self.split_dim})"

    @staticmethod
    def from_tuple(chunk_dims: tuple[int, ...]) -> Any:
        """Give the specs of positional arguments, from their dimensions."""
        return _specs(chunk_dims)

    @staticmethod
    def from_dict(chunk_dims: Mapping[str, int]) -> Any:
        """Give the specs of keyword arguments, from their dimensions."""
        return _specs(dict(chunk_dims))


def _specs(dims: Any) -> Any:
    leaves, tree = trees.flatten(dims)
    return trees.unflatten([TensorChunkSpec(dim) for dim in leaves], tree)


class _Replicate:
    """Says that every micro-batch has the value itself."""


class _CustomReducer:
    """Says how the values of all micro-batches become one: `reduce_fn(so_far, value)` from `init_value` on."""

    def __init__(self, init_value: Any, reduce_fn: Callable[[Any, Any], Any]) -> None:
        self.init_value, self.reduce_fn = init_value, reduce_fn


def check_count(where: str, count: Any, what: str = "n_microbatches", least: int = 1) -> None:
    """UsageError for what is no number from `least` on. what: the argument's name."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise UsageTypeError(f"{where}: {what}: expected an int, got {type(count).__name__}")
    if count < least:
        raise UsageError(f"{where}: {what}: expected at least {least}, got {count}")


def split_tensor(tensor: Tensor, spec: TensorChunkSpec, chunks: int, what: str = "tensor") -> list[Tensor]:
    """Split a tensor into `chunks` parts, the first ones larger by one where it cannot be equal.

    UsageError where there are fewer elements than parts.
    """
    if not isinstance(tensor, Tensor):
        raise UsageTypeError(
            f"{what}: expected a tensor to split into micro-batches, got {type(tensor).__name__}; what is split "
            "already goes to _step_microbatches, and more for the loss into loss_kwargs"
        )
    size = _length(tensor, spec.split_dim, what)
    if size < chunks:
        raise UsageError(
            f"{what}: Tensor size {size} is smaller than num_chunks ({chunks}): dimension {spec.split_dim} of shape "
            f"{list(tensor.shape)} cannot be split into {chunks} micro-batches"
        )
    return list(tensor_split(tensor, chunks, spec.split_dim))


def _length(tensor: Tensor, dim: Any, what: str) -> int:
    if not isinstance(dim, int):
        raise UsageTypeError(f"{what}: TensorChunkSpec: split_dim must be an int, got {type(dim).__name__}")
    if not -tensor.ndim <= dim < tensor.ndim:
        raise UsageError(
            f"{what}: a tensor of shape {list(tensor.shape)} has no dimension {dim} to be split into micro-batches "
            "along; name another in its chunk spec, or give it whole to all of them (_Replicate())"
        )
    return int(tensor.shape[dim])


def _default_spec(value: Any) -> Any:
    return TensorChunkSpec(DEFAULT_CHUNK_DIM) if isinstance(value, Tensor) else _Replicate()


def _defaults(given: Any) -> Any:
    leaves, tree = trees.flatten(given)
    return trees.unflatten([_default_spec(leaf) for leaf in leaves], tree)


def _paired(given: Any, spec: Any, what: str) -> tuple[list[Any], list[Any], trees.Tree]:
    """The values and their specs, and the structure around the values. A spec may stand for all that is below it."""
    values, tree = trees.flatten(given)
    try:
        return values, trees.spread(spec, given, f"{what} chunk spec"), tree
    except ValueError as error:
        raise UsageError(str(error)) from None


def _chunk_count(values: list[Any], specs: list[Any], chunks: int, what: str) -> int:
    sizes: list[int] = []
    for value, spec in zip(values, specs, strict=True):
        if spec is _Replicate or isinstance(spec, _Replicate):
            continue
        if not isinstance(value, Tensor):
            raise UsageTypeError(f"{what}: Unsupported chunk spec: {spec} and value: {value!r:.80} combination.")
        if not isinstance(spec, TensorChunkSpec):
            raise UsageTypeError(f"{what}: Expected TensorChunkSpec, got {type(spec).__name__}")
        sizes.append(_length(value, spec.split_dim, what))
    return min([chunks, *sizes])


def _split(given: Any, spec: Any, chunks: int, what: str) -> list[Any]:
    values, specs, tree = _paired(given, spec, what)
    if not values:
        return [trees.unflatten([], tree) for _ in range(chunks)]
    count = _chunk_count(values, specs, chunks, what)
    columns = [
        split_tensor(value, one, count, what) if isinstance(one, TensorChunkSpec) else [value] * count
        for value, one in zip(values, specs, strict=True)
    ]
    return [trees.unflatten(list(row), tree) for row in zip(*columns, strict=True)]


def split_args_kwargs_into_chunks(
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    chunks: int,
    args_chunk_spec: Sequence[Any] | None = None,
    kwargs_chunk_spec: Mapping[str, Any] | None = None,
) -> tuple[list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Split arguments into those of micro-batches: tensors along dimension 0 unless a spec says otherwise, all else as
    it is. As in PyTorch there are fewer than `chunks` where a tensor has fewer elements along that dimension.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        chunks: how many micro-batches.
        args_chunk_spec: a TensorChunkSpec or _Replicate for each positional argument, in their structure.
        kwargs_chunk_spec: the same for keyword arguments.

    Raises: UsageError, UsageTypeError for specs that do not fit.
    """
    kwargs = kwargs or {}
    if not isinstance(args_chunk_spec, Sequence | None) or not isinstance(kwargs_chunk_spec, Mapping | None):
        raise UsageTypeError(
            "expected args_chunk_spec as a tuple with a spec for each positional argument, and kwargs_chunk_spec as a "
            f"dict, got {type(args_chunk_spec).__name__} and {type(kwargs_chunk_spec).__name__}"
        )
    given = _defaults(args) if args_chunk_spec is None else tuple(args_chunk_spec)
    named = _defaults(kwargs) if kwargs_chunk_spec is None else dict(kwargs_chunk_spec)
    if len(given) != len(args):
        raise UsageError(f"args_chunk_spec has {len(given)} specs, there are {len(args)} positional arguments")
    if named.keys() != kwargs.keys():
        raise UsageError(
            f"args_dict.keys() = {list(kwargs)} args_chunk_spec.keys() = {list(named)}: kwargs_chunk_spec must name "
            "each keyword argument"
        )
    parts = _split(args, given, chunks, "args")
    named_parts = _split(kwargs, named, len(parts), "kwargs")
    if len(named_parts) < len(parts):
        parts = _split(args, given, len(named_parts), "args")
    return parts, named_parts


def merge_chunks(chunks: Sequence[Any], chunk_spec: Any) -> Any:
    """Join the values of micro-batches to that of the batch: tensors along dimension 0, or as `chunk_spec` says.

    UsageError for values of another structure than the spec, or that are to be the same and are not.
    """
    first, tree = trees.flatten(chunks[0])
    if chunk_spec is None:
        specs: list[Any] = [TensorChunkSpec(DEFAULT_CHUNK_DIM)] * len(first)
    else:
        specs, tree = trees.flatten(chunk_spec)
    rows = [trees.flatten(chunk)[0] for chunk in chunks]
    for chunk, row in zip(chunks, rows, strict=True):
        if len(row) != len(specs):
            raise UsageError(f"Chunk {chunk!r:.80} did not match chunk spec {chunk_spec}")
    columns = zip(*rows, strict=True)
    return trees.unflatten([_joined(list(column), spec) for column, spec in zip(columns, specs, strict=True)], tree)


def _joined(column: list[Any], spec: Any) -> Any:
    if isinstance(spec, TensorChunkSpec) and isinstance(column[0], Tensor):
        return cat(column, spec.split_dim)
    if isinstance(spec, _CustomReducer):
        total = spec.init_value
        for value in column:
            total = spec.reduce_fn(total, value)
        return total
    for value in column[1:]:
        same = value is column[0] or (not isinstance(value, Tensor) and value == column[0])
        if not same:
            raise UsageError(f"merge_chunks: Expected {column[0]!r:.80}, got {value!r:.80} from another micro-batch")
    return column[0]
