"""Averages gradients over ranks while backward still runs.

forward    prepare(): which parameters will get a gradient
backward   on_ready(i) counts a bucket down ──> full: its all-reduce starts (buckets start in order on every rank)
its end    finish(): waits for all buckets; gradients are views of them, so nothing is copied

The first backward is listened to: at its end ranks agree on the order in which gradients became ready, the buckets are
made in that order, and reduced. So every collective, and every hook, sees the same buckets from the first step on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.autograd import engine
from resilin.core.tensor import Tensor
from resilin.ddp import buckets, errors
from resilin.ddp.arguments import DDPOptions
from resilin.ddp.averaging import Averaging
from resilin.ddp.first_backward import FirstBackward
from resilin.ddp.flat_buffer import Flat, Layout, specs_of
from resilin.ddp.grad_bucket import Hook
from resilin.ddp.timings import now
from resilin.ddp.unused_params import Used
from resilin.distributed.agreement import compare


class Reducer:
    """The state of one wrapper's backward passes. Main thread only; all-reduces run on the group's worker thread."""

    def __init__(
        self, named: Sequence[tuple[str, Tensor]], group: dist.ProcessGroup, options: DDPOptions, beside: bool
    ) -> None:
        self.named = list(named)
        self.reductions = 0  # so far, those for other ranks' backwards, too
        self._accumulated: set[int] = set()  # parameters with gradients of this rank alone, since the last reduction
        self._params = [param for _, param in named]
        self._averaging = Averaging(group, self._params, beside)
        self.timings = self._averaging.timings
        self._kinds = [(param._array.dtype, param._array.shape) for param in self._params]
        self._numbers = {id(param): number for number, param in enumerate(self._params)}
        self._group = group
        self._options = options
        self._find_unused = options.find_unused and not options.static
        self._first = FirstBackward(len(named))
        self._layout: Layout | None = None
        self._awaits = [1] * len(named)  # how many gradients of each parameter a backward brings
        self._used_by_any = [True] * len(named)
        self._sync = True  # whether the running step's backward reduces
        self._lead = 0  # the rank whose order of gradients counts
        self._scale = 1.0  # what means over all ranks are multiplied by
        self._once = False  # whether other ranks take part in one reduction for each forward, and no more
        self._prepared = 0  # reductions as the last forward ended
        self._graph: set[int] | None = None  # parameters in the graph; None: all of them
        self._running = False  # between the first ready gradient and the end of the backward
        self._left: list[int] = []  # per parameter: gradients that are still to come
        self._missing: list[int] = []  # per bucket: parameters that are not ready
        self._fired: set[int] = set()  # parameters that this rank brings a gradient of: from this backward, or before
        self._next = 0  # the bucket to start next
        self._used = Used([name for name, _ in named])  # looked at with skip_unused only

    @property
    def unreduced(self) -> bool:
        """Whether this rank has gradients that were accumulated here alone since the last reduction."""
        return any(self._params[number]._grad is not None for number in self._accumulated)

    @property
    def has_buckets(self) -> bool:
        """Whether a backward has reduced, or does so now: other ranks have compared their hooks with this rank's."""
        return self._layout is not None

    def set_hook(self, state: Any, hook: Hook) -> None:
        """Use `hook` instead of the averaging all-reduce."""
        self._averaging.use(state, hook)

    def refuse_hook(self, why: str) -> None:
        """This rank has refused a hook: the others hear it in the first backward that reduces."""
        self._averaging.refuse(why)

    def prepare(
        self,
        sync: bool,
        graph: set[int] | None,
        lead: int = 0,
        scale: float = 1.0,
        outputs: Sequence[Tensor] = (),
        once: bool = False,
    ) -> None:
        """A forward has run: its backward reduces if `sync`, and no second one may if `once`. `graph`: ids of the
        leaves in that of `outputs`, if searched."""
        self._sync, self._lead, self._scale = sync, lead, scale
        self._once, self._prepared = once, self.reductions
        if self._running:  # an earlier backward died half-way
            self._running = False
            self._graph = None
            self._first = FirstBackward(len(self.named))
        if graph is not None:
            numbers = {self._numbers[key] for key in graph if key in self._numbers}
            self._graph = numbers if self._graph is None else self._graph | numbers
            if not self._graph:
                self._prepare_idle(outputs)

    def reduce_next(self, sync: bool) -> None:
        """The next backward reduces, or does not, whichever forward ran last."""
        self._sync = sync

    def _lay_out(self, order: Sequence[int]) -> Layout:
        """Make the buckets."""
        options = self._options
        specs = specs_of(self.named)
        lone_bytes = self._averaging.lone_bytes()
        if options.late:
            plan = buckets.delay(specs, options.caps, order, options.late, options.until, lone_bytes)
        else:
            plan = buckets.assign(specs, options.caps, order, lone_bytes)
        layout = Layout(plan, self._params)
        if options.as_view:
            layout.make_slots(self._params)
        self._layout = layout
        return layout

    # ------------------------------------------------------------------ during backward

    def on_ready(self, number: int) -> None:
        """A gradient of parameter `number` is final for this backward."""
        if not self._sync:
            self._accumulated.add(number)
            return
        if not self._running:
            self._begin()
        grad = self._params[number]._grad
        dtype, shape = self._kinds[number]
        errors.check_gradient(grad, shape, dtype, self._group, self.named[number][0])
        left = self._left[number] - 1
        if left < 0 and (self._layout is not None or not self._options.static):
            errors.refuse_second(self._group, self.named[number][0])
        self._left[number] = left
        self._fired.add(number)
        if self._layout is None:
            self._first.on_ready(number)
            return
        self._bring(number, self._layout)
        if left == 0:
            self._count_down(number, self._layout)

    def _begin(self) -> None:
        """A backward of this rank begins to reduce."""
        if self._once and self.reductions > self._prepared:
            errors.refuse_again(self._group)
        self._start()
        engine.queue_callback(self._finish, outermost=True)

    def _start(self) -> None:
        self._running = True
        self._fired = {number for number in self._accumulated if self._params[number]._grad is not None}
        self._left = list(self._awaits)
        self._next = 0
        self._averaging.start()
        if self._layout is None:
            if not self._find_unused:
                return
            if self._group.size() > 1:
                compare.agree(self._averaging.facts(), self._group)
            self._lay_out(range(len(self._params) - 1, -1, -1))  # the first backward says little of what others use
        assert self._layout is not None
        self._missing = [len(flat.spec.slots) for flat in self._layout.flats]
        if self._find_unused and self._graph is not None:
            self._skip(set(range(len(self._params))) - self._graph, self._layout)
        elif self._options.static:
            self._skip((number for number, times in enumerate(self._awaits) if not times), self._layout)

    def _skip(self, numbers: Iterable[int], layout: Layout) -> None:
        """Count parameters that get no gradient in this backward as ready, with the gradient they have or zero."""
        for number in sorted(numbers):
            self._bring(number, layout)
            self._left[number] = 0
            self._count_down(number, layout)

    def _bring(self, number: int, layout: Layout) -> None:
        """Put the gradient of a parameter into its bucket; zero when there is none."""
        flat, place = layout.where[number]
        flat.bring(place, self._params[number], self._options.as_view)

    def _count_down(self, number: int, layout: Layout) -> None:
        self._missing[layout.where[number][0].spec.index] -= 1
        while self._next < len(layout.flats) and self._missing[self._next] == 0:
            flat = layout.flats[self._next]
            self._next += 1
            if not self._skipped(flat):
                self._averaging.launch(flat, last=self._next == len(layout.flats))

    def _skipped(self, flat: Flat) -> bool:
        """Whether a bucket is left out; a hook sees all of them."""
        if not self._options.skip_unused or self._averaging.hook is not None:
            return False
        return not any(slot.param in self._fired for slot in flat.spec.slots)

    # ------------------------------------------------------------------ its end

    def _finish(self) -> None:
        """The end of a backward: nothing of it is pending after this."""
        computed = now()
        self._running = False
        layout = self._layout or self._end_of_first(shadow=False)
        if self._next < len(layout.flats):
            missing = [number for number, left in enumerate(self._left) if left > 0]
            if not self._find_unused:
                errors.refuse_unused(self._group, "", self.named, missing)
            self._skip(missing, layout)
        self._settle(layout)
        self.timings.finish(computed)

    def _end_of_first(self, shadow: bool) -> Layout:
        """Make the buckets in the order of the first backward, and reduce them all. A collective."""
        first, static = self._first, self._options.static
        if not static and not shadow and first.missing():
            errors.refuse_unused(self._group, "", self.named, first.missing())
        order, self._used_by_any = first.agree(self._group, self._lead, static, self._averaging.facts())
        if static:
            self._awaits = first.times
        layout = self._lay_out(order)
        self._missing = [len(flat.spec.slots) for flat in layout.flats]
        self._skip(range(len(self._params)), layout)
        return layout

    def _settle(self, layout: Layout) -> None:
        """Wait for the buckets, and give gradients to the parameters that other ranks used."""
        self._graph = None
        self.reductions += 1
        self._averaging.settle(self._scale)
        if not self._options.as_view:
            for number in self._fired:
                self._give(number, layout)
        self._share(layout)
        for flat in layout.flats:
            flat.settle()
        self._accumulated = set()

    def _share(self, layout: Layout) -> None:
        """Parameters that any rank used get the mean; those that no rank used keep what they have."""
        if self._options.skip_unused:
            self._used.agree(self._fired, self._group)
            return
        used: Sequence[Any] = self._used_by_any
        if self._find_unused:
            mine = np.zeros(len(self._params), np.uint8)
            mine[list(self._fired)] = 1
            dist.all_reduce(Tensor._wrap(mine), op=dist.ReduceOp.MAX, group=self._group)
            used = mine.tolist()
        elif len(self._fired) == len(self._params):
            return
        for number, by_any in enumerate(used):
            if by_any and number not in self._fired:
                self._give(number, layout)

    def _give(self, number: int, layout: Layout) -> None:
        flat, place = layout.where[number]
        flat.give(place, self._params[number], self._options.as_view)

    # ------------------------------------------------------------------ without a backward

    def _prepare_idle(self, outputs: Sequence[Tensor]) -> None:
        """No parameter is in the graph of a forward's `outputs`: take part in the others' reduction all the same, in
        the backward if there will be one, else now."""
        hooked = [output for output in outputs if output.requires_grad]
        for output in hooked:
            output.register_hook(self._begin_idle)
        if not hooked:
            self._start()
            self._finish()

    def _begin_idle(self, _: Tensor) -> None:
        if not self._running:
            self._begin()

    def shadow(self, contributes: bool, lead: int, scale: float) -> None:
        """Take part in the reduction of a backward that other ranks run, with what gradients there are if
        `contributes`, else with zeros. The mean is this rank's gradient afterwards."""
        if self._options.skip_unused and self._used.last is None:
            errors.refuse(
                self._group,
                "",
                "this rank has had no backward yet, so it does not know what skip_all_reduce_unused_params skips",
            )
        self._sync, self._graph, self._lead, self._scale = True, None, lead, scale
        if not contributes:
            for param in self._params:
                param._grad = None
        self._start()
        computed = now()
        layout = self._layout or self._end_of_first(shadow=True)
        for number in self._used.last or ():
            self._fired.add(number)
            self._bring(number, layout)
            self._give(number, layout)
        self._skip([number for number, left in enumerate(self._left) if left > 0], layout)
        self._running = False
        self._settle(layout)
        self.timings.finish(computed)

    def stats(self) -> dict[str, Any]:
        """See `DistributedDataParallel.stats`."""
        specs = [flat.spec for flat in self._layout.flats] if self._layout else []
        return {
            "backwards": self.timings.steps,
            "bucket_bytes": [spec.nbytes for spec in specs],
            "bucket_parameters": [[self.named[slot.param][0] for slot in spec.slots] for spec in specs],
            "rebuilt": bool(specs) and not self._find_unused,
            **self._averaging.stats(),
        }
