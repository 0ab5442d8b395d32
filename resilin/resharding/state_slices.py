"""The state of pieces as slices of logical tensors (`dist.reconfigurable`), and back.

A tensor "exp_avg" of parameter 3 is the logical tensor "3.exp_avg". The value "3" of a lot tells the names of its
entries in order, each with what is needed beside a slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import host_copies
from resilin.core.device import CPU, device
from resilin.core.dtype import dtype as DType
from resilin.core.tensor import Tensor, wrap
from resilin.distributed.agreement.options import options_of
from resilin.distributed.api.reconfigurable import Lot, Slice, Version
from resilin.errors import StateError, UsageError
from resilin.optim import Optimizer

SHARED = "param "
"""Begins the names of tensors that all ranks have whole."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The elements [start, stop), in C order, of parameter number `param` of its space."""

    param: int
    start: int
    stop: int

    @property
    def numel(self) -> int:
        """Number of elements."""
        return self.stop - self.start


class HeldSlices(Protocol):
    """What this rank holds of one parameter."""

    @property
    def number(self) -> int:
        """Of the parameter."""

    @property
    def proxy(self) -> Tensor:
        """What the optimizer updates."""

    @property
    def piece(self) -> Piece:
        """Which elements."""

    @property
    def whole(self) -> bool:
        """Whether the parameter is not cut."""

    @property
    def total(self) -> int:
        """Elements of the whole parameter."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a rank says of one entry of a parameter's state. `dtype` is None for a value."""

    dtype: DType | None
    shape: tuple[int, ...] | None = None
    """Of a tensor that one rank has whole; None for a slice."""
    value: Any = None


def counters_of(optimizer: Optimizer) -> frozenset[str]:
    """Names of states that are one number per parameter, whatever its shape."""
    return frozenset({"step", *optimizer._counters})


def told_of(piece: Piece, whole: bool, name: str, value: Any, counters: frozenset[str]) -> Told:
    """What `value`, the entry `name` of the state of a piece, is: a slice, a whole tensor, or a value.

    whole: the parameter is not cut.
    """
    if not isinstance(value, Tensor) or name in counters:
        return Told(None, value=value)
    if whole:
        return Told(value.dtype, shape=tuple(value.shape))
    if value.ndim == 1 and value.numel() == piece.numel:
        return Told(value.dtype)
    return Told(None, value=value)


def common_options(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What all ranks have alike of an optimizer with these groups."""
    return [options_of(group) for group in groups]


def load_options(groups: Sequence[dict[str, Any]], state: Sequence[Mapping[str, Any]]) -> None:
    """Take over what `common_options` of any rank gave. UsageError when it has other groups."""
    if len(state) != len(groups):
        raise UsageError(
            f"divided state: {len(groups)} parameter groups here, {len(state)} at the source; all ranks must have "
            "the same groups, also those that join: add them before elastic.run"
        )
    for group, options in zip(groups, state, strict=True):
        group.update(options)


def number_of(name: str) -> int:
    """The number of the parameter that a logical tensor, or a unit, belongs to."""
    return int(name.removeprefix(SHARED).partition(".")[0])


def check_on_host(tensor: Tensor, advice: str) -> None:
    """UsageError for what is not in the host's memory: slices travel between hosts, and are kept, there."""
    if not isinstance(tensor._array, np.ndarray):
        raise UsageError(f"inside elastic.run: divided state on {tensor._dev} has no second copy on the host; {advice}")


def lot_of(held: Sequence[HeldSlices], optimizer: Optimizer, version: Version) -> Lot:
    """What `optimizer` remembers of the pieces `held`, as slices over its memory; of a device, over copies on the
    host."""
    counters, state = counters_of(optimizer), optimizer.state
    arrays = _arrays_of([value for each in held for value in state.get(each.proxy, {}).values()])
    slices: dict[str, Slice] = {}
    values: dict[str, Any] = {}
    for each in held:
        entries: list[tuple[Any, ...]] = []
        for name, value in state[each.proxy].items() if each.proxy in state else ():
            told = told_of(each.piece, each.whole, name, value, counters)
            if told.dtype is None:
                entries.append((name, *_packed(value)))
                continue
            array = arrays[id(value)].reshape(-1)
            if told.shape is None:
                entries.append((name, "slice", array.dtype.name))
                one = Slice(each.piece.start, each.total, array)
            else:
                entries.append((name, "whole", array.dtype.name, told.shape))
                one = Slice(0, value.numel(), array)
            if one.array.size:
                slices[f"{each.number}.{name}"] = one
        if entries:
            values[str(each.number)] = tuple(entries)
    covers = {str(each.number): range(each.piece.start, each.piece.stop) for each in held}
    return Lot(version, slices, values, covers)


def _arrays_of(values: Sequence[Any]) -> dict[int, Any]:
    """The arrays of those of `values` that are tensors, by id, in the host's memory."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    there = [tensor for tensor in tensors if tensor._dev is not CPU]
    here = {id(tensor): tensor._array for tensor in tensors if tensor._dev is CPU}
    return {**here, **dict(zip(map(id, there), host_copies.copies(there), strict=True))}


def use(lot: Lot, held: Sequence[HeldSlices], optimizer: Optimizer) -> None:
    """Make the slices of `lot` the state of the pieces `held`, and that alone; on the CPU their memory is kept."""
    optimizer.state.clear()
    for each in held:
        entries = lot.values.get(str(each.number), ())
        if entries:
            try:
                optimizer.state[each.proxy] = {name: _unpacked(name, told, each, lot) for name, *told in entries}
            except (TypeError, ValueError, LookupError) as error:
                raise StateError(
                    f"divided state: what other ranks said of the state of parameter {each.number} is nothing that "
                    f"this version of resilin says ({type(error).__name__}: {error!s:.200}); all ranks must run the "
                    "same"
                ) from error


def _packed(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Tensor):
        return ("value", value)
    return ("tensor", value._array.dtype.name, value._array.shape, host_copies.on_host(value).tobytes())


def _unpacked(name: str, told: Sequence[Any], held: HeldSlices, lot: Lot) -> Any:
    device, kind = held.proxy._dev, told[0]
    if kind == "value":
        return told[1]
    if kind == "tensor":
        _, dtype, shape, content = told
        return _on(device, np.frombuffer(content, dtypes.by_name(dtype).np).reshape(shape).copy())
    one = lot.slices.get(f"{held.number}.{name}")
    array = np.empty(0, dtypes.by_name(told[1]).np) if one is None else one.array  # what has no elements is not sent
    return _on(device, array if kind == "slice" else array.reshape(told[2]))


def _on(place: device, array: Any) -> Tensor:
    """A tensor on `place` of an array of the host's; on the CPU it is over the array itself."""
    return wrap(array if place is CPU else place.backend.from_host(array, place.index or 0), place)


def ranges(
    mine: Mapping[int, range], totals: Mapping[str, int], whole: frozenset[int] = frozenset()
) -> dict[str, range]:
    """Of logical tensors, or units, with so many elements: what a rank holds that has `mine` of the parameters.

    whole: parameters that are not cut: all of what belongs to them.
    """
    found = {}
    for name, total in totals.items():
        number = number_of(name)
        if number in mine:
            part = range(total) if number in whole else mine[number]
            if part or not total:
                found[name] = part
    return found
