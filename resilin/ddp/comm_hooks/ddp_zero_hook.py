"""Hooks that update a divided optimizer's parameters inside backward, as buckets arrive; names of torch's module.

backward              ── bucket 0 ──── bucket 1 ──── bucket 2 ─┐
reductions                 └─ 0 ─┐        └─ 1 ─┐       └─ 2 ─┐│
updates, interleaved             └ own of 0     └ own of 1    └┼ own of 2
updates, not interleaved                                       └ own of 0, 1, 2, each as soon as it is reduced
at the end of backward                                           ranges gathered: all parameters are new

The first step updates like every other one. Where it is not known before the end of backward which parameters got a
gradient (`find_unused_parameters`, `static_graph`, `skip_all_reduce_unused_params`), all updates come there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol

from resilin.core.autograd import engine
from resilin.core.tensor import Tensor, wrap
from resilin.ddp import errors
from resilin.ddp.arguments import check_hook
from resilin.ddp.grad_bucket import GradBucket, Hook, checked_future, limit_s, take_result
from resilin.ddp.wrapper import DistributedDataParallel
from resilin.distributed.work.future import Future
from resilin.errors import UsageError, UsageTypeError


class EarlyOptimizer(Protocol):
    """What the hooks need of an optimizer: `zero.ZeroRedundancyOptimizer(..., overlap_with_ddp=True)` has it."""

    param_groups: list[dict[str, Any]]

    def begin_early(self, buckets: Sequence[Sequence[Tensor]] | None = None) -> None:
        """Updates will come from backward. With `buckets` each of them is divided among all ranks."""

    def update_early(self, params: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Update this rank's part of `params` from gradients that are final. Any thread, one at a time."""

    def finish_early(self, written: Sequence[Tensor]) -> None:
        """All updates of this backward are done here: bring those of the other ranks."""


def hook_with_zero_step(
    hook: Hook, ddp: DistributedDataParallel, zero: EarlyOptimizer, shard_buckets: bool = False
) -> Hook:
    """`hook`, and after backward's last bucket the update of each one as soon as it is reduced, while others still are.

        zero = ZeroRedundancyOptimizer(model.parameters(), optim.AdamW, overlap_with_ddp=True, lr=1e-3)
        model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, zero))
        for x, y in batches:
            zero.zero_grad()
            loss_fn(model(x), y).backward()  # has updated the parameters when it returns

    The registered state is that of `hook`. shard_buckets: every bucket is divided among all ranks, so that they finish
    together; otherwise the parameters as a whole are, and the ranks that own the first layers update last. Every
    backward outside `no_sync` is a step: gradients cannot be clipped or scaled between the two.

    Collective: all ranks call it. Raises UsageError for what is no hook, an optimizer without overlap_with_ddp, or one
    whose parameters are not those of `ddp`.
    """
    return _Stepping(hook, ddp, zero, shard_buckets, interleaved=False)


def hook_with_zero_step_interleaved(
    hook: Hook, ddp: DistributedDataParallel, zero: EarlyOptimizer, shard_buckets: bool = False
) -> Hook:
    """As `hook_with_zero_step`, but a bucket is updated as soon as it is reduced, while backward still computes."""
    return _Stepping(hook, ddp, zero, shard_buckets, interleaved=True)


class _Stepping:
    """The hook. Its backward: from the call for its first bucket to `_end`."""

    def __init__(
        self,
        hook: Hook,
        ddp: DistributedDataParallel,
        zero: EarlyOptimizer,
        shard_buckets: bool,
        interleaved: bool,
    ) -> None:
        check_hook(f"hook_with_zero_step{'_interleaved' * interleaved}", hook)
        _check_kinds(ddp, zero)
        self._hook, self._ddp, self._zero, self._interleaved = hook, ddp, zero, interleaved
        options = ddp._options
        self._at_end = options.find_unused or options.static or options.skip_unused
        self._updating = threading.Lock()
        self._backward: Any = None  # the one that runs
        self._seen: list[tuple[GradBucket, Future[Tensor]]] = []  # its buckets so far
        errors.set_state_check(self, errors.state_check(hook))
        self.__name__ = f"zero step after {getattr(hook, '__name__', 'hook')}"
        named = [(name, param) for name, param in ddp.module.named_parameters() if param.requires_grad]
        _check_parameters(named, zero)
        zero.begin_early(_runs([param for _, param in named], ddp.bucket_bytes_cap) if shard_buckets else None)

    def __call__(self, state: Any, bucket: GradBucket) -> Future[Tensor]:
        self._begin()
        reduced = checked_future(self._hook(state, bucket))

        def landed(done: Future[Tensor]) -> Tensor:
            take_result(done.value(), bucket._flat.tensor, bucket.traffic)
            if self._interleaved and not self._at_end:
                self._update(bucket)
            return bucket._flat.tensor

        future = reduced.then(landed)
        self._seen.append((bucket, future))
        if bucket.is_last() and not self._interleaved and not self._at_end:
            for other, its in self._seen:
                its.wait(limit_s(self._ddp.process_group))
                self._update(other)
        return future

    def _begin(self) -> None:
        """Know a new backward by its first bucket."""
        backward = engine.outermost()
        if backward is None:
            raise UsageError(
                "it updates parameters at the end of a backward, and none runs: a forward that uses no parameter, and "
                "ranks without data in a join, need overlap_with_ddp=False and step()"
            )
        if backward is not self._backward:
            self._backward, self._seen = backward, []
            engine.queue_callback(self._end, outermost=True)  # after DDP's own, which waits for the buckets

    def _update(self, bucket: GradBucket) -> None:
        gradients = [wrap(view, bucket._flat.device) for view in bucket._flat.views]
        with self._updating:
            self._zero.update_early(bucket.parameters(), gradients)

    def _end(self) -> None:
        seen, self._seen, self._backward = self._seen, [], None
        params = [param for bucket, _ in seen for param in bucket.parameters()]
        if self._at_end:
            params = [param for param in params if param._grad is not None]
            self._zero.update_early(params, [param._grad for param in params if param._grad is not None])
        self._zero.finish_early(params)


def _check_kinds(ddp: Any, zero: Any) -> None:
    if not isinstance(ddp, DistributedDataParallel):
        raise UsageTypeError(f"hook_with_zero_step: ddp: expected a DistributedDataParallel, got {type(ddp).__name__}")
    if not callable(getattr(zero, "begin_early", None)):
        raise UsageTypeError(
            "hook_with_zero_step: zero: expected a ZeroRedundancyOptimizer(..., overlap_with_ddp=True), got "
            f"{type(zero).__name__}"
        )


def _check_parameters(named: Sequence[tuple[str, Tensor]], zero: EarlyOptimizer) -> None:
    wrapped = {id(param): name for name, param in named}
    divided = [param for group in zero.param_groups for param in group["params"]]
    stray = [number for number, param in enumerate(divided) if param.requires_grad and id(param) not in wrapped]
    if stray:
        raise UsageError(
            f"hook_with_zero_step: parameters {stray} of the optimizer are not among those that `ddp` reduces, so they "
            "would never be updated; give the optimizer ddp.parameters()"
        )


def _runs(params: Sequence[Tensor], cap_bytes: int) -> list[list[Tensor]]:
    """Consecutive parameters, from the last one on, of about `cap_bytes` each: about what buckets hold."""
    runs: list[list[Tensor]] = [[]]
    held = 0
    for param in reversed(params):
        if held >= cap_bytes:
            runs.append([])
            held = 0
        runs[-1].append(param)
        held += param.numel() * param.element_size()
    return [run for run in runs if run]
