"""Fixed-shard mode: gradients and float buffers summed along one binary tree over shard numbers, for the same bits in
any world.

    shard 0   backward ──> gradient x weight ──┐
    shard 1   backward ──> gradient x weight ──┴─ [0,2) ──┐
    shard 2   ...                                         ├── bucket full ──> dist.tree_all_reduce ──> gradients
    (peers' shards)                           [3,4) ──────┘

A rank sums the subtrees it owns as they become complete, so at most log2 V partial sums per bucket are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import resilin.distributed as dist
from resilin._base.clock import SYSTEM
from resilin.core.autograd import engine
from resilin.core.kernels.common import array_namespace
from resilin.core.ops.lazy_gradients import Product
from resilin.core.tensor import Tensor, wrap
from resilin.ddp import early_step_guard, errors, open_blocks
from resilin.ddp.buckets import BucketSpec
from resilin.ddp.flat_buffer import Array, Flat, offer_products
from resilin.distributed.wire import shard_tree
from resilin.distributed.wire.shard_tree import Plan
from resilin.errors import UsageError
from resilin.shards import block
from resilin.shards.block import Shard
from resilin.shards.buffers import RunSum, ShardBuffers
from resilin.shards.progress import Progress
from resilin.shards.tree_sum import TreeSum, put


class _Bucket:
    """One bucket: the partial sums, where the open shard's gradients go, and the result."""

    def __init__(self, spec: BucketSpec, params: Sequence[Tensor], plan: Plan, rank: int) -> None:
        self.spec = spec
        self.partials = TreeSum(plan, rank, lambda: Flat(spec, params))
        self.work: Flat | None = None  # where the open shard's gradients go, until they are all there
        self.fresh = True  # whether `work` holds no other shard's sum
        self.out: Flat | None = None  # the last step's result: the parameters' gradients lie in it
        self.left = 0
        self.pending: Any = None

    def settle(self) -> Flat:
        """The finished sum."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None
        assert self.out is not None, "a bucket is settled after it was completed"
        self.partials.clear()
        return self.out


class ShardReducer:
    """The state of one wrapper's steps in fixed-shard mode. Main thread only."""

    def __init__(
        self,
        module: Any,
        named: Sequence[tuple[str, Tensor]],
        specs: Sequence[BucketSpec],
        group: dist.ProcessGroup,
        shards: int,
        find_unused: bool,
    ) -> None:
        rank, world_size = group.rank(), group.size()
        block.check_world("DistributedDataParallel", shards, world_size)
        block.check_module("DistributedDataParallel", shards, module)
        self._plan = shard_tree.plan(shards, world_size)
        self._run = self._plan.run(rank)
        self._group = group
        self._blocks = open_blocks.blocks(group)
        self._find_unused = find_unused
        self._named = list(named)
        self._kinds = [(name, param._array.dtype, param._array.shape) for name, param in named]
        self._params = [param for _, param in named]
        self.trains = frozenset(map(id, self._params))
        """See stepping.Step."""
        self._buckets = [_Bucket(spec, self._params, self._plan, rank) for spec in specs]
        self._where = {
            slot.param: (bucket, place) for bucket in self._buckets for place, slot in enumerate(bucket.spec.slots)
        }
        self._buffers = ShardBuffers(module, group, lambda make: RunSum(make, self._plan, group))
        self._progress = Progress(
            "DistributedDataParallel.shard",
            shards,
            "enter all of `plan.shards` in order, and give the sampler and DistributedDataParallel the same number of "
            "shards",
        )
        self._carry: dict[int, Array] = {}  # gradients from before the step, when they were not zeroed
        self._shard: Shard | None = None  # the one whose block is open
        self._ready: set[int] = set()
        self._taken: set[int] = set()  # of these, whose gradient `on_product` has put into the sum
        self._done = False  # whether the open shard's backward has run
        self._delivered = False  # whether the step's sums are the parameters' gradients
        self._running = False
        self._next = 0  # the bucket to start next
        self.steps_in_gradients: set[int] = set()
        """The sampler's steps that the gradients are summed over: more than one when they were not zeroed."""
        self._steps = 0
        self._wait_s = 0.0
        offer_products(self._params, self)

    @property
    def active(self) -> bool:
        """Whether a shard's block is open."""
        return self._shard is not None

    @property
    def past_backward(self) -> bool:
        """See nesting.Block."""
        return self._done

    def enter(self, shard: Shard) -> None:
        """See Sharder."""
        if self._shard is not None:
            raise UsageError(f"shard {shard.number} opened inside the block of shard {self._shard.number}")
        if getattr(shard, "in_rounds", False):
            raise UsageError(
                "DistributedDataParallel.shard: the shard comes from an ElasticSampler(..., in_rounds=True), which is "
                "for zero.shard(..., shards=V); leave in_rounds out, so that each rank has one run of shards"
            )
        try:
            self._progress.enter(shard, self._run, self._group)
        except UsageError:
            self.drop()
            raise
        if self._blocks and self._blocks[-1].past_backward:
            errors.refuse(
                self._group,
                f", shard {shard.number}",
                "its block was opened inside that of another module, after the backward there. A rank without samples "
                "has no backward, and would sum the two modules in another order: open both blocks before it, or one "
                "after the other",
            )
        if self._progress.begins:
            self._begin_step(shard.step)
        self._buffers.enter()
        self._shard = shard
        self._blocks.append(self)
        self._ready, self._taken = set(), set()
        self._done = self._running = False
        for bucket in self._buckets:
            bucket.left = len(bucket.spec.slots)
            bucket.work, bucket.fresh = bucket.partials.open(shard.number)
        for param in self._params:
            param._grad = None

    def _begin_step(self, step: int) -> None:
        self._carry = {
            number: param._grad._array.copy()
            for number, param in enumerate(self._params)
            if param._grad is not None and param._grad._array.any()
        }
        self.steps_in_gradients = {*(self.steps_in_gradients if self._carry else ()), step}
        self._next, self._delivered = 0, False
        early_step_guard.begun(self)
        for bucket in self._buckets:
            if bucket.out is not None:
                bucket.partials.give(bucket.out)
                bucket.out = None
        self._buffers.begin()

    # ------------------------------------------------------------------ backward

    def on_product(self, number: int, product: Product) -> bool:
        """Multiply the gradient of parameter `number` straight into its sum. False: it is to come to `on_ready`."""
        shard, (_, dtype, shape), (bucket, place) = self._shard, self._kinds[number], self._where[number]
        if shard is None or self._done or shard.weight == 0 or number in self._taken or bucket.work is None:
            return False
        if product.dtype != dtype or product.shape != shape:
            return False
        if not product.put(bucket.work.views[place], shard.weight, bucket.fresh):
            return False
        self._taken.add(number)
        return True

    def on_ready(self, number: int) -> None:
        """The gradient of parameter `number` is final for the open shard's backward."""
        if self._shard is None:
            raise UsageError(
                "DistributedDataParallel(shards=...): backward outside of `with model.shard(shard):`; the gradient "
                "would belong to no shard"
            )
        if self._done:
            what = "a second backward; sum the losses and call backward once"
            errors.refuse(self._group, f", shard {self._shard.number}", what)
        if not self._running:
            self._running = True
            engine.queue_callback(self._finish_backward, outermost=True)
        param = self._params[number]
        grad, param._grad = param._grad, None  # its memory is free for the next gradient
        name, dtype, shape = self._kinds[number]
        errors.check_gradient(grad, shape, dtype, self._group, name)
        if number in self._ready:
            errors.refuse_second(self._group, name)
        if number in self._taken:
            self._arrived(self._where[number][0], self._shard)
        else:
            assert grad is not None, "a post-accumulate hook runs after the gradient was accumulated"
            empty = self._shard.weight == 0  # the mean over no samples is NaN, and NaN times nothing is not nothing
            self._contribute(number, None if empty else grad._array, self._shard)
        self._ready.add(number)

    def _contribute(self, number: int, gradient: Array | None, shard: Shard) -> None:
        """Add a weighted gradient (None: zero) to the sum it belongs to."""
        bucket, place = self._where[number]
        assert bucket.work is not None, "a bucket with missing gradients is not complete"
        view = bucket.work.views[place]
        if gradient is not None:
            put(view, gradient, shard.weight, bucket.fresh)
        elif bucket.fresh:
            view[...] = 0
        else:
            view += array_namespace(view).zeros_like(view)  # a negative zero becomes positive
        self._arrived(bucket, shard)

    def _arrived(self, bucket: _Bucket, shard: Shard) -> None:
        """One more gradient of `bucket` is in its sum; the last one completes it."""
        bucket.left -= 1
        if bucket.left == 0:
            self._complete(bucket, shard)

    def _complete(self, bucket: _Bucket, shard: Shard) -> None:
        """The shard's gradients of `bucket` are all there: complete its sums, start what is full."""
        bucket.work = None
        bucket.partials.close(shard.number)
        if self._may_sum():
            self._launch_full()

    def _may_sum(self) -> bool:
        """Whether it is this module's turn to sum over the ranks."""
        return self._progress.ends and self._blocks[-1] is self

    def _launch_full(self) -> None:
        """Start the sums of the buckets that are full, in their order."""
        while self._next < len(self._buckets) and self._buckets[self._next].work is None:
            self._launch(self._buckets[self._next])
            self._next += 1

    def _launch(self, bucket: _Bucket) -> None:
        if self._plan.world_size == 1:
            bucket.out = bucket.partials.steal()
            return
        tensors = {node: flat.tensor for node, flat in bucket.partials.parts().items()}
        bucket.out = bucket.partials.take()
        bucket.pending = dist.tree_all_reduce(tensors, bucket.out.tensor, self._plan, group=self._group, async_op=True)

    def _finish_backward(self) -> None:
        shard = self._shard
        assert shard is not None, "the backward began inside the block"
        self._running, self._done = False, True
        missing = [number for number in range(len(self._params)) if number not in self._ready]
        if missing and not self._find_unused:
            errors.refuse_unused(self._group, f", shard {shard.number}", self._named, missing)
        for number in missing:
            self._contribute(number, None, shard)
        if self._may_sum():
            self._finish_step()

    def _finish_step(self) -> None:
        start = SYSTEM.monotonic()
        self._launch_full()  # what waited for a block inside this one
        self._delivered = True
        early_step_guard.ended(self)
        for bucket in self._buckets:
            out = bucket.settle()
            for slot, view in zip(bucket.spec.slots, out.views, strict=True):
                before = self._carry.pop(slot.param, None)
                if before is not None:  # added where it is not zero, so that no negative zero becomes a positive one
                    view[...] = array_namespace(view).where(before != 0, view + before, view)
                self._params[slot.param]._grad = wrap(view, out.device)
        self._steps += 1
        self._wait_s += SYSTEM.monotonic() - start

    def check_complete(self, what: str) -> None:
        """See stepping.Step."""
        self._progress.check_complete(what, inside=self._shard is not None)

    # ------------------------------------------------------------------ end of a block

    def leave(self, shard: Shard) -> None:
        """See Sharder."""
        if not self._done:
            if len(shard):
                errors.refuse(
                    self._group,
                    "",
                    f"shard {shard.number} has {len(shard)} samples, but no backward ran inside its block; its "
                    "gradient would be missing on every rank",
                )
            for number in range(len(self._params)):
                self._contribute(number, None, shard)
        if self._progress.ends and not self._delivered:
            self._finish_step()
        self._buffers.leave(shard.number, shard.weight, ran=len(shard) > 0)
        if self._progress.ends:
            self._buffers.finish()
        self._progress.advance()
        self._close()

    def abandon(self, left: bool = False) -> None:
        """See Sharder."""
        self._close()
        self.drop(left)

    def drop(self, left: bool = False) -> None:
        """Forget the step's sums: it begins again. left: see Sharder."""
        (early_step_guard.begun if left else early_step_guard.ended)(self)
        self._progress.restart(left)
        self._carry = {}
        for bucket in self._buckets:
            bucket.partials.clear(reuse=False)
            bucket.pending = bucket.out = bucket.work = None
        self._buffers.abandon()

    def _close(self) -> None:
        self._shard = None
        self._blocks.remove(self)

    def stats(self) -> dict[str, Any]:
        """Counters since construction; seconds are those that a step waited for the tree at its end."""
        return {
            "shards": self._plan.shards,
            "own_shards": list(self._run),
            "steps": self._steps,
            "bucket_bytes": [bucket.spec.nbytes for bucket in self._buckets],
            "wait_s": self._wait_s,
        }
