"""How a divided optimizer lives on when the world changes (`dist.Reconfigurable`), and its two versions of every step.

step    copy own range ─► update it ─► give it to the buddy ─► gather parameters      commit: drop the copies
world   everybody's slices ─► those of the new partition, aside ─► their buddies ─► in use
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin.core.tensor import Tensor, wrap
from resilin.dist.reconfigurable import Lot, Outline, Slice, Version
from resilin.errors import UsageError
from resilin.zero.buddies import Pairing
from resilin.zero.keeper import Keeper
from resilin.zero.owned import Owned, options_of
from resilin.zero.row import Held, Row
from resilin.zero.state import counters_of, told_of

_SHARED = "param "


class Survivor:
    """What `elastic` asks of an optimizer whose state is divided. The optimizer gives its rows and what it owns."""

    _rows: list[Row]
    param_groups: list[dict[str, Any]]

    def _live_alone(self) -> None:
        """At construction: no world is known that could change."""
        self._keeper = Keeper()
        self._pairing: Pairing | None = None  # only within elastic.run
        self._next: Pairing | None = None  # of the world that begins

    @property
    def owned(self) -> Owned:
        """What this rank holds."""
        raise NotImplementedError

    def _params(self) -> list[Tensor]:
        """All parameters, in the order of their numbers."""
        raise NotImplementedError

    def _rows_for(self, world_size: int) -> list[Row]:
        """All parameters, cut for a world of this size."""
        raise NotImplementedError

    def _divide(self, group: dist.ProcessGroup) -> Owned:
        """Cut all parameters for `group`, and own this rank's pieces, without a state."""
        raise NotImplementedError

    # ------------------------------------------------------------------ a step

    def _before_update(self) -> None:
        """The own range, and parameters, are about to be written."""
        pairing = self._pairing
        if pairing is not None and pairing.buddies:
            places = [_places(self._rows, rank) for rank in (pairing.group.rank(), pairing.protege)]
            ranges = [{f"{_SHARED}{number}": part for number, part in each.items()} for each in places]
            self._keeper.begin(self._own(), self.shared(), ranges)

    def _after_update(self) -> None:
        """The own range has been written, parameters of other ranks not yet: the buddy gets it. Collective."""
        pairing, keeper = self._pairing, self._keeper
        if pairing is not None:
            keeper.updated(pairing.group.generation)
            if pairing.buddies:
                keeper.received(pairing.exchange(self._own(), keeper.room))

    # ------------------------------------------------------------------ what it has

    def common_state(self) -> Any:
        """See `dist.Reconfigurable`: the options of the groups."""
        return [options_of(group) for group in self.param_groups]

    def load_common_state(self, state: Any) -> None:
        """See `dist.Reconfigurable`."""
        if len(state) != len(self.param_groups):
            raise UsageError(
                f"ZeroRedundancyOptimizer: {len(self.param_groups)} parameter groups here, {len(state)} at the source; "
                "all ranks must have the same groups, also those that join: add them before elastic.run"
            )
        for group, options in zip(self.param_groups, state, strict=True):
            group.update(options)

    def version(self) -> Version:
        """See `dist.Reconfigurable`."""
        return self._keeper.version

    def lots(self) -> Sequence[Lot]:
        """See `dist.Reconfigurable`."""
        return self._keeper.lots(self._own(), self.shared())

    def shared(self) -> Mapping[str, Tensor]:
        """See `dist.Reconfigurable`: the parameters."""
        return {f"{_SHARED}{number}": param for number, param in enumerate(self._params())}

    def begun(self) -> Mapping[int, int]:
        """See `dist.Reconfigurable`."""
        return self._keeper.begun

    def seats(self) -> tuple[int, int, tuple[int, ...]]:
        """See `dist.Reconfigurable`."""
        pairing = self._pairing
        return (0, 1, ()) if pairing is None else (pairing.group.rank(), pairing.group.size(), pairing.buddies)

    def units(self) -> Mapping[str, int]:
        """See `dist.Reconfigurable`: the parameters."""
        return {str(number): param.numel() for number, param in enumerate(self._params())}

    def wanted(self, totals: Mapping[str, int], rank: int, world_size: int) -> Mapping[str, range]:
        """See `dist.Reconfigurable`."""
        rows = self._rows_for(world_size)
        mine = _places(rows, rank)
        whole = {number for row in rows if row.whole for number in row.numbers}
        found = {}
        for name, total in totals.items():
            number = number_of(name)
            if number in mine:
                found[name] = range(total) if number in whole else mine[number]
        return found

    def _own(self) -> Lot:
        return lot_of(self.owned, self._keeper.version)

    # ------------------------------------------------------------------ a new world

    def mended(self) -> None:
        """See `dist.Reconfigurable`."""
        self._keeper.mended(self.shared())

    def prepare(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `dist.Reconfigurable`."""
        pairing = Pairing(group)
        protege = pairing.exchange(lot, Outline.empty) if pairing.buddies else None
        self._keeper.set_aside(lot, protege)
        self._next = pairing

    def take_over(self) -> Lot:
        """See `dist.Reconfigurable`."""
        assert self._next is not None, "take_over() comes after prepare()"
        self._pairing, self._next = self._next, None
        own = self._keeper.take_over()
        use(own, self._divide(self._pairing.group))
        return own

    def keep(self) -> None:
        """See `dist.Reconfigurable`."""
        self._keeper.keep(self.shared())


def _places(rows: Sequence[Row], rank: int) -> dict[int, range]:
    """The elements of each parameter, by number, that `rank` holds."""
    return {row.numbers[piece.param]: range(piece.start, piece.stop) for row in rows for piece in row.shares[rank]}


def number_of(name: str) -> int:
    """The number of the parameter that a logical tensor belongs to."""
    return int(name.removeprefix(_SHARED).partition(".")[0])


def lot_of(owned: Owned, version: Version) -> Lot:
    """The state that this rank owns, as slices over its memory.

    A tensor "exp_avg" of parameter 3 is the logical tensor "3.exp_avg". The value "3" of the lot tells the names of its
    entries in order, each with what is needed beside a slice: a shape, or all of it where it is no tensor or a counter.
    """
    counters, state = counters_of(owned.optimizer), owned.optimizer.state
    slices: dict[str, Slice] = {}
    values: dict[str, Any] = {}
    for each in owned.held:
        entries: list[tuple[str, Any]] = []
        for name, value in state[each.proxy].items() if each.proxy in state else ():
            told = told_of(each, name, value, counters)
            if told.dtype is None:
                entries.append((name, _packed(value)))
                continue
            start, total = (each.piece.start, each.param.numel()) if told.shape is None else (0, value.numel())
            slices[f"{each.number}.{name}"] = Slice(start, total, value._array.reshape(-1))
            entries.append((name, told.shape))
        if entries:
            values[str(each.number)] = tuple(entries)
    covers = {str(each.number): range(each.piece.start, each.piece.stop) for each in owned.held}
    return Lot(version, slices, values, covers)


def use(lot: Lot, owned: Owned) -> None:
    """Make the slices of `lot` the state of the pieces that `owned` holds; their memory is kept."""
    for each in owned.held:
        entries = lot.values.get(str(each.number), ())
        if entries:
            owned.optimizer.state[each.proxy] = {name: _unpacked(name, told, each, lot) for name, told in entries}


def _packed(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return ("value", value)
    return ("tensor", value._array.dtype.name, value._array.shape, value._array.tobytes())


def _unpacked(name: str, told: Any, held: Held, lot: Lot) -> Any:
    device = held.param._dev
    if told and told[0] == "value":
        return told[1]
    if told and told[0] == "tensor":
        _, dtype, shape, content = told
        return wrap(np.frombuffer(content, np.dtype(dtype)).reshape(shape).copy(), device)
    array = lot.slices[f"{held.number}.{name}"].array
    return wrap(array if told is None else array.reshape(told), device)
