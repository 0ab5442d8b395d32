"""From whole gradients to this rank's range of their mean, while backward runs.

    gradient ready ─► into its unit's row ─► unit complete: reduce-scatter starts ─► end of backward: pieces' gradients

In stage 3 gradients are written over the parameters themselves, which nobody reads any more in this backward: so a unit
takes its memory once, not twice. Where somebody still looks there (a view that is not known of), they get their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np

import resilin.dist as dist
from resilin._base.clock import SYSTEM
from resilin.core.autograd.grad_mode import mode
from resilin.core.state.hooks import RemovableHandle, add_hook
from resilin.core.tensor import Tensor, wrap
from resilin.errors import UsageError
from resilin.zero.sharded.fetching import Fetcher
from resilin.zero.sharded.slabs import Slab
from resilin.zero.sharded.unit import Unit

Array = Any
_NAMES_SHOWN = 8


class _Pending(NamedTuple):
    unit: Unit
    work: dist.Work
    mean: Array  # this rank's range
    fired: frozenset[int]  # the parameters that had a gradient here


class Reducing:
    """Follows the backwards of one module. Main thread only; reduce-scatters run on the group's worker thread.

    find_unused:  parameters without a gradient count as zero, and keep none where no rank had one.
    reduce_dtype: what gradients are summed in; None: their own.
    """

    def __init__(self, fetcher: Fetcher, *, find_unused: bool, reduce_dtype: Any) -> None:
        self._fetcher, self._units = fetcher, fetcher.units
        self._find_unused, self._reduce_dtype = find_unused, reduce_dtype
        self.sync = True  # whether the gradients of the last forward are reduced
        self._pending: list[_Pending] = []
        self._turn = len(self._units) - 1  # stage 2: the unit to reduce next
        self.backwards, self.wait_s = 0, 0.0
        fetcher.end, fetcher.failed = self._finish, self._give_up

    @property
    def _group(self) -> dist.ProcessGroup:
        assert self._fetcher.group is not None, "no forward runs without a group"
        return self._fetcher.group

    def listen(self) -> Callable[[], None]:
        """Follow the parameters' gradients. Returns the function that stops it."""
        handles: list[RemovableHandle] = []
        weak = weakref.ref(self)
        for unit in self._units:
            for number, param in enumerate(unit.params):
                handles.append(add_hook(param._own_hooks().post, _hook(weak, weakref.ref(unit), number)))

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    # ---- one gradient ----------------------------------------------------------------------------------------------

    def on_ready(self, unit: Unit, number: int) -> None:
        """The gradient of parameter `number` of `unit` is final for this backward."""
        self._fetcher.notice_backward()
        if not self.sync:
            return  # it stays with the parameter, and the next backward that reduces adds to it
        param = unit.params[number]
        grad, param._grad = param._grad, None
        assert grad is not None, "a post-accumulate hook runs after the gradient was accumulated"
        if mode.grad:
            self._refuse(
                "backward(create_graph=True) gives no gradient of a gradient here: pieces are no functions of it. "
                "Differentiate twice with autograd.grad, or train with DistributedDataParallel"
            )
        if unit.reduced:
            self._refuse(
                f"the gradient of {unit.names[number]} was ready twice in one backward, and reduced after the first "
                "time: use checkpoint(..., use_reentrant=False)"
            )
        array = grad._array
        if array.shape != unit.shapes[number] or array.dtype != unit.here_dtype:
            self._refuse(
                f"the gradient of {unit.names[number]} has shape {array.shape} and dtype {array.dtype}, expected "
                f"{unit.shapes[number]} and {unit.here_dtype}"
            )
        self._put(unit, number, array)
        del grad, array
        if unit.is_complete():
            self._complete(unit)

    def _put(self, unit: Unit, number: int, gradient: Array) -> None:
        again = number in unit.ready
        into = self._room(unit, number)
        if again:  # in a backward inside this one, as of a reentrant checkpoint
            into += gradient
        else:
            into[...] = gradient
        unit.ready.add(number)

    def _room(self, unit: Unit, number: int) -> Array:
        """Where the gradient of parameter `number` goes."""
        own = unit.slab
        if unit.gradients is None:
            overwrite = unit.here and not self._fetcher.keep and own is not None
            unit.gradients = own if overwrite else self._fresh(unit)
        if unit.gradients is own and number not in unit.ready:
            unit.send(number)  # its value is not needed any more; who reads it all the same gets it anew
            if own is not None and own.held(unit.lookers()):
                unit.gradients = self._moved(unit, own)
        start, stop = unit.starts[number], unit.starts[number + 1]
        return self._row(unit)[start:stop].reshape(unit.shapes[number])

    def _row(self, unit: Unit) -> Array:
        assert unit.gradients is not None, "there is a gradient"
        return unit.gradients.array(unit.here_dtype, unit.length)

    def _fresh(self, unit: Unit) -> Slab:
        return self._fetcher.slabs.take(unit.nbytes, queued=False)

    def _moved(self, unit: Unit, own: Slab) -> Slab:
        """Gradients leave memory into which somebody else looks."""
        made = self._fresh(unit)
        before, after = own.array(unit.here_dtype, unit.length), made.array(unit.here_dtype, unit.length)
        for number in unit.ready:
            part = slice(unit.starts[number], unit.starts[number + 1])
            after[part] = before[part]
        return made

    # ---- one unit --------------------------------------------------------------------------------------------------

    def _complete(self, unit: Unit) -> None:
        """Reduce `unit`: in stage 3 at once, in stage 2 in one order on all ranks, whatever order they finish in."""
        if not self._fetcher.keep:
            self._reduce(unit)
            return
        while self._turn >= 0:
            following = self._units[self._turn]
            if not following.is_complete():
                return
            self._turn -= 1
            if following.expected():
                self._reduce(following)

    def _reduce(self, unit: Unit) -> None:
        slab = unit.gradients or self._fresh(unit)
        unit.gradients = slab
        row = self._row(unit)
        for number in range(len(unit.params)):
            if number not in unit.ready:
                row[unit.starts[number] : unit.starts[number + 1]] = 0
        row[unit.total :] = 0
        if not self._fetcher.keep and unit.slab is slab:
            unit.vanish()
        own = not slab.held(1)  # nobody but `row` looks there: it can be used again
        given, home = row, unit.home_dev is not unit.dev
        if home:
            given = unit.dev.backend.to_host(row)
        summed = self._reduce_dtype or given.dtype
        if summed != given.dtype:
            given = given.astype(summed)
        mean = unit.home_dev.xp.empty(unit.share, summed)
        work = dist.reduce_scatter_tensor(
            unit.tensor(mean, home), unit.tensor(given, home), op=dist.ReduceOp.AVG, group=self._group, async_op=True
        )
        assert work is not None, "async_op gives a Work"
        self._pending.append(_Pending(unit, work, mean, frozenset(unit.ready)))
        slab.work = work if given is row else None
        if own:
            self._fetcher.slabs.give(slab)
        unit.gradients, unit.ready, unit.reduced = None, set(), True

    # ---- the end of a backward -------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if not self.sync:
            return
        if not self._pending and not any(unit.ready for unit in self._units):
            return  # it passed gradients through, but got none of its own
        missing = [unit for unit in reversed(self._units) if unit.expected() and not unit.reduced]
        if missing and not self._find_unused:
            self._refuse_unused(missing)
        for unit in missing:
            self._reduce(unit)
        start = SYSTEM.monotonic()
        pending, self._pending = self._pending, []
        for one in pending:
            one.work.wait()
        used = self._used(pending) if self._find_unused else None
        for one in pending:
            self._deliver(one, used)
        self.wait_s += SYSTEM.monotonic() - start
        self.backwards += 1
        self._begin_again()
        if self._fetcher.keep:
            self._fetcher.stale()

    def _begin_again(self) -> None:
        self._turn = len(self._units) - 1
        for unit in self._units:
            unit.begin_again()

    def _used(self, pending: Collection[_Pending]) -> dict[int, Array]:
        """By unit: which of its parameters had a gradient on any rank."""
        flags = np.zeros(sum(len(unit.params) for unit in self._units), np.uint8)
        places, at = {}, 0
        for unit in self._units:
            places[unit.index] = flags[at : at + len(unit.params)]
            at += len(unit.params)
        for one in pending:
            places[one.unit.index][list(one.fired)] = 1
        dist.all_reduce(Tensor._wrap(flags), op=dist.ReduceOp.MAX, group=self._group)
        return places

    def _deliver(self, one: _Pending, used: dict[int, Array] | None) -> None:
        unit, mean = one.unit, one.mean
        if mean.dtype != unit.dtype:
            mean = mean.astype(unit.dtype)
        for number, (piece, part) in enumerate(zip(unit.pieces, unit.spread(mean), strict=True)):
            if not piece._rg or (used is not None and not used[unit.index][number]):
                continue
            if piece._grad is None:
                piece._grad = wrap(part, unit.home_dev)
            else:
                piece._grad._array += part
                piece._grad._bump()

    # ---- what goes wrong -------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        pending, self._pending = self._pending, []
        for one in pending:
            one.work.get_future().settled_within(None)
        self._begin_again()

    def _refuse(self, what: str) -> None:
        """UsageError, and the group is aborted with it: others would wait for this rank's gradients for ever."""
        error = UsageError(f"zero.shard, rank {self._group.rank()}: {what}")
        self._group.abort(error)
        raise error

    def _refuse_unused(self, units: Collection[Unit]) -> None:
        lost = [unit.names[number] for unit in units for number in sorted(unit.expected() - unit.ready)]
        shown = ", ".join(lost[:_NAMES_SHOWN]) + (", ..." if len(lost) > _NAMES_SHOWN else "")
        self._refuse(
            f"{len(lost)} parameters got no gradient in this backward: {shown}. Use them in the loss, set "
            "requires_grad=False, or shard with find_unused_parameters=True"
        )


def _hook(reducing: weakref.ref[Reducing], unit: weakref.ref[Unit], number: int) -> Callable[[Tensor], None]:
    def ready(_: Tensor) -> None:
        told, of = reducing(), unit()
        if told is not None and of is not None:
            told.on_ready(of, number)

    return ready
