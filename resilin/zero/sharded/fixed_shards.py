"""Fixed shards: gradients summed along one binary tree over shard numbers, each rank its range of them.

    round 0    rank 0: shard 0   rank 1: shard 1   rank 2: shard 2     V = 8 shards, W = 3 ranks
    round 1            shard 3           shard 4           shard 5
    round 2            shard 6           shard 7           repeats     all compute as often, so all gather alike

    unit complete ─► row x weight ─► all-to-all: each rank gets its range of the round's rows, in order of their shards
                 ─► into the tree of its range ─► last round: the root is the pieces' gradients

A node of the tree is a range long, and at most about log2 V are held: so gradients stay divided. Sums do not depend on
who computed a shard, nor on how a row is cut, because every element is summed by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import resilin.distributed as dist
from resilin._base.shard_ranges import turns_of
from resilin.core.autograd.grad_mode import mode
from resilin.core.tensor import Tensor, wrap
from resilin.distributed.agreement.refuse import refuse
from resilin.distributed.wire import shard_tree
from resilin.errors import UsageError
from resilin.nn import Module
from resilin.shards import block
from resilin.shards.block import Shard
from resilin.shards.buffers import Row, ShardBuffers
from resilin.shards.progress import Progress
from resilin.shards.tree_sum import TreeSum, put
from resilin.zero.sharded.buffer_pool import Slab
from resilin.zero.sharded.unit import Unit
from resilin.zero.sharded.unshard import Fetcher

Array = Any


class _Range:
    """Memory for one node of a unit's tree."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array


class _Coming(NamedTuple):
    """A round's rows of one unit on their way."""

    unit: Unit
    work: dist.Work
    rows: Array  # this rank's range of each, one after the other


