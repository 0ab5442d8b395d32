"""What `ZeroRedundancyOptimizer` divides, for `Survivor`: the state of its rows. Parameters are whole on all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Lot, Version
from resilin.resharding import state_slices
from resilin.zero.flat_param import FlatParameter
from resilin.zero.local_optimizer import LocalOptimizer


class Divides(Protocol):
    """The optimizer, as this file sees it."""

    param_groups: list[dict[str, Any]]

    @property
    def owned(self) -> LocalOptimizer:
        """What this rank holds."""

    @property
    def rows(self) -> Sequence[FlatParameter]:
        """All parameters, as they are cut now."""

    def parameters(self) -> list[Tensor]:
        """All parameters, in the order of their numbers."""

    def rows_for(self, world_size: int) -> list[FlatParameter]:
        """All parameters, cut for a world of this size."""

    def divide(self, group: dist.ProcessGroup) -> LocalOptimizer:
        """Cut all parameters for `group`, and own this rank's pieces, without a state."""


class OptimizerContent:
    """See `elastic.Content`."""

    def __init__(self, optimizer: Divides) -> None:
        self._optimizer = optimizer

    def extra_state(self) -> Any:
        """See `Content`: nothing."""
        return None

    def load_extra_state(self, state: Any) -> None:
        """See `Content`: there is none."""
        assert state is None, state

    def common_state(self) -> Any:
        """The options of the groups."""
        return state_slices.common_options(self._optimizer.param_groups)

    def load_common_state(self, state: Any) -> None:
        """See `elastic.Content`."""
        state_slices.load_options(self._optimizer.param_groups, state)

    def own(self, version: Version) -> Lot:
        """See `elastic.Content`."""
        owned = self._optimizer.owned
        return state_slices.lot_of(owned.held, owned.optimizer, version)

    def shared(self) -> Mapping[str, Tensor]:
        """The parameters."""
        return {f"{state_slices.SHARED}{number}": param for number, param in enumerate(self._optimizer.parameters())}

    def written_by(self, rank: int) -> Mapping[str, range]:
        """See `elastic.Content`."""
        return {f"{state_slices.SHARED}{number}": part for number, part in _places(self._optimizer.rows, rank).items()}

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
        return state_slices.ranges(_places(rows, rank), totals, whole)

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        """See `elastic.Content`."""
        owned = self._optimizer.divide(group)
        state_slices.use(lot, owned.held, owned.optimizer)


def _places(rows: Sequence[FlatParameter], rank: int) -> dict[int, range]:
    """The elements of each parameter, by number, that `rank` holds."""
    return {row.numbers[piece.param]: range(piece.start, piece.stop) for row in rows for piece in row.shares[rank]}
