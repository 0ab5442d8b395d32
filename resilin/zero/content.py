"""What `ZeroRedundancyOptimizer` divides, for `Survivor`: the state of its rows. Parameters are whole on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import resilin.dist as dist
from resilin.core.tensor import Tensor
from resilin.dist.reconfigurable import Lot, Version
from resilin.errors import UsageError
from resilin.zero import lots
from resilin.zero.owned import Owned, options_of
from resilin.zero.row import Row


class Divides(Protocol):
    """The optimizer, as this file sees it."""

    param_groups: list[dict[str, Any]]

    @property
    def owned(self) -> Owned:
        """What this rank holds."""

    @property
    def rows(self) -> Sequence[Row]:
        """All parameters, as they are cut now."""

    def parameters(self) -> list[Tensor]:
        """All parameters, in the order of their numbers."""

    def rows_for(self, world_size: int) -> list[Row]:
        """All parameters, cut for a world of this size."""

    def divide(self, group: dist.ProcessGroup) -> Owned:
        """Cut all parameters for `group`, and own this rank's pieces, without a state."""


def common_options(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What all ranks have alike of an optimizer with these groups."""
    return [options_of(group) for group in groups]


def load_options(groups: Sequence[dict[str, Any]], state: Sequence[Mapping[str, Any]]) -> None:
    """Take over what `common_options` of any rank gave. UsageError when it has other groups."""
    if len(state) != len(groups):
        raise UsageError(
            f"ZeRO: {len(groups)} parameter groups here, {len(state)} at the source; all ranks must have the same "
            "groups, also those that join: add them before elastic.run"
        )
    for group, options in zip(groups, state, strict=True):
        group.update(options)


class OptimizerContent:
    """See `elastic.Content`."""

    def __init__(self, optimizer: Divides) -> None:
        self._optimizer = optimizer

    def common_state(self) -> Any:
        """The options of the groups."""
        return common_options(self._optimizer.param_groups)

    def load_common_state(self, state: Any) -> None:
        """See `elastic.Content`."""
        load_options(self._optimizer.param_groups, state)

    def own(self, version: Version) -> Lot:
        """See `elastic.Content`."""
        owned = self._optimizer.owned
        return lots.lot_of(owned.held, owned.optimizer, version)

    def shared(self) -> Mapping[str, Tensor]:
        """The parameters."""
        return {f"{lots.SHARED}{number}": param for number, param in enumerate(self._optimizer.parameters())}

    def written_by(self, rank: int) -> Mapping[str, range]:
        """See `elastic.Content`."""
        return {f"{lots.SHARED}{number}": part for number, part in _places(self._optimizer.rows, rank).items()}

    def writes(self) -> Sequence[int]:
        """See `elastic.Content`: the state is written by the optimizer alone."""
        return ()

    def units(self) -> Mapping[str, int]:
        """The parameters."""
        return {str(number): param.numel() for number, param in enumerate(self._optimizer.parameters())}

    def wanted(self, totals: Mapping[str, int], rank: int, world_size: int) -> Mapping[str, range]:
        """See `elastic.Content`."""
        rows = self._optimizer.rows_for(world_size)
        whole = frozenset(number for row in rows if row.whole for number in row.numbers)
        return lots.ranges(_places(rows, rank), totals, whole)

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `elastic.Content`."""
        for param in self._optimizer.parameters():
            lots.check_on_host(param, "keep the parameters on the CPU, or use zero.shard(..., cpu_offload=True)")
        owned = self._optimizer.divide(group)
        lots.use(lot, owned.held, owned.optimizer)


def _places(rows: Sequence[Row], rank: int) -> dict[int, range]:
    """The elements of each parameter, by number, that `rank` holds."""
    return {row.numbers[piece.param]: range(piece.start, piece.stop) for row in rows for piece in row.shares[rank]}
