"""Define what a strategy that divides state among ranks offers, so that its state lives on when the world changes.

State is seen as *slices* of logical tensors: names, shapes and sizes never tell the world, only who holds which slice
does. Slices of one version that one rank holds are a *lot*:

    rank 0   own [0, 8)  at version 5     kept for rank 2 [16, 24) at version 5
    rank 1   own [8, 16) at version 5     kept for rank 0 [0, 8)   at version 5
    rank 2   own [16, 24) at version 5    kept for rank 1 [8, 16)  at version 5

When a generation starts, `elastic` asks everybody for its lots, moves slices from those that have them to those that
need them in the new world (own ones first, then copies), and hands each rank its lot. It knows no strategy by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from resilin._base import host
from resilin._base.text import shown
from resilin.core import dtype as dtypes
from resilin.core.tensor import Tensor
from resilin.distributed.group.process_group import ProcessGroup
from resilin.errors import DistError

_MOST_ELEMENTS = 1 << 60  # of one tensor
Version = tuple[int, int]
"""Names the content of divided state: (updates that are in it, the generation in which the last one was made)."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements [start, stop), in C order, of a logical tensor of `total` elements."""

    start: int
    total: int
    array: NDArray[Any]
    """Flat and contiguous, on the CPU."""

    @property
    def stop(self) -> int:
        """The first element that is not here any more."""
        return self.start + self.array.size


@dataclass(frozen=True, slots=True)
class Extent:
    """A slice without its elements."""

    start: int
    stop: int
    total: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """What its elements take."""
        itemsize: int = dtypes.by_name(self.dtype).itemsize
        return (self.stop - self.start) * itemsize

    def validate(self) -> None:
        """ValueError unless it lies within its tensor, of a dtype that tensors have."""
        if not 0 <= self.start <= self.stop <= self.total < _MOST_ELEMENTS:
            raise ValueError(f"elements [{shown(self.start)}, {shown(self.stop)}) of a tensor of {shown(self.total)}")
        try:
            dtypes.by_name(self.dtype)
        except TypeError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True, slots=True)
class Outline:
    """A lot without its elements: what ranks tell one another of it."""

    version: Version
    extents: Mapping[str, Extent]
    values: Mapping[str, Any] = field(default_factory=dict)
    covers: Mapping[str, range] = field(default_factory=dict)

    def validate(self) -> None:
        """ValueError for one that no rank has."""
        if min(self.version) < 0 or any(part.step != 1 or part.start < 0 for part in self.covers.values()):
            raise ValueError(f"version {self.version}, covering {shown(dict(self.covers))}")

    def empty(self) -> Lot:
        """A lot that looks like this, to be filled. DistError, before memory is taken, for more than this host has."""
        nbytes, most = sum([extent.nbytes for extent in self.extents.values()]), host.memory_bytes()
        if nbytes > most:
            raise DistError(f"slices of {nbytes} bytes were announced to this rank, whose host has {most} of memory")
        slices = {
            name: Slice(extent.start, extent.total, np.empty(extent.stop - extent.start, np.dtype(extent.dtype)))
            for name, extent in self.extents.items()
        }
        return Lot(self.version, slices, self.values, self.covers)


@dataclass(frozen=True, slots=True)
class Lot:
    """Slices of one version that this rank holds."""

    version: Version
    slices: Mapping[str, Slice]
    values: Mapping[str, Any] = field(default_factory=dict)
    """What else belongs to the tensors, by a name of the strategy's: small, and equal wherever it is held."""
    covers: Mapping[str, range] = field(default_factory=dict)
    """Elements of the strategy's `units` whose state is all here, also where there is none."""

    def outline(self) -> Outline:
        """Describe what it looks like."""
        return Outline(
            self.version,
            {name: Extent(one.start, one.stop, one.total, one.array.dtype.name) for name, one in self.slices.items()},
            self.values,
            self.covers,
        )

    def arrays(self) -> list[NDArray[Any]]:
        """The elements, in the order of `slices`."""
        return [one.array for one in self.slices.values()]


@runtime_checkable
class Reconfigurable(Protocol):
    """An object whose state is divided among the ranks of a group, and can be divided anew among those of another.

    Called by `elastic`, in the main thread, never while the object's own step runs. A step of the object leaves every
    rank able to give two versions, until `keep`: the one before it and, once it has passed its last collective, the one
    after it; and at least two ranks with each slice of both.
    """

    def common_state(self) -> Any:
        """A tree of what every rank has alike (options); a copy that later changes of the object do not touch."""

    def load_common_state(self, state: Any) -> None:
        """Take over what `common_state` of any rank gave."""

    def extra_state(self) -> Any:
        """What a checkpoint must have of it that the object's own state dict has not: a tree; None: nothing."""

    def load_extra_state(self, state: Any) -> None:
        """Take over what `extra_state` gave when the checkpoint was made."""

    def version(self) -> Version:
        """Of the content in use."""

    def lots(self) -> Sequence[Lot]:
        """Everything that this rank can give: its own slices now and before the step that was begun since `keep`, and
        what it keeps for another rank. The arrays may be the live ones: valid until the next step or `take_over`.
        """

    def units(self) -> Mapping[str, int]:
        """Return what all of the state belongs to (parameters), by name, and how many elements they have: lots that
        cover all of these are complete."""

    def wanted(self, totals: Mapping[str, int], rank: int, world_size: int) -> Mapping[str, range]:
        """Of logical tensors, or units, with so many elements: those that `rank` holds in a world of `world_size`.
        Pure: every rank asks for all."""

    def seats(self) -> tuple[int, int, tuple[int, ...]]:
        """Rank and world size that the slices in use were divided in, and the buddy of each of its ranks (or empty)."""

    def shared(self) -> Mapping[str, Tensor]:
        """Tensors that every rank has whole and that the object's step writes (parameters), by names of their own."""

    def begun(self) -> Mapping[int, int]:
        """Return, when a step was begun since `keep`, `id` of each shared tensor and the number of its writes before;
        they may be half-written, and the lots of the version before have slices of them. Else empty."""

    def mended(self) -> None:
        """The shared tensors are back, whole, as they were before the step that was begun."""

    def prepare(self, lot: Lot, group: ProcessGroup) -> None:
        """Take in this rank's slices in the world of `group`, aside, and keep them on a second rank, where there is
        one: collective. Until `take_over` the lots are what they were, and, once this has returned, these, too."""

    def hold(self, lot: Lot) -> None:
        """Keep these slices of the version in use, too, until `take_over`: others that had them leave."""

    def take_over(self) -> Lot:
        """All ranks have prepared: from now on work on that, in that group, and return it; forget what was before."""

    def keep(self) -> None:
        """The content in use counts from now on: forget the version before."""


@runtime_checkable
class Divided(Protocol):
    """An object whose state is divided, as users register it; it has `sharded_state_dict` and `state_dict`, too."""

    @property
    def reconfigurable(self) -> Reconfigurable:
        """Return what lives on in every world."""


def divided(thing: Any) -> Divided | None:
    """Return what divides the state of `thing`: itself, or, for an optimizer of pieces, what these say
    (`divided(optimizer)` of any of them); None where every rank has all of it."""
    if isinstance(thing, Divided):
        return thing
    for group in getattr(thing, "param_groups", ()):
        for param in group["params"]:
            if hasattr(param, "divided"):
                found: Divided = param.divided(thing)
                return found
    return None
