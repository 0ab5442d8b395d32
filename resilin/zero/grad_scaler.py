"""A loss scaler for gradients that are divided among ranks."""

from __future__ import annotations

import resilin.distributed as dist
from resilin.amp import GradScaler
from resilin.amp.grad_scaler import SteppedOptimizer
from resilin.errors import UsageTypeError
from resilin.zero import agreement


class ShardedGradScaler(GradScaler):
    """`GradScaler` for modules of `zero.shard`, where a rank has only pieces of the gradients.

    A step that overflows in any rank's piece is left out by all ranks of `process_group` (default: the world), so
    `unscale_` is a collective: all call it, or `step`, for the same optimizers in the same order. The other arguments
    are GradScaler's. Raises as GradScaler, UsageTypeError also for a `process_group` that is none.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        backoff_factor: float = 0.5,
        growth_factor: float = 2.0,
        growth_interval: int = 2000,
        enabled: bool = True,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        none = process_group is None or process_group is dist.GroupMember.NON_GROUP_MEMBER
        if not (none or isinstance(process_group, dist.ProcessGroup)):
            raise UsageTypeError(
                "ShardedGradScaler: process_group must be a ProcessGroup, as new_group() returns, or None, got "
                f"{process_group!r:.80}"
            )
        self.process_group = process_group

    def _check_whole(self, optimizer: SteppedOptimizer) -> None:
        """Pieces are what this is for."""

    def _agreed(self, optimizer: SteppedOptimizer, overflowed: bool, gradients: bool) -> bool:
        overflowed, gradients = agreement.on_any_rank((overflowed, gradients), self.state_dict(), self.process_group)
        return super()._agreed(optimizer, overflowed, gradients)
