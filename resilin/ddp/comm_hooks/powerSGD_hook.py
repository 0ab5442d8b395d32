"""PowerSGD (Vogels, Karimireddy, Jaggi 2019): each gradient matrix M is sent as two thin ones, M is about P Q^T.

    P = M Q          all-reduced with the gradients that are not worth compressing
    P                made orthonormal
    Q = M^T P        all-reduced: P Q^T is the projection of the ranks' mean on the columns of P
    residual         M - P Q^T with this rank's own Q: added to this rank's next gradient (error feedback)

Both collectives run on the group's worker thread, beside the rest of backward.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin._base import log
from resilin.core.tensor import Tensor
from resilin.ddp.comm_hooks.exchange import Array, Group, mean, members, real, working_dtype
from resilin.ddp.comm_hooks.low_rank import Stack, cut, orthogonalize, thin_numel, worth_compressing
from resilin.ddp.comm_hooks.on_host import on_host
from resilin.ddp.comm_hooks.state import FeedbackState, remembers
from resilin.ddp.grad_bucket import GradBucket
from resilin.distributed.work.future import Future
from resilin.errors import UsageError

_LOG = log.logger("ddp.powersgd")


class PowerSGDState(FeedbackState):
    """State of `powerSGD_hook` and `batched_powerSGD_hook`, with PyTorch's names and defaults.

    matrix_approximation_rank:  columns of P and Q: more approximate better and send more.
    start_powerSGD_iter:    plain averaging before this step; at least 2 with error feedback or warm start.
    min_compression_rate:   a matrix is sent as it is unless its factors have less than 1/rate of its elements.
    use_error_feedback:     what a step left out is added to the next gradient.
    warm_start:             Q of a step is where the next one starts; else random numbers.
    orthogonalization_epsilon:  added to norms up to rank 2; not needed against columns of zeros.
    random_seed:            of the first Q, equal on all ranks.
    compression_stats_logging_frequency:  steps between two lines in the log.
    batch_tensors_with_same_shape:  multiply matrices of one shape in one call.
    """

    def __init__(
        self,
        process_group: Group,
        matrix_approximation_rank: int = 1,
        start_powerSGD_iter: int = 1_000,
        min_compression_rate: float = 2,
        use_error_feedback: bool = True,
        warm_start: bool = True,
        orthogonalization_epsilon: float = 0,
        random_seed: int = 0,
        compression_stats_logging_frequency: int = 10_000,
        batch_tensors_with_same_shape: bool = False,
    ) -> None:
        super().__init__(process_group, use_error_feedback)
        self.matrix_approximation_rank = self._whole("matrix_approximation_rank", matrix_approximation_rank, 1)
        self.start_powerSGD_iter = self._whole("start_powerSGD_iter", start_powerSGD_iter)
        self.min_compression_rate = self._real("min_compression_rate", min_compression_rate)
        self.warm_start = self._flag("warm_start", warm_start)
        self.orthogonalization_epsilon = self._real("orthogonalization_epsilon", orthogonalization_epsilon)
        self.random_seed = self._whole("random_seed", random_seed)
        frequency = self._whole("compression_stats_logging_frequency", compression_stats_logging_frequency)
        self.compression_stats_logging_frequency = max(1, frequency)
        self.batch_tensors_with_same_shape = self._flag("batch_tensors_with_same_shape", batch_tensors_with_same_shape)
        if (self.use_error_feedback or self.warm_start) and self.start_powerSGD_iter <= 1:
            raise UsageError(
                "PowerSGDState: start_powerSGD_iter must be above 1 with use_error_feedback or warm_start, because "
                f"the first steps may change the buckets; got {start_powerSGD_iter}"
            )
        self.next_stats_report = 0
        self.total_numel_before_compression = 0
        self.total_numel_after_compression = 0
        self.q_memory_dict: dict[int, Array] = {}  # by bucket: all its Q, flat, equal on all ranks

    def _options(self) -> tuple[str, ...]:
        return (
            "matrix_approximation_rank",
            "start_powerSGD_iter",
            "min_compression_rate",
            *super()._options(),
            "warm_start",
            "orthogonalization_epsilon",
            "random_seed",
            "batch_tensors_with_same_shape",
        )

    def compression_stats(self) -> tuple[float, int, int]:
        """(rate, elements before compression, elements after it) since compression started; rate 0: not yet."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after else 0, before, after)

    def state_dict(self, local: bool = False) -> dict[str, Any]:
        """As FeedbackState's, with every Q and the counters of compression."""
        return {
            **super().state_dict(local),
            "numel": [self.total_numel_before_compression, self.total_numel_after_compression],
            "qs": {index: Tensor._wrap(flat.copy()) for index, flat in sorted(self.q_memory_dict.items())},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As FeedbackState's."""
        super().load_state_dict(state_dict)
        self.total_numel_before_compression, self.total_numel_after_compression = map(int, state_dict["numel"])
        self.q_memory_dict = {int(index): np.array(flat._array) for index, flat in state_dict["qs"].items()}
        self.next_stats_report = min(self.next_stats_report, self.iter)

    def count_elements(self, bucket: GradBucket, before: int, after: int) -> None:
        """Count a bucket that is compressed, and log the sums at the last one when it is time."""
        self.total_numel_before_compression += before
        self.total_numel_after_compression += after
        if bucket.is_last() and self.iter >= self.next_stats_report:
            rate, total_before, total_after = self.compression_stats()
            fields = {"step": self.iter, "before": total_before, "after": total_after, "rate": round(rate, 1)}
            log.event(_LOG, logging.INFO, "elements before and after compression", **fields)
            self.next_stats_report = self.iter + self.compression_stats_logging_frequency

    def first_qs(self, bucket: GradBucket, stacks: Sequence[Stack], dtype: Any) -> list[Array]:
        """Orthonormal Q of each stack: those of the last step, or random ones."""
        size = sum(math.prod(stack.q_shape) for stack in stacks)
        flat = self.q_memory_dict.get(bucket.index()) if self.warm_start else None
        if flat is None:
            rng = np.random.default_rng([self.random_seed, self.iter, bucket.index()])
            flat = rng.standard_normal(size)
        elif flat.size != size:
            raise UsageError(
                f"PowerSGDState: bucket {bucket.index()} needs Q of {size} elements, the state has {flat.size}: it was "
                "saved for another model, rank of approximation or bucket_cap_mb; or another model uses this state, "
                "too: give each its own"
            )
        qs = cut(flat.astype(dtype), [stack.q_shape for stack in stacks])
        for q in qs:
            orthogonalize(q, self.orthogonalization_epsilon)
        return qs

    def keep_qs(self, bucket: GradBucket, flat: Array) -> None:
        """Remember Q for the next step; numbers that are not finite would stay for ever."""
        if self.warm_start:
            if np.isfinite(flat).all():
                self.q_memory_dict[bucket.index()] = flat
            else:
                self.q_memory_dict.pop(bucket.index(), None)


@remembers(PowerSGDState)
@on_host
def powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """Average an approximation of each gradient matrix; vectors and small matrices are averaged as they are.

    Bytes: all-reduces of itemsize * (sum of (n + m) * rank over the compressed matrices + elements of the others).
    A gradient of more than two dimensions is a matrix with its first extent as rows.
    """
    array = real(bucket, "powerSGD_hook")
    group = members(state.process_group)
    if state.iter < state.start_powerSGD_iter:
        state.count(bucket)
        return mean(group, bucket, bucket.buffer())
    shapes = [_matrix_shape(gradient._array.shape) for gradient in bucket.gradients()]
    flat = array.astype(working_dtype(array))
    state.add_residual(bucket, flat)
    views, rank, rate = cut(flat, shapes), state.matrix_approximation_rank, state.min_compression_rate
    chosen = [worth_compressing(*shape, min(*shape, rank), rate) for shape in shapes]
    after = sum(
        thin_numel(*shape, min(*shape, rank)) if yes else math.prod(shape)
        for shape, yes in zip(shapes, chosen, strict=True)
    )
    state.count_elements(bucket, flat.size, after)
    matrices = [view for view, yes in zip(views, chosen, strict=True) if yes]
    rest = [view for view, yes in zip(views, chosen, strict=True) if not yes]
    return _Step(state, bucket, group, flat, _stacks(matrices, state), rest).run()


@remembers(PowerSGDState)
@on_host
def batched_powerSGD_hook(state: PowerSGDState, bucket: GradBucket) -> Future[Tensor]:
    """As powerSGD_hook with the whole bucket as one square matrix, filled up with zeros: quicker and less exact.

    Bytes: all-reduces of itemsize * 2 * rank * ceil(sqrt(n)) for n gradients.
    """
    array = real(bucket, "batched_powerSGD_hook")
    group = members(state.process_group)
    if state.iter < state.start_powerSGD_iter or array.size == 0:
        state.count(bucket)
        return mean(group, bucket, bucket.buffer())
    side = math.isqrt(array.size - 1) + 1
    flat = np.zeros(side * side, working_dtype(array))
    flat[: array.size] = array
    state.add_residual(bucket, flat)
    stack = Stack([flat.reshape(side, side)], state.matrix_approximation_rank)
    state.count_elements(bucket, array.size, thin_numel(side, side, stack.rank))
    return _Step(state, bucket, group, flat, [stack], []).run()


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    rows = shape[0] if shape else 1
    return rows, math.prod(shape[1:])


def _stacks(matrices: Sequence[Array], state: PowerSGDState) -> list[Stack]:
    rank = state.matrix_approximation_rank
    if not state.batch_tensors_with_same_shape:
        return [Stack([matrix], rank) for matrix in matrices]
    ordered = sorted(matrices, key=lambda matrix: matrix.shape)
    return [Stack(list(same), rank) for _, same in groupby(ordered, key=lambda matrix: matrix.shape)]


class _Step:
    """One bucket's way through a step. `flat`: gradients with residual, in which `stacks` and `rest` lie."""

    def __init__(
        self,
        state: PowerSGDState,
        bucket: GradBucket,
        group: dist.ProcessGroup,
        flat: Array,
        stacks: Sequence[Stack],
        rest: Sequence[Array],
    ) -> None:
        self._state, self._bucket, self._group = state, bucket, group
        self._flat, self._stacks, self._rest = flat, stacks, rest
        self._target = bucket.buffer()
        self._number = state.iter

    def run(self) -> Future[Tensor]:
        """Send the first message; the others follow when it is there."""
        qs = self._state.first_qs(self._bucket, self._stacks, self._flat.dtype)
        self._state.count(self._bucket)
        products = [stack.times(q) for stack, q in zip(self._stacks, qs, strict=True)]
        return mean(self._group, self._bucket, self._message([*self._rest, *products])).then(self._finish)

    def _message(self, arrays: Sequence[Array]) -> Tensor:
        """In the dtype of the bucket, which a wrapper may have made smaller."""
        parts = [array.reshape(-1) for array in arrays] or [self._flat[:0]]
        with np.errstate(over="ignore"):
            return Tensor._wrap(np.concatenate(parts).astype(self._target._array.dtype, copy=False))

    def _finish(self, done: Future[Tensor]) -> Tensor:
        """On the group's worker thread: P has arrived; exchange Q, keep the residual, write the result."""
        received = done.value()._array.astype(self._flat.dtype)
        kept = sum(view.size for view in self._rest)
        with np.errstate(all="ignore"):  # gradients that are not finite go on as such
            ps = cut(received[kept:], [stack.p_shape for stack in self._stacks])
            for p in ps:
                _orthogonalize_finite(p, self._state.orthogonalization_epsilon)
            mine = self._message([stack.transposed_times(p) for stack, p in zip(self._stacks, ps, strict=True)])
            for stack, p, q in zip(self._stacks, ps, self._qs(mine), strict=True):
                stack.subtract(p, q)
            for view in self._rest:
                view[...] = 0
            if self._state.use_error_feedback:
                self._state.keep(self._bucket.index(), self._number, self._flat.copy())
            if self._stacks:
                mean(self._group, self._bucket, mine).wait()
            qs = self._qs(mine)
            if qs:
                self._state.keep_qs(self._bucket, mine._array.astype(self._flat.dtype))
            self._write(received[:kept], ps, qs)
        return self._target

    def _qs(self, message: Tensor) -> list[Array]:
        return cut(message._array.astype(self._flat.dtype), [stack.q_shape for stack in self._stacks])

    def _write(self, rest: Array, ps: Sequence[Array], qs: Sequence[Array]) -> None:
        """Put the result where the gradients with residual were, and from there into the bucket."""
        for view, values in zip(self._rest, cut(rest, [view.shape for view in self._rest]), strict=True):
            view[...] = values
        for stack, p_BNR, q_BMR in zip(self._stacks, ps, qs, strict=True):
            for view, p, q in zip(stack.views, p_BNR, q_BMR, strict=True):
                np.matmul(p, q.T, out=view)
        self._target._array[...] = self._flat[: self._target._array.size]


def _orthogonalize_finite(matrices: Array, epsilon: float) -> None:
    """LAPACK refuses what is not finite; the result would not be finite either."""
    if np.isfinite(matrices).all():
        orthogonalize(matrices, epsilon)
    else:
        matrices[...] = np.nan