class Rounds:
    """See `reducing.Way` and `shards.block.Sharder`. Main thread only."""

    def __init__(self, module: Module, fetcher: Fetcher, shards: int) -> None:
        self.shards = shards
        self._module, self._fetcher = module, fetcher
        self._buffers: ShardBuffers | None = None
        self._of: dist.ProcessGroup | None = None  # the group that buffers are summed in
        self._course = Progress(
            "ShardedModule.shard",
            shards,
            "enter all of `plan.shards` in order, and give the sampler and zero.shard the same number of shards",
        )
        self._shard: Shard | None = None  # whose block is open
        self._ran = False  # whether its backward has ended
        self._lost = False  # whether an error has dropped the sums of the step whose block is open
        self._trained: list[frozenset[int]] = []  # by unit, as the step began
        self._trees: dict[int, TreeSum[_Range]] = {}  # by unit
        self._coming: _Coming | None = None
        self._room: Slab | None = None  # where rows come in, one unit after the other
        self.steps_in_gradients: set[int] = set()
        """The sampler's steps that the gradients are summed over: more than one when they were not zeroed."""

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks."""
        assert self._fetcher.group is not None, "no forward runs without a group"
        return self._fetcher.group

    def check_forward(self, training: bool) -> None:
        """UsageError for a forward that records gradients of no shard."""
        if mode.grad and training and self._shard is None:
            raise UsageError(
                "zero.shard(..., shards=...): a forward that records gradients needs `with model.shard(shard):` around "
                "it; evaluate under no_grad() or in eval mode"
            )

    def check_complete(self, what: str) -> None:
        """UsageError when some of the step's shards are still to come: gradients are not there before the last one."""
        self._course.check_complete(what, inside=self._shard is not None)

    # ---- blocks ----------------------------------------------------------------------------------------------------

    def enter(self, shard: Shard) -> None:
        """See Sharder."""
        if self._shard is not None:
            raise UsageError(f"shard {shard.number} opened inside the block of shard {self._shard.number}")
        group = self.group
        if self._course.begins:
            block.check_world("zero.shard", self.shards, group.size())
        if not getattr(shard, "in_rounds", False):
            raise UsageError(
                "ShardedModule.shard: the shard was not dealt out in rounds, so ranks would compute different numbers "
                "of shards, and wait for each other's parameters; make the sampler with "
                f"ElasticSampler(..., shards={self.shards}, in_rounds=True)"
            )
        try:
            self._course.enter(shard, turns_of(group.rank(), group.size(), self.shards), group)
        except UsageError:
            self.give_up()
            raise
        if self._course.begins:
            self._begin_step(shard.step)
        assert self._buffers is not None, "made as the step began"
        self._buffers.enter()
        self._shard, self._ran = shard, False

    def _begin_step(self, step: int) -> None:
        group = self.group
        self._trees, self._lost = {}, False
        self._trained = [unit.trained() for unit in self._fetcher.units]
        self.steps_in_gradients = {*(self.steps_in_gradients if self._carries() else ()), step}
        if self._of is not group:
            self._buffers = ShardBuffers(self._module, group, lambda make: RoundSum(make, self.shards, group))
            self._of = group
        assert self._buffers is not None, "made for this group"
        self._buffers.begin()

    def _carries(self) -> bool:
        """Whether pieces have gradients of steps before, on any rank."""
        held = [piece._grad for unit in self._fetcher.units for piece in unit.pieces if piece._grad is not None]
        if not held:
            return False
        found = np.array([any(bool(grad._array.any()) for grad in held)], np.uint8)
        dist.all_reduce(Tensor._wrap(found), op=dist.ReduceOp.MAX, group=self.group)
        return bool(found[0])

    def leave(self, shard: Shard) -> None:
        """See Sharder."""
        if self._lost:
            raise UsageError(self._lost_words(shard))
        if not self._ran:
            what = f"shard {shard.number} has {len(shard)} samples, but no backward ran inside its block; "
            if shard.weight:
                refuse(self.group, "zero.shard", what + "its gradient would be missing on every rank")
            refuse(
                self.group,
                "zero.shard",
                what + "it repeats shard 0 and counts for nothing, but needs its backward as the others do, because "
                "ranks gather and reduce together: leave `shard.counts` to zero.shard",
            )
        assert self._buffers is not None, "made as the step began"
        self._buffers.leave(shard.number, shard.weight, ran=shard.weight > 0)
        if self._course.ends:
            self._buffers.finish()
        self._course.advance()
        self._shard = None

    def abandon(self, left: bool = False) -> None:
        """See Sharder."""
        self.give_up(left)
        self._shard, self._lost = None, False

    # ---- a backward ------------------------------------------------------------------------------------------------

    def expect(self) -> str:
        """See Way."""
        shard = self._shard
        if shard is None:
            return (
                "backward outside of `with model.shard(shard):` (zero.shard with shards); the gradient would belong to "
                "no shard"
            )
        if self._lost:
            return self._lost_words(shard)
        if self._ran:
            return f"shard {shard.number}: a second backward; sum the losses and call backward once"
        return ""

    def start(self, unit: Unit, given: Array, home: bool) -> dist.Work | None:
        """See Way."""
        shard, group = self._shard, self.group
        assert shard is not None, "asked in `expect`"
        if unit.trained() != self._trained[unit.index]:
            refuse(
                group,
                "zero.shard",
                f"requires_grad of a parameter of unit {unit.name or '(root)'} was changed between two shards of a "
                "step; change it between steps",
            )
        self._collect()
        if shard.weight:
            given *= given.dtype.type(shard.weight)
        else:
            given[...] = 0  # the mean over no samples is NaN, and NaN times nothing is not nothing
        if group.size() == 1:
            self._add(unit, given[: unit.share])
            return None
        live = self._live()
        rows = self._rows(unit, given.dtype, live * unit.share)
        sends = group.rank() < live
        work = dist.all_to_all_single(
            unit.tensor(rows, home),
            unit.tensor(given if sends else given[:0], home),
            [unit.share if rank < live else 0 for rank in range(group.size())],
            [unit.share if sends else 0] * group.size(),
            group=group,
            async_op=True,
        )
        assert work is not None, "async_op gives a Work"
        self._coming = _Coming(unit, work, rows)
        return work

    def _live(self) -> int:
        """How many ranks have a shard in this round; the others repeat one."""
        world = self.group.size()
        return min(world, self.shards - self._course.done * world)

    def _rows(self, unit: Unit, dtype: Any, numel: int) -> Array:
        """Memory for what comes of one unit: that of the one before, which its work may hold on to."""
        if self._room is None or self._room.memory.nbytes < numel * dtype.itemsize:
            longest = max(each.length for each in self._fetcher.units)
            self._room = Slab(unit.home_dev.xp.empty(longest * dtype.itemsize, "uint8"))
        return self._room.array(dtype, numel)

    def _collect(self) -> None:
        """Put what is on its way into its tree. One unit at a time is: what comes takes as much as a whole row."""
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.work.wait()
            self._add(coming.unit, coming.rows)

    def _add(self, unit: Unit, rows: Array) -> None:
        partials = self._tree(unit, rows.dtype)
        first = self._course.done * self.group.size()
        for number in range(len(rows) // unit.share):
            into, fresh = partials.open(first + number)
            _put(into.array, rows[number * unit.share : (number + 1) * unit.share], fresh)
            partials.close(first + number)

    def _tree(self, unit: Unit, dtype: Any) -> TreeSum[_Range]:
        if unit.index not in self._trees:
            self._trees[unit.index] = TreeSum(
                shard_tree.plan(self.shards, 1), 0, lambda: _Range(unit.home_dev.xp.empty(unit.share, dtype))
            )
        return self._trees[unit.index]

    def finish(self) -> bool:
        """See Way."""
        self._collect()
        self._room, self._ran = None, True
        if not self._course.ends:
            return False
        trees, self._trees = self._trees, {}
        for unit in self._fetcher.units:
            partials = trees.pop(unit.index, None)
            if partials is not None:
                _deliver(unit, partials.steal().array)
        return True

    def give_up(self, left: bool = False) -> None:
        """See Way, and Sharder for `left`."""
        self._coming = self._room = None
        self._lost = self._shard is not None
        self._trees = {}
        self._course.restart(left)
        if self._buffers is not None:
            self._buffers.abandon()

    def _lost_words(self, shard: Shard) -> str:
        return (
            f"shard {shard.number}: an error has dropped the sums of this step; let it leave the block, and begin the "
            "step again with its first shard"
        )


def _put(into: Array, part: Array, fresh: bool) -> None:
    if fresh:
        into[...] = part
    else:
        into += part


def _deliver(unit: Unit, total: Array) -> None:
    """Make a finished sum the gradients of the unit's pieces, or add it to what they have."""
    if total.dtype != unit.dtype:
        total = total.astype(unit.dtype)
    for piece, part in zip(unit.pieces, unit.spread(total), strict=True):
        if not piece._rg:
            continue
        if piece._grad is None:
            piece._grad = wrap(part, unit.home_dev)
        else:  # as DistributedDataParallel adds: a negative zero stays one beside nothing
            before = piece._grad._array
            before[...] = unit.home_dev.xp.where(before != 0, part + before, part)
            piece._grad._bump()


class RoundSum:
    """A `shards.buffers.Sum` where shards were dealt out in rounds: every rank sees all changes, and sums them."""

    def __init__(self, make: Callable[[], Row], shards: int, group: dist.ProcessGroup) -> None:
        self._shards, self._group = shards, group
        self._mine = make()
        self._partials = TreeSum(shard_tree.plan(shards, 1), 0, make)

    def add(self, shard: int, weight: float, changes: Sequence[Array]) -> None:
        """See Sum. A collective."""
        for view, change in zip(self._mine.views, changes, strict=True):
            put(view, change, weight, fresh=True)
        mine, world = self._mine.array, self._group.size()
        every = mine[None]
        if world > 1:
            place = self._mine.tensor._dev
            every = place.xp.empty((world, mine.size), mine.dtype)
            dist.all_gather_into_tensor(wrap(every.reshape(-1), place), self._mine.tensor, group=self._group)
        first = shard - self._group.rank()
        for number, row in enumerate(every[: self._shards - first], first):
            into, fresh = self._partials.open(number)
            _put(into.array, row, fresh)
            self._partials.close(number)

    def total(self) -> Row:
        """See Sum."""
        total = self._partials.steal()
        self._partials.give(total)  # it stays as it is until the next shard begins
        return total

    def clear(self, reuse: bool) -> None:
        """See Sum."""
        self._partials.clear(reuse)
