"""One bit per gradient (Seide et al. 2014): its sign, and for each parameter what a plus and a minus stand for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resilin.core.tensor import Tensor
from resilin.ddp.comm_hooks.exchange import Array, Group, gathered_mean, mean, members, real, working_dtype
from resilin.ddp.comm_hooks.on_host import on_host
from resilin.ddp.comm_hooks.state import FeedbackState, remembers
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future

_LEVEL_BYTES = 8  # of one parameter: the means of its gradients below zero and of the others, float32


class OneBitState(FeedbackState):
    """State of `onebit_hook`.

    start_onebit_iter:   plain averaging before this step: signs alone are too coarse for the first ones.
    use_error_feedback:  what the signs left out is added to the next gradient. Training hardly works without it.
    """

    def __init__(self, process_group: Group, start_onebit_iter: int = 100, use_error_feedback: bool = True) -> None:
        super().__init__(process_group, use_error_feedback)
        self.start_onebit_iter = self._whole("start_onebit_iter", start_onebit_iter)

    def _options(self) -> tuple[str, ...]:
        return ("start_onebit_iter", *super()._options())

    def phase(self) -> int:
        """Steps until it compresses; then each rank counts for itself."""
        return min(self.iter, self.start_onebit_iter)


@remembers(OneBitState)
@on_host
def onebit_hook(state: OneBitState, bucket: GradBucket) -> Future[Tensor]:
    """Average what the signs stand for: in each parameter, the mean of the gradients with that sign, of each rank.

    Bytes: an all-gather of ceil(n / 8) + 8 * parameters per rank, for n gradients of so many parameters.
    """
    array = real(bucket, "onebit_hook")
    group, step = members(state.process_group), state.iter
    state.count(bucket)
    if step < state.start_onebit_iter or array.size == 0:
        return mean(group, bucket, bucket.buffer())
    flat = array.astype(working_dtype(array))
    state.add_residual(bucket, flat)
    sizes = [gradient.numel() for gradient in bucket.gradients()]
    signs = flat >= 0
    with np.errstate(all="ignore"):
        levels = _levels(flat, signs, sizes)
        flat -= _spread(levels, signs, sizes)
    state.keep(bucket.index(), step, flat)

    def decode(message: Array, total: Array) -> None:
        cut = len(sizes) * _LEVEL_BYTES
        theirs = np.unpackbits(message[cut:], count=total.size).view(bool)
        total += _spread(message[:cut].view(np.float32).reshape(-1, 2), theirs, sizes)

    message = np.concatenate([levels.view(np.uint8).reshape(-1), np.packbits(signs)])
    return gathered_mean(group, bucket, message, decode)


def _levels(flat: Array, signs: Array, sizes: Sequence[int]) -> Array:
    """For each run of `sizes` elements: the mean of those without a sign and of those with one, 0 for none; float32."""
    levels = np.zeros((len(sizes), 2), np.float32)
    at = 0
    for number, size in enumerate(sizes):
        run, plus = flat[at : at + size], signs[at : at + size]
        count = int(np.count_nonzero(plus))
        total, above = run.sum(dtype=np.float64), run.sum(dtype=np.float64, where=plus)
        levels[number] = (
            (total - above) / (size - count) if count < size else 0,
            above / count if count else 0,
        )
        at += size
    return levels


def _spread(levels: Array, signs: Array, sizes: Sequence[int]) -> Array:
    """The level of each element."""
    return np.where(signs, np.repeat(levels[:, 1], sizes), np.repeat(levels[:, 0], sizes))
