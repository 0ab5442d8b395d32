"""Which versions of divided state this rank can give at any moment of a step. No collective, no thread.

    moment of the step          own slices           the protégé's slices     shared tensors (parameters)
    between steps               s                    s                        s, whole
    begin                       s (a copy)           s                        s: own and protégé's ranges (copies)
    updated                     s (a copy), s+1      s                        the same
    received (by the buddy)     s (a copy), s+1      s, s+1                   the same
    keep (commit)               s+1                  s+1                      s+1, whole

Whoever comes out of a collective after `received` knows that all ranks have got there. So when somebody has committed
s+1, everybody has s+1; and else everybody still has s. The slices of a lost rank are with its buddy, at both versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from resilin.core.device import CPU
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Lot, Outline, Slice, Version

Shared = Mapping[str, Tensor]
"""Tensors that all ranks have whole and that a step writes."""


class VersionBuffer:
    """The versions that one rank holds. The slices in use belong to the strategy, which gives them where they count."""

    def __init__(self) -> None:
        self.version: Version = (0, 0)
        """Of the slices in use."""
        self.begun: dict[int, int] = {}
        """After a step was begun, until `keep`: how often each shared tensor, by its id, had been written before."""
        self._open = False  # a step was begun since `keep`
        self._writing = False  # the slices in use are between two versions
        self._before: list[Lot] = []  # as at the last `keep`: own slices and ranges of the shared tensors
        self._kept: Lot | None = None  # the protégé's, as at the last `keep`
        self._fresh: Lot | None = None  # the protégé's after the step that is under way
        self._whole: tuple[Version, dict[int, int]] | None = (
            None  # shared tensors: what they are while so often written
        )
        self._aside: list[tuple[Lot, Lot | None]] = []  # own and the protégé's in worlds that did not begin yet

    def nbytes(self) -> int:
        """Bytes of all copies that are there now: of versions before and of the protégé's slices."""
        lots = [*self._before, self._kept, self._fresh]
        return sum(array.nbytes for lot in lots if lot is not None for array in lot.arrays())

    # ------------------------------------------------------------------ a step

    def begin(self, own: Lot | None, shared: Shared, ranges: Sequence[Mapping[str, range]]) -> None:
        """A step is about to write the slices in use, `own` (None: somebody has already), and the shared tensors.

        The first one since `keep` copies them: of the shared ones the `ranges`, this rank's and the protégé's.
        """
        if not self._open:
            if self._whole is None or self._whole[1] != _counts(shared):
                ranges = ()  # somebody else has written them since `keep`: they are of no version
            parts = [_parts(self.version, shared, each) for each in ranges]
            self._before = [_copied(lot) for lot in (own, *parts) if lot is not None]
        self.begin_alone(shared)

    def begin_alone(self, shared: Shared) -> None:
        """As `begin`, where nothing is kept: until `updated` the slices in use are of no version."""
        if not self._open:
            self.begun, self._open = _counts(shared), True
        self._writing, self._whole = True, None

    def updated(self, generation: int) -> None:
        """The slices in use are written: the next version."""
        self._writing = False
        self.version = (self.version[0] + 1, generation)

    def room(self, outline: Outline) -> Lot:
        """Where the protégé's slices after the step go; until `received` nobody is told of them."""
        self._fresh = None
        return outline.empty()

    def received(self, lot: Lot) -> None:
        """They are there, whole."""
        self._fresh = lot

    def keep(self, shared: Shared) -> None:
        """The slices in use count from now on; the memory of the version before is free for forward and backward."""
        if self._fresh is not None:
            self._kept = self._fresh
        self._forget()
        self._whole = (self.version, _counts(shared))

    def _forget(self) -> None:
        self._before, self._fresh, self.begun = [], None, {}
        self._open = self._writing = False

    # ------------------------------------------------------------------ a new world

    def lots(self, own: Lot, shared: Shared) -> list[Lot]:
        """Everything that this rank can give; `own` are the slices in use."""
        found = [] if self._writing else [own]
        found += self._before
        found += [lot for lot in (self._kept, self._fresh) if lot is not None]
        found += [lot for pair in self._aside for lot in pair if lot is not None]
        if self._whole is not None and self._whole[1] == _counts(shared):
            whole = {name: range(tensor.numel()) for name, tensor in shared.items()}
            found.append(_parts(self._whole[0], shared, whole))
        return found

    def mended(self, shared: Shared) -> None:
        """The shared tensors are whole again, as before the step that was begun."""
        self._whole = (self._before[0].version, _counts(shared)) if self._before else None

    def set_aside(self, own: Lot, protege: Lot | None) -> None:
        """What this rank holds in the world that begins is complete; what it held before stays until `take_over`."""
        self._aside.append((own, protege))

    def take_over(self) -> Lot:
        """Forget all but what was set aside last; returns the own slices, for the strategy to use."""
        assert self._aside, "take_over() comes after set_aside()"
        own, self._kept = self._aside[-1]
        self._forget()
        self._aside, self._whole = [], None
        self.version = own.version
        return own


def _counts(shared: Shared) -> dict[int, int]:
    return {id(tensor): tensor._writes for tensor in shared.values()}


def _parts(version: Version, shared: Shared, ranges: Mapping[str, range]) -> Lot:
    """Elements of shared tensors, by name, in the host's memory; on the CPU they share it where a tensor is
    contiguous."""
    slices = {}
    for name, part in ranges.items():
        tensor = shared[name]
        flat = tensor._array.reshape(-1)
        own = flat[part.start : part.stop]
        slices[name] = Slice(part.start, flat.size, own if tensor._dev is CPU else tensor._dev.backend.to_host(own))
    return Lot(version, slices)


def _copied(lot: Lot) -> Lot:
    copy = lot.outline().empty()
    for name, one in lot.slices.items():
        np.copyto(copy.slices[name].array, one.array)
    return copy
