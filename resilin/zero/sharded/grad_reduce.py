"""From whole gradients to this rank's range of their mean, while backward runs.

    gradient ready ─► into its unit's row ─► unit complete: its sum starts ─► end of backward: pieces' gradients

What is summed, and when it is all there, is the `Way`: `reduce_scatter.py` (over ranks), `fixed_shards.py`.

In stage 3 gradients are written over the parameters themselves, which nobody reads any more in this backward: so a unit
takes its memory once, not twice. Where somebody still looks there (a view that is not known of), they get their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any, NoReturn, Protocol

import resilin.distributed as dist
from resilin._base.clock import SYSTEM
from resilin.core.autograd.grad_mode import mode
from resilin.core.state.hooks import RemovableHandle, add_hook
from resilin.core.tensor import Tensor
from resilin.distributed.agreement.refuse import refuse
from resilin.zero.sharded.buffer_pool import Slab
from resilin.zero.sharded.unit import Unit
from resilin.zero.sharded.unshard import Fetcher

Array = Any
_NAMES_SHOWN = 8


class Way(Protocol):
    """How rows of whole gradients become this rank's range of their sum."""

    def expect(self) -> str:
        """Why no gradient may come now; empty: it may."""

    def start(self, unit: Unit, given: Array, home: bool) -> dist.Work | None:
        """Sum `given`, the whole row of `unit`, which may be overwritten. Returns what reads it until it ends.

        home: the row is on the device of the pieces.
        """

    def finish(self) -> bool:
        """A backward ends: collect its sums. Whether the pieces have their gradients now."""

    def give_up(self) -> None:
        """The backward, or the step, died half-way: what was under way is dropped, and waited for by nobody."""


class Reducing:
    """Follows the backwards of one module. Main thread only; collectives run on the group's worker thread.

    find_unused:  parameters without a gradient count as zero.
    reduce_dtype: what gradients are summed in; None: their own.
    """

    def __init__(self, fetcher: Fetcher, way: Way, *, find_unused: bool, reduce_dtype: Any) -> None:
        self._fetcher, self._units, self._way = fetcher, fetcher.units, way
        self._find_unused, self._reduce_dtype = find_unused, reduce_dtype
        self.sync = True  # whether the gradients of the last forward are reduced
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
        refused = self._way.expect()
        if refused:
            self._refuse(refused)
        grad = self._taken(unit, number)
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
        self._put(unit, number, grad._array)
        del grad
        if unit.is_complete():
            self._complete(unit)

    @staticmethod
    def _taken(unit: Unit, number: int) -> Tensor | None:
        param = unit.params[number]
        grad, param._grad = param._grad, None
        return grad

    def _put(self, unit: Unit, number: int, gradient: Array) -> None:
        if gradient.shape != unit.shapes[number] or gradient.dtype != unit.here_dtype:
            self._refuse(
                f"the gradient of {unit.names[number]} has shape {gradient.shape} and dtype {gradient.dtype}, expected "
                f"{unit.shapes[number]} and {unit.here_dtype}"
            )
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
        work = self._way.start(unit, given, home)
        slab.work = work if given is row else None
        if own:
            self._fetcher.slabs.give(slab)
        unit.gradients, unit.ready, unit.reduced = None, set(), True

    # ---- the end of a backward -------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if not self.sync:
            return
        if not any(unit.reduced or unit.ready for unit in self._units):
            return  # it passed gradients through, but got none of its own
        missing = [unit for unit in reversed(self._units) if unit.expected() and not unit.reduced]
        if missing and not self._find_unused:
            self._refuse_unused(missing)
        for unit in missing:
            self._bring_accumulated(unit)
            self._reduce(unit)
        start = SYSTEM.monotonic()
        complete = self._way.finish()
        self.wait_s += SYSTEM.monotonic() - start
        self.backwards += 1
        self._begin_again()
        if complete and self._fetcher.keep:
            self._fetcher.stale()

    def _bring_accumulated(self, unit: Unit) -> None:
        """Gradients from `no_sync()` of parameters that the backward which reduces did not use."""
        for number in unit.expected() - unit.ready:
            grad = self._taken(unit, number)
            if grad is not None:
                self._put(unit, number, grad._array)

    def _begin_again(self) -> None:
        self._turn = len(self._units) - 1
        for unit in self._units:
            unit.begin_again()

    # ---- what goes wrong -------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        self._way.give_up()
        self._begin_again()

    def _refuse(self, what: str) -> NoReturn:
        refuse(self._group, "zero.shard", what)

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
