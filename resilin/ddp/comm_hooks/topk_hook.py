"""Only the largest gradients are sent (Aji and Heafield 2017; Stich et al. 2018); the others wait for a later step."""

from __future__ import annotations

import math

import numpy as np

from resilin.core.tensor import Tensor
from resilin.ddp.comm_hooks.exchange import Array, Group, gathered_mean, mean, members, real, working_dtype
from resilin.ddp.comm_hooks.on_host import on_host
from resilin.ddp.comm_hooks.state import FeedbackState, remembers
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future
from resilin.errors import UsageError

_PLACE = np.dtype(np.uint32)


class TopKState(FeedbackState):
    """State of `topk_hook`.

    ratio:            share of a bucket's gradients that each rank sends, above 0 and at most 1; at least one is sent.
    start_topk_iter:  plain averaging before this step.
    use_error_feedback:  what was not sent is added to the next gradient. Without it, it is lost.
    """

    def __init__(
        self, process_group: Group, ratio: float = 0.01, start_topk_iter: int = 0, use_error_feedback: bool = True
    ) -> None:
        super().__init__(process_group, use_error_feedback)
        self.ratio = self._real("ratio", ratio, -math.inf)
        if not 0 < self.ratio <= 1:
            raise UsageError(f"TopKState: ratio must be above 0 and at most 1, got {ratio}")
        self.start_topk_iter = self._whole("start_topk_iter", start_topk_iter)

    def _options(self) -> tuple[str, ...]:
        return ("ratio", "start_topk_iter", *super()._options())

    def phase(self) -> int:
        """Steps until it compresses; then each rank counts for itself."""
        return min(self.iter, self.start_topk_iter)

    def sent(self, numel: int) -> int:
        """How many of `numel` gradients each rank sends."""
        return min(numel, max(1, math.ceil(self.ratio * numel)))


@remembers(TopKState)
@on_host
def topk_hook(state: TopKState, bucket: GradBucket) -> Future[Tensor]:
    """Average the largest gradients of each rank, by absolute value; where a rank sends nothing, it counts as zero.

    Bytes: an all-gather of k * (4 + itemsize) per rank, for k = ceil(ratio * n) of n gradients.
    """
    array = real(bucket, "topk_hook")
    group, step = members(state.process_group), state.iter
    state.count(bucket)
    if step < state.start_topk_iter or array.size == 0:
        return mean(group, bucket, bucket.buffer())
    flat = array.astype(working_dtype(array))
    state.add_residual(bucket, flat)
    count, dtype = state.sent(flat.size), array.dtype
    places = np.sort(np.argpartition(np.abs(flat), flat.size - count)[flat.size - count :]).astype(_PLACE)
    with np.errstate(over="ignore"):
        values = flat[places].astype(dtype)
    flat[places] -= values.astype(flat.dtype)  # what the smaller dtype of the message leaves out is kept, too
    state.keep(bucket.index(), step, flat)

    def decode(message: Array, total: Array) -> None:
        cut = count * _PLACE.itemsize
        total[message[:cut].view(_PLACE)] += message[cut:].view(dtype).astype(total.dtype)

    return gathered_mean(group, bucket, np.concatenate([places.view(np.uint8), values.view(np.uint8)]), decode)
