"""Averages gradients over ranks while backward still runs.

forward    prepare(): which parameters will get a gradient
backward   on_ready(i) counts a bucket down ──> full: its all-reduce starts (buckets start in order on every rank)
its end    finish(): waits for all buckets; gradients are views of them, so nothing is copied
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import resilin.dist as dist
from resilin._base.clock import SYSTEM
from resilin.core.autograd import engine
from resilin.core.tensor import Tensor
from resilin.ddp import misuse
from resilin.ddp.buckets import BucketSpec
from resilin.ddp.flat import Flat, place_gradient
from resilin.ddp.grad_bucket import GradBucket, Hook, checked_future, take_result
from resilin.ddp.traffic import Traffic
from resilin.dist.future import Future


class Reducer:
    """The state of one wrapper's backward passes. Main thread only; all-reduces run on the group's worker thread.

    as_view:      gradients live in the buckets; else they are copied in and out.
    find_unused:  parameters outside the graph of the outputs count as ready with a zero gradient.
    static:       the graph never changes: what the first backward did not use is never waited for.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, Tensor]],
        plan: Sequence[BucketSpec],
        group: dist.ProcessGroup,
        *,
        as_view: bool,
        find_unused: bool,
        static: bool,
    ) -> None:
        self._names = [name for name, _ in named]
        self._params = [param for _, param in named]
        self._group = group
        self._as_view = as_view
        self._find_unused = find_unused
        self._static = static
        self._numbers = {id(param): number for number, param in enumerate(self._params)}
        self._flats = [Flat(spec, self._params) for spec in plan]
        self._where = {
            slot.param: (flat.spec.index, flat.views[place])
            for flat in self._flats
            for place, slot in enumerate(flat.spec.slots)
        }
        self._hook: tuple[Hook, Any] | None = None
        self._traffic = Traffic()
        self._sync = True  # whether the running step's backward reduces
        self._used: set[int] | None = None  # parameters in the graph; None: all of them
        self._never: set[int] | None = None  # static graph: what the first backward did not use
        self._running = False  # between the first ready gradient and finish()
        self._left: list[int] = []  # per bucket: gradients not ready
        self._ready: set[int] = set()
        self._fired: set[int] = set()  # of those ready: which got a gradient in this backward
        self._next = 0  # the bucket to start next
        self._futures: list[Future[Any]] = []
        self._backwards = 0
        self._wait_s = 0.0
        self._last_wait_s = 0.0
        if as_view:
            for number, (_, view) in self._where.items():
                self._params[number]._grad_slot = view

    def set_hook(self, state: Any, hook: Hook) -> None:
        """Use `hook` instead of the averaging all-reduce."""
        self._hook = (hook, state)

    def prepare(self, sync: bool, used: set[int] | None) -> None:
        """A forward has run: its backward reduces if `sync`. `used`: ids of reachable parameters, if searched."""
        self._sync = sync
        if self._running:  # an earlier backward died half-way
            self._running = False
            self._used = None
        if used is not None:
            numbers = {self._numbers[key] for key in used if key in self._numbers}
            self._used = numbers if self._used is None else self._used | numbers

    def on_ready(self, number: int) -> None:
        """The gradient of parameter `number` is final for this backward."""
        if not self._sync:
            return
        if not self._running:
            self._start()
        param = self._params[number]
        index, view = self._where[number]
        if param._grad is not None:
            misuse.check_fits(param._grad._array, view, self._group, self._names[number])
        if self._as_view:
            place_gradient(param, view)
        elif param._grad is not None:
            np.copyto(view, param._grad._array)
        self._fired.add(number)
        if number in self._ready:
            self._refuse_late(number)
        self._ready.add(number)
        self._count_down(index)

    def _start(self) -> None:
        self._running = True
        self._ready, self._fired = set(), set()
        self._left = [len(flat.spec.slots) for flat in self._flats]
        self._next = 0
        self._futures = []
        engine.queue_callback(self._finish)
        if self._find_unused and self._used is not None:
            self._skip(set(range(len(self._params))) - self._used)
        elif self._static and self._never:
            self._skip(self._never)

    def _skip(self, numbers: set[int]) -> None:
        """Count parameters that get no gradient in this backward as ready, with the gradient they have or zero."""
        for number in sorted(numbers - self._ready):
            index, view = self._where[number]
            grad = self._params[number]._grad
            if grad is None:
                view[...] = 0
            elif grad._array is not view:
                np.copyto(view, grad._array)
            self._ready.add(number)
            self._count_down(index)

    def _count_down(self, index: int) -> None:
        self._left[index] -= 1
        if not (self._static and self._never is None):  # a static graph's first backward learns what is used
            self._launch_full()

    def _launch_full(self) -> None:
        while self._next < len(self._flats) and self._left[self._next] == 0:
            self._launch(self._flats[self._next])
            self._next += 1

    def _launch(self, flat: Flat) -> None:
        if self._hook is None:
            self._traffic.all_reduce(flat.spec.nbytes, self._group.size())
            work = dist.all_reduce(flat.tensor, op=dist.ReduceOp.AVG, group=self._group, async_op=True)
            assert work is not None
            self._futures.append(work.get_future())
            return
        hook, state = self._hook
        bucket = GradBucket(flat, self._params, flat.spec.index == len(self._flats) - 1, self._traffic)
        with misuse.of_a_hook(self._group, hook, bucket.index()):
            self._futures.append(checked_future(hook(state, bucket)))

    def _take(self, flat: Flat, future: Future[Any]) -> None:
        """Wait for a bucket."""
        if self._hook is None:
            future.wait()
            return
        with misuse.of_a_hook(self._group, self._hook[0], flat.spec.index):
            take_result(future.wait(self._group.timeout_s), flat)

    def _finish(self) -> None:
        """The end of a backward: nothing of it is pending after this."""
        self._running = False
        missing = set(range(len(self._params))) - self._ready
        if self._static and self._never is None:
            self._never = missing
            self._skip(missing)
            self._launch_full()
        elif self._find_unused:
            self._skip(missing)
        elif missing:
            misuse.refuse_unused(self._group, "", self._names, missing)
        self._used = None
        start = SYSTEM.monotonic()
        futures, self._futures = self._futures, []
        for flat, future in zip(self._flats, futures, strict=True):
            self._take(flat, future)
        if self._find_unused or self._static:
            self._keep_unused()
        if not self._as_view:
            self._copy_out()
        self._backwards += 1
        self._last_wait_s = SYSTEM.monotonic() - start
        self._wait_s += self._last_wait_s

    def _keep_unused(self) -> None:
        """Give the reduced gradient to parameters that any rank used; those that no rank used keep what they have."""
        if self._static and not self._never:
            return
        used = np.zeros(len(self._params), np.uint8)
        used[list(self._fired)] = 1
        dist.all_reduce(Tensor._wrap(used), op=dist.ReduceOp.MAX, group=self._group)
        for number, param in enumerate(self._params):
            if used[number] and number not in self._fired:
                self._fired.add(number)
                view = self._where[number][1]
                param._grad = Tensor._wrap(view if self._as_view else view.copy())

    def _copy_out(self) -> None:
        for number in self._fired:
            grad = self._params[number]._grad
            assert grad is not None, self._names[number]
            np.copyto(grad._array, self._where[number][1])

    def _refuse_late(self, number: int) -> None:
        misuse.refuse(
            self._group,
            "",
            f"parameter {self._names[number]} got a gradient although the graph of the outputs did not hold it (or, "
            "with static_graph=True, the first backward did not use it): its bucket may be on its way. Use parameters "
            "inside forward() only, and static_graph only for graphs that never change",
        )

    def stats(self) -> dict[str, Any]:
        """Counters since construction; seconds are those that backward waited for collectives at its end."""
        return {
            "backwards": self._backwards,
            "bucket_bytes": [flat.spec.nbytes for flat in self._flats],
            "bucket_parameters": [[self._names[slot.param] for slot in flat.spec.slots] for flat in self._flats],
            "wait_s": self._wait_s,
            "last_wait_s": self._last_wait_s,
            "traffic": self._traffic.stats(),
        }
