"""Memory formats: the order in which a tensor's dimensions lie in memory. Shapes and values never depend on it."""

from __future__ import annotations

from typing import Any

from resilin._base import place_finder


class memory_format:
    """`contiguous_format`, `preserve_format`, `channels_last` (4 dimensions) or `channels_last_3d` (5 dimensions)."""

    def __init__(self, name: str, ndim: int | None = None) -> None:
        self._name = name
        self.ndim = ndim  # of tensors that can have the format; None: any

    def __repr__(self) -> str:
        return f"{place_finder.shown_root}.{self._name}"

    def __reduce__(self) -> str:
        return self._name


contiguous_format, preserve_format = memory_format("contiguous_format"), memory_format("preserve_format")
channels_last, channels_last_3d = memory_format("channels_last", 4), memory_format("channels_last_3d", 5)


def orders(where: str, ndim: int, wanted: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The permutation that puts channels last, and its inverse; None where dimensions lie in their own order.

    TypeError unless `wanted` is a format (or None), RuntimeError when it is one of another number of dimensions.
    """
    if wanted is None:
        return None
    if not isinstance(wanted, memory_format):
        raise TypeError(f"{where}(): argument 'memory_format' must be resilin.memory_format, not {wanted!r}")
    if wanted.ndim is None:
        return None
    if ndim != wanted.ndim:
        raise RuntimeError(f"{where}(): required rank {wanted.ndim} tensor to use {wanted!r} format, got rank {ndim}")
    return (0, *range(2, ndim), 1), (0, ndim - 1, *range(1, ndim - 1))


def lies_in(array: Any, wanted: Any) -> bool:
    """Whether an array's elements lie without gaps in a memory format (None: in C order)."""
    if isinstance(wanted, memory_format) and wanted.ndim not in (None, array.ndim):
        return False
    order = orders("is_contiguous", array.ndim, wanted)
    return bool((array if order is None else array.transpose(order[0])).flags.c_contiguous)
