"""What a sharded module and the optimizers of its pieces divide, for `Survivor`; and the order of things in a step.

    optimizer.step      both copy their ranges ─► pieces updated ─► both give theirs to the buddy ─► barrier
    a new world         pieces cut anew and filled; what was gathered, expected or half reduced is dropped

Nothing is whole on all ranks here: what stage 2 has gathered is gathered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import resilin.distributed as dist
from resilin.core.host_copies import on_host, write
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Lot, Slice, Version
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.nn.modules import extra_state
from resilin.optim import Optimizer
from resilin.resharding import state_slices
from resilin.resharding.state_slices import Piece
from resilin.resharding.survivor import Survivor, hand_over
from resilin.zero import partition
from resilin.zero.sharded.unit import Unit, shares

VALUE = "value"
"""What parameters' slices are called, as an optimizer's are "exp_avg"."""


@dataclass(frozen=True, slots=True)
class Holding:
    """See `state_slices.HeldSlices`: a piece is flat, and some are empty."""

    number: int
    proxy: Tensor
    piece: Piece
    total: int
    whole: bool = False


class Seats:
    """The pieces of all parameters of a module, by their numbers in `named_parameters()`, in any world. Pure but for
    looking at units."""

    def __init__(self, units: Sequence[Unit], order: Sequence[tuple[Unit, int]]) -> None:
        self._units = list(units)
        self._numbers = {(unit.index, place): number for number, (unit, place) in enumerate(order)}
        self._held: dict[tuple[int, int], list[Holding]] = {}  # of a rank in a world of a size: asked for in every step

    def held(self, rank: int, world_size: int) -> list[Holding]:
        """The pieces, as `rank` holds them in a world of `world_size`; many are empty."""
        if (rank, world_size) not in self._held:
            self._held[rank, world_size] = list(self._pieces(rank, world_size))
        return self._held[rank, world_size]

    def _pieces(self, rank: int, world_size: int) -> Iterator[Holding]:
        for unit, share in zip(self._units, shares(self._units, world_size), strict=True):
            within = range(min(rank * share, unit.total), min((rank + 1) * share, unit.total))
            mine = {piece.param: piece for piece in partition.pieces(unit.numels, within)}
            for place in range(len(unit.params)):
                number, piece = self._numbers[unit.index, place], mine.get(place, Piece(place, 0, 0))
                yield Holding(number, unit.pieces[place], piece, unit.numels[place])

    def ranges(self, totals: Mapping[str, int], rank: int, world_size: int) -> dict[str, range]:
        """See `Content.wanted`."""
        held = self.held(rank, world_size)
        return state_slices.ranges({each.number: range(each.piece.start, each.piece.stop) for each in held}, totals)


class _Cut:
    """What both contents have: who this rank is in the world that its slices are cut for."""

    def __init__(self, seats: Seats, rank: int, world_size: int) -> None:
        self._seats, self._rank, self._world_size = seats, rank, world_size

    def shared(self) -> Mapping[str, Tensor]:
        """See `Content`: nothing is."""
        return {}

    def written_by(self, rank: int) -> Mapping[str, range]:
        """See `Content`: nothing is."""
        return {}

    def writes(self) -> Sequence[int]:
        """See `Content`: what it would count is known to the optimizer alone."""
        return ()

    def wanted(self, totals: Mapping[str, int], rank: int, world_size: int) -> Mapping[str, range]:
        """See `Content`."""
        return self._seats.ranges(totals, rank, world_size)

    def extra_state(self) -> Any:
        """See `Content`: nothing."""
        return None

    def load_extra_state(self, state: Any) -> None:
        """See `Content`: there is none."""
        assert state is None, state

    def _held(self) -> list[Holding]:
        return self._seats.held(self._rank, self._world_size)


class Recut(Protocol):
    """A sharded module, as this file sees it."""

    module: Module

    def recut(self, group: dist.ProcessGroup) -> None:
        """Drop what is under way, and have this rank's pieces in `group`, with values that nobody must use."""


