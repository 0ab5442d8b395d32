"""How divided state lives on when the world changes (`dist.Reconfigurable`), and its two versions of every step.

step    copy own range ─► update it ─► give it to the buddy ─► a collective       commit: drop the copies
world   everybody's slices ─► those of the new partition, aside ─► their buddies ─► in use

What is divided is a `Content`: the state of an optimizer (stage 1), the pieces of a module and what an optimizer of
them remembers (stages 2 and 3). None of them knows of worlds or buddies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import resilin.distributed as dist
from resilin._base import fault_points
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Lot, Outline, Version
from resilin.errors import UsageError
from resilin.resharding.buddies import Pairing
from resilin.resharding.version_buffer import VersionBuffer


class Content(Protocol):
    """State that is divided, as its owner sees it."""

    def common_state(self) -> Any:
        """See `dist.Reconfigurable`."""

    def load_common_state(self, state: Any) -> None:
        """See `dist.Reconfigurable`."""

    def extra_state(self) -> Any:
        """See `dist.Reconfigurable`."""

    def load_extra_state(self, state: Any) -> None:
        """See `dist.Reconfigurable`."""

    def own(self, version: Version) -> Lot:
        """The slices in use, over their memory."""

    def shared(self) -> Mapping[str, Tensor]:
        """See `dist.Reconfigurable`."""

    def written_by(self, rank: int) -> Mapping[str, range]:
        """Which elements of the shared tensors are updated by `rank` of the present group."""

    def writes(self) -> Sequence[int]:
        """How often each thing that users may write was written: who has the second copy must hear of all of them."""

    def units(self) -> Mapping[str, int]:
        """See `dist.Reconfigurable`."""

    def wanted(self, totals: Mapping[str, int], rank: int, world_size: int) -> Mapping[str, range]:
        """See `dist.Reconfigurable`."""

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """Go on with these slices, which are this rank's in the world of `group`; their memory may be kept."""


