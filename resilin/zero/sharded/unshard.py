"""When units are here: fetched before they are used, the next one meanwhile, and dropped after.

    forward    the modules of a unit fetch it and drop it (`Fetcher.calling`); what is read beside them comes when it is
               read, and goes when the outermost forward returns
    backward   what a node reads comes; what came before it goes, but for the one that is expected next
    outside    nothing is here, and reading says so

Stage 2 (`keep`) never gives memory back: there a unit is fetched again after its pieces may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.autograd import engine
from resilin.core.autograd.function import FunctionNode
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.tape import Node
from resilin.core.state.write_log import unnoticed
from resilin.core.tensor import Tensor
from resilin.distributed.agreement import compare
from resilin.errors import UsageError
from resilin.zero.sharded.buffer_pool import BufferPool, Slab
from resilin.zero.sharded.step_consistency import Steps
from resilin.zero.sharded.unit import Unit


class Order:
    """Learns in which order units are wanted, and says which one comes next. Pure."""

    def __init__(self) -> None:
        self.known: list[int] = []
        self._at = 0

    def begin(self, guess: Sequence[int] = ()) -> None:
        """A new pass. guess: the order to expect while none is known."""
        self._at = 0
        if not self.known:
            self.known = list(guess)

    def next(self, wanted: int) -> int | None:
        """`wanted` is wanted now: what will be next, if that is known."""
        if self.known[self._at : self._at + 1] != [wanted]:
            self.known[self._at :] = [wanted]  # another way than before: learned anew from here
        self._at += 1
        return self.known[self._at] if self._at < len(self.known) else None


class _Frame:
    """Is told of the nodes of a forward: views of parameters that they keep go and come with their unit."""

    def __init__(self, fetcher: Fetcher, outer: Any) -> None:
        self._fetcher, self.outer = fetcher, outer

    def recorded(self, node: Any) -> None:
        """A node was made."""
        if isinstance(node, FunctionNode):
            self._fetcher.track(node.ctx._saved)
        elif isinstance(node, Node) and node.saved is not None:
            self._fetcher.track(node.saved)
        if self.outer is not None:
            self.outer.recorded(node)


class Fetcher:
    """Brings and drops the units of one module. Main thread only; all-gathers run on the group's worker thread.

    keep:   stage 2.
    begin:  called when the outermost forward begins outside of a backward.
    end:    called at the end of each outermost backward that used a unit.
    """

    def __init__(self, units: Sequence[Unit], group: dist.ProcessGroup | None, keep: bool) -> None:
        self.units, self.group, self.keep = list(units), group, keep
        self.forward, self.backward = Order(), Order()
        self.slabs = BufferPool(units[0].dev)
        self.steps = Steps(self.units)  # since the last unit was fetched
        self.begin: Callable[[], None] = _nothing
        self.end: Callable[[], None] = _nothing
        self.failed: Callable[[], None] = _nothing
        self.open = False  # inside gathered()
        self.fetched = 0
        self.depth = 0  # calls of forward that are running
        self._run: Any = None  # the backward that was noticed
        self._frame: _Frame | None = None
        self._kept: dict[int, Slab] = {}  # stage 2: each unit's memory
        self._lying: dict[int, Unit] = {}  # by id of memory: who came to lie there last
        for unit in units:
            unit.fetch = self.bring

    # ---- passes ----------------------------------------------------------------------------------------------------

    def calling(self, units: Sequence[Unit], call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """`call(*args, **kwargs)`, the forward of a module, with `units` here."""
        self._enter()
        for unit in units:
            unit.active += 1
        try:
            for unit in units:
                self.want(unit)
            return call(*args, **kwargs)
        finally:
            for unit in units:
                unit.active = max(0, unit.active - 1)
            self._leave(units)

    def _enter(self) -> None:
        if self.open:
            raise UsageError("a sharded module cannot run inside `with model.gathered()`: leave the block first")
        if self.depth == 0:
            if engine.outermost() is None:
                if self._run is not None:  # an earlier backward died half-way
                    self.reset()
                self.forward.begin()
                self.begin()
            if mode.grad and not self.keep:
                mode.frame = self._frame = _Frame(self, mode.frame)
        self.depth += 1

    def _leave(self, units: Sequence[Unit]) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth == 0 and self._frame is not None:
            mode.frame, self._frame = self._frame.outer, None
        if self.keep or engine.outermost() is not None:
            return
        for unit in units if self.depth else self.units:
            if not unit.active:
                self.drop(unit)
        if self.depth == 0:
            self.slabs.clear()
            self._lying.clear()

    def notice_backward(self) -> None:
        """Something of this module happens in the backward that runs: have `end` called at its end."""
        run = engine.outermost()
        if run is None or run is self._run:
            return
        if self._run is not None:
            self.reset()
        self._run = run
        self.backward.begin(self.forward.known[::-1])
        run.callbacks.append(self._end_of_backward)

    def _end_of_backward(self) -> None:
        try:
            self.end()
            for unit in () if self.keep else self.units:
                if not unit.active:  # a forward may go on in which this backward ran
                    self.drop(unit)
        except BaseException:
            self.reset()
            raise
        self._run = None
        self.slabs.clear()

    # ---- one unit --------------------------------------------------------------------------------------------------

    def bring(self, unit: Unit, name: str) -> None:
        """Parameter `name` of `unit` is read while it is away."""
        if self.depth == 0 and engine.outermost() is None:
            how = "2: not all of it is up to date" if self.keep else "3: it is not here"
            raise UsageError(
                f"parameter {name!r} of shape {unit.shapes[unit.names.index(name)]} was read outside of forward and "
                f"backward; it is divided among the {unit.world} ranks (zero.shard, stage {how}). Read it inside `with "
                "model.gathered():`, from model.state_dict(), or this rank's piece from model.named_parameters()"
            )
        unit.here = False  # a part of it may still be
        self.want(unit)

    def want(self, unit: Unit) -> None:
        """Return when `unit` is here. Raises what its all-gather raised; then nothing is here."""
        if unit.here:
            return
        in_backward = engine.outermost() is not None
        try:
            if self.keep:
                self._begin(unit)
                self._arrive(unit)
                return
            if in_backward:
                self.notice_backward()
            following = (self.backward if in_backward else self.forward).next(unit.index)
            soon = None if following is None else self.units[following]
            if in_backward:
                self._evict(unit, soon)
            self._begin(unit)
            if soon is not None and not soon.here and soon is not unit:
                self._begin(soon)
            self._arrive(unit)
        except BaseException:
            self.reset()
            raise

    def prepare_all(self) -> None:
        """Stage 2: start to fetch all units, in the order of registration; each is waited for when it is read."""
        for unit in self.units:
            if unit.here:
                unit.follow_pieces()  # frozen, maybe, since it came
            else:
                self._begin(unit)

    def _begin(self, unit: Unit) -> None:
        """Start to fetch `unit`."""
        if unit.coming is not None or unit.here:
            return
        slab = self._slab_of(unit)
        row = unit.shard
        if unit.here_dtype != unit.dtype:
            row = row.astype(unit.here_dtype)
        if unit.home_dev is unit.dev:
            into, home = slab.array(unit.here_dtype, unit.length), False
        else:  # pieces are kept elsewhere: they are gathered there
            unit.host = into = unit.home_dev.xp.empty(unit.length, unit.here_dtype)
            home = True
        unit.slab = slab
        assert self.group is not None, "no forward runs without a group"
        with unnoticed():  # by a checkpoint in which it is fetched: no state, but memory that comes and goes
            unit.coming = compare.all_gather_into_tensor(
                unit.tensor(into, home), unit.tensor(row, home), self.steps.take([unit]), self.group, async_op=True
            )
        self.fetched += 1

    def _slab_of(self, unit: Unit) -> Slab:
        if not self.keep:
            return self.slabs.take(unit.nbytes, queued=unit.home_dev is unit.dev)
        if unit.index not in self._kept:
            self._kept[unit.index] = Slab(unit.dev.xp.empty(unit.nbytes, "uint8"))
        return self._kept[unit.index]

    def keep_in(self, unit: Unit, slab: Slab) -> None:
        """Stage 2: `unit` is gathered in `slab`, of which its pieces may be a part."""
        self._kept[unit.index] = slab

    def _arrive(self, unit: Unit) -> None:
        work, slab = unit.coming, unit.slab
        assert work is not None, "it was begun"
        assert slab is not None, "it was begun"
        work.wait()
        unit.coming = None
        if unit.host is not None:
            copied = unit.dev.backend.from_host(unit.host, unit.dev.index or 0)
            slab.array(unit.here_dtype, unit.length)[...] = copied
            unit.host = None
        unit.appear(slab)
        if type(slab.memory) is np.ndarray:  # elsewhere nodes hold on to the memory of views
            self._lying[id(slab.memory)] = unit

    def _evict(self, unit: Unit, soon: Unit | None) -> None:
        for other in self.units:
            if other is not unit and other is not soon and not other.active:
                self.drop(other)

    def drop(self, unit: Unit) -> None:
        """Send the parameters of `unit` away and give their memory back, unless gradients lie in it."""
        if unit.coming is not None:  # it was expected, and not used
            self._arrive(unit)
        if unit.slab is None:
            return
        slab = unit.vanish()
        if slab is not None and slab is not unit.gradients:
            self.slabs.give(slab)

    def stale(self) -> None:
        """Pieces may have changed: what was fetched before is not used again."""
        for unit in self.units:
            if unit.coming is not None:
                unit.coming.get_future().settled_within(None)
                unit.coming = None
            if unit.here or unit.slab is not None:
                unit.vanish()

    def track(self, saved: Sequence[Any]) -> None:
        """A graph keeps these values: those that look into a unit's slab are to go with it."""
        for value in saved:
            if type(value) is Tensor:
                base = getattr(value._array, "base", None)
                unit = self._lying.get(id(base))
                if unit is not None and unit.here and unit.slab is not None and unit.slab.memory is base:
                    unit.track(value)

    def use(self, group: dist.ProcessGroup) -> None:
        """Go on with another group."""
        self.reset()
        self.steps.forget()
        self.group = group
        self._kept = {} if group.size() != self.units[0].world else self._kept

    def reset(self) -> None:
        """Give up what is under way: nothing is here afterwards, and no gradient waits."""
        if self._run is not None:
            self._run = None
        for unit in self.units:
            active = unit.active
            unit.forget()
            unit.active = active
            unit.vanish()
        self.failed()
        self.slabs = BufferPool(self.units[0].dev)


def _nothing() -> None:
    """What is to be done when nobody asked for anything."""