class ModuleContent(_Cut):
    """The pieces' values. Buffers are alike on all ranks, or rank 0's."""

    def __init__(self, owner: Recut, seats: Seats, rank: int, world_size: int) -> None:
        super().__init__(seats, rank, world_size)
        self._owner = owner

    def common_state(self) -> Any:
        """The buffers, and what `get_extra_state` gives."""
        module = self._owner.module
        return {"buffers": dict(module.named_buffers()), "extra": extra_state.extra_states(module)}

    def load_common_state(self, state: Any) -> None:
        """See `Content`."""
        buffers = {name: on_host(saved) for name, saved in state["buffers"].items()}
        extra_state.write(self._owner.module, buffers, state["extra"], "zero.shard")

    def own(self, version: Version) -> Lot:
        """See `Content`."""
        held = self._held()
        slices = {
            f"{each.number}.{VALUE}": Slice(each.piece.start, each.total, on_host(each.proxy))
            for each in held
            if each.piece.numel
        }
        return Lot(version, slices, {}, _covers(held))

    def writes(self) -> Sequence[int]:
        """Those to the pieces."""
        return [each.proxy._writes for each in self._held()]

    def units(self) -> Mapping[str, int]:
        """The parameters."""
        return {str(each.number): each.total for each in self._held()}

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `Content`."""
        self._owner.recut(group)
        self._rank, self._world_size = group.rank(), group.size()
        for each in self._held():
            if each.piece.numel:
                write(each.proxy, lot.slices[f"{each.number}.{VALUE}"].array)
                each.proxy._bump()


class PiecesContent(_Cut):
    """What an optimizer of pieces remembers."""

    def __init__(self, optimizer: Optimizer, seats: Seats, rank: int, world_size: int) -> None:
        super().__init__(seats, rank, world_size)
        self._optimizer = optimizer

    def common_state(self) -> Any:
        """The options of the groups."""
        return state_slices.common_options(self._optimizer.param_groups)

    def load_common_state(self, state: Any) -> None:
        """See `Content`."""
        state_slices.load_options(self._optimizer.param_groups, state)

    def _held(self) -> list[Holding]:
        mine = {id(piece) for group in self._optimizer.param_groups for piece in group["params"]}
        return [each for each in super()._held() if id(each.proxy) in mine]

    def own(self, version: Version) -> Lot:
        """See `Content`."""
        return state_slices.lot_of(self._held(), self._optimizer, version)

    def units(self) -> Mapping[str, int]:
        """The parameters that it updates."""
        return {str(each.number): each.total for each in self._held()}

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `Content`."""
        self._rank, self._world_size = group.rank(), group.size()
        state_slices.use(lot, self._held(), self._optimizer)


def _covers(held: Iterable[Holding]) -> dict[str, range]:
    return {str(each.number): range(each.piece.start, each.piece.stop) for each in held}


class Life:
    """The survivors of one sharded module: its own, and one for each optimizer of its pieces. Main thread only."""

    def __init__(self, owner: Recut, seats: Seats, place: tuple[int, int], buddies: bool) -> None:
        self._seats, self._place, self.buddies = seats, place, buddies
        self.module = Survivor(ModuleContent(owner, seats, *place), buddies)
        self._followers: dict[int, Survivor] = {}  # by id of the optimizer, which they hold

    def follower(self, optimizer: Optimizer) -> Survivor:
        """That of `optimizer`."""
        if id(optimizer) not in self._followers:
            content = PiecesContent(optimizer, self._seats, *self._place)
            self._followers[id(optimizer)] = Survivor(content, self.buddies)
        return self._followers[id(optimizer)]

    def updating(self, optimizer: Optimizer) -> None:
        """Pieces, and what `optimizer` remembers of them, are about to be written."""
        follower = self._followers.get(id(optimizer))
        alive = self.module.group is not None
        if alive != (follower is not None and follower.group is not None):
            there, missing = ("module", "optimizer of its pieces") if alive else ("optimizer of pieces", "module")
            raise UsageError(
                f"zero.shard: inside elastic.run the {there} is registered and the {missing} is not; give both to "
                "elastic.State(model=..., optimizer=...), so that both go back to one step and are divided anew"
            )
        if alive and follower is not None:
            self.module.before_update()
            follower.before_update()

    def updated(self, optimizer: Optimizer) -> None:
        """They are written. A collective where buddies get them."""
        if self.module.group is not None:
            hand_over([self.module, self.follower(optimizer)])