class Survivor:
    """What `elastic` asks of `content`, and what a step of it must say: `before_update`, `after_update`.

    buddies: whether every range has a second copy on another rank; without, nothing is kept twice, a world may grow and
    ranks may come, but what a rank that is lost had is lost.
    """

    def __init__(self, content: Content, buddies: bool = True) -> None:
        self._content, self._buddies = content, buddies
        self._version_buffer = VersionBuffer()
        self._pairing: Pairing | None = None  # only within elastic.run
        self._next: Pairing | None = None  # of the world that begins
        self._writes: Sequence[int] = ()  # those that the buddy has heard of

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The world that it lives in; None outside of elastic.run."""
        return None if self._pairing is None else self._pairing.group

    @property
    def keeps_twice(self) -> bool:
        """Whether there is a buddy."""
        return self._pairing is not None and bool(self._pairing.buddies)

    # ------------------------------------------------------------------ a step

    def before_update(self, overwritten: bool = False) -> None:
        """The own range, and shared tensors, are about to be written.

        overwritten: they may have been already, by whoever loads a state: only others have the version before.
        """
        pairing = self._pairing
        if pairing is None or pairing.group.size() == 1:
            return
        if not overwritten:
            self._refuse_other_writes()
        if pairing.buddies:
            ranges = [self._content.written_by(rank) for rank in (pairing.group.rank(), pairing.protege)]
            self._version_buffer.begin(None if overwritten else self._own(), self.shared(), ranges)
        else:
            self._version_buffer.begin_alone(self.shared())

    def after_update(self) -> None:
        """The own range has been written, shared tensors by other ranks not yet: the buddy gets it. Collective.

        Another collective must follow before the commit: who comes out of it knows that all ranks have done this.
        """
        pairing, keeper = self._pairing, self._version_buffer
        if pairing is not None:
            keeper.updated(pairing.group.generation)
            if pairing.buddies:
                self._writes = self._content.writes()
                keeper.received(pairing.exchange(self._own(), keeper.room))

    def stats(self) -> dict[str, int | None]:
        """The buddy (None in a world of one), and the bytes of what is kept twice or for another rank.

        Nothing outside of elastic.run, and where buddies are not wanted.
        """
        pairing = self._pairing
        if pairing is None or not self._buddies:
            return {}
        buddy = pairing.buddies[pairing.group.rank()] if pairing.buddies else None
        return {"buddy": buddy, "kept_bytes": self._version_buffer.nbytes()}

    # ------------------------------------------------------------------ what it has

    def common_state(self) -> Any:
        """See `dist.Reconfigurable`."""
        return self._content.common_state()

    def load_common_state(self, state: Any) -> None:
        """See `dist.Reconfigurable`."""
        self._content.load_common_state(state)

    def extra_state(self) -> Any:
        """See `dist.Reconfigurable`."""
        return self._content.extra_state()

    def load_extra_state(self, state: Any) -> None:
        """See `dist.Reconfigurable`."""
        self._content.load_extra_state(state)

    def version(self) -> Version:
        """See `dist.Reconfigurable`."""
        return self._version_buffer.version

    def lots(self) -> Sequence[Lot]:
        """See `dist.Reconfigurable`."""
        if self._has_other_writes():  # of a load that was interrupted: they are of no version
            self._version_buffer.begin_alone(self.shared())
        return self._version_buffer.lots(self._own(), self.shared())

    def shared(self) -> Mapping[str, Tensor]:
        """See `dist.Reconfigurable`."""
        return self._content.shared()

    def begun(self) -> Mapping[int, int]:
        """See `dist.Reconfigurable`."""
        return self._version_buffer.begun

    def seats(self) -> tuple[int, int, tuple[int, ...]]:
        """See `dist.Reconfigurable`."""
        pairing = self._pairing
        return (0, 1, ()) if pairing is None else (pairing.group.rank(), pairing.group.size(), pairing.buddies)

    def units(self) -> Mapping[str, int]:
        """See `dist.Reconfigurable`."""
        return self._content.units()

    def wanted(self, totals: Mapping[str, int], rank: int, world_size: int) -> Mapping[str, range]:
        """See `dist.Reconfigurable`."""
        return self._content.wanted(totals, rank, world_size)

    def _own(self) -> Lot:
        return self._content.own(self._version_buffer.version)

    # ------------------------------------------------------------------ a new world

    def mended(self) -> None:
        """See `dist.Reconfigurable`."""
        self._version_buffer.mended(self.shared())

    def prepare(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `dist.Reconfigurable`."""
        pairing = Pairing(group, self._buddies)
        protege = pairing.exchange(lot, Outline.empty) if pairing.buddies else None
        self._version_buffer.set_aside(lot, protege)
        self._next = pairing

    def hold(self, lot: Lot) -> None:
        """See `dist.Reconfigurable`."""
        self._version_buffer.set_aside(lot, None)

    def take_over(self) -> Lot:
        """See `dist.Reconfigurable`."""
        assert self._next is not None, "take_over() comes after prepare()"
        pairing, self._next = self._next, None
        own = self._version_buffer.take_over()
        self._content.use(own, pairing.group)  # refusals leave the world before in place
        self._pairing, self._writes = pairing, self._content.writes()
        return own

    def keep(self) -> None:
        """See `dist.Reconfigurable`. UsageError when something was written that the buddy has not."""
        self._refuse_other_writes()
        self._version_buffer.keep(self.shared())

    def _has_other_writes(self) -> bool:
        return self.keeps_twice and self._content.writes() != self._writes

    def _refuse_other_writes(self) -> None:
        if self._has_other_writes():
            raise UsageError(
                f"divided state, rank {self.seats()[0]}: pieces of parameters were written by somebody else than their "
                "optimizer, and the second copy on another rank has not got that. Inside elastic.run write parameters "
                "in `with model.gathered():`"
            )


def hand_over(survivors: Sequence[Survivor]) -> None:
    """Give buddies what was updated: who comes out of it knows that all ranks have done so. Collective."""
    for one in survivors:
        one.after_update()
    if any(one.keeps_twice for one in survivors):
        fault_points.reached("gather")
        dist.barrier(group=survivors[0].group)
        fault_points.reached("gather")
