"""Run micro-batches through the partitions of a pipeline: in each clock cycle these compute side by side, every one on
another micro-batch.

What leaves the forward is one graph, as of the layers called one after the other for each micro-batch: the nodes that
reach a parameter are made in that order, so that its gradients are summed in that order, whatever ran side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from resilin.core import rng, trees
from resilin.core.autograd import surroundings
from resilin.core.device import device as device_of
from resilin.core.state.versions import same_memory
from resilin.core.tensor import Tensor
from resilin.nn.modules.module import Module
from resilin.pipeline.sync.checkpoint import checkpoint
from resilin.pipeline.sync.copy import copy
from resilin.pipeline.sync.microbatch import BatchValues
from resilin.pipeline.sync.partitions import must_alternate
from resilin.pipeline.sync.skip.layout import SkipLayout
from resilin.pipeline.sync.skip.namespace import SkipName
from resilin.pipeline.sync.skip.tracker import SkipTracker, use_skip_tracker
from resilin.pipeline.sync.worker import Workers

Cycle = list[tuple[int, int]]
"""What is computed side by side: (micro-batch, partition)."""


def clock_cycles(m: int, n: int) -> Iterator[Cycle]:
    """Yield the cycles of `m` micro-batches in `n` partitions: in cycle k partition j has micro-batch k - j."""
    for k in range(m + n - 1):
        yield [(k - j, j) for j in range(max(1 + k - m, 0), min(1 + k, n))]


def one_by_one(m: int, n: int) -> Iterator[Cycle]:
    """Yield the cycles of partitions that do not compute at the same time: a micro-batch goes through all of them."""
    return ([(i, j)] for i in range(m) for j in range(n))


class MicroBatch:
    """A micro-batch on its way: its values, skip tensors that wait for a later partition, and its random numbers.

    These are those of `rng.keyed(number, i)`, whichever partitions draw them, and whatever is drawn elsewhere.
    """

    def __init__(self, batch: BatchValues, number: int, i: int) -> None:
        self.batch = batch
        self.skips: dict[SkipName, Tensor | None] = {}
        with rng.keyed(number, i) as generator:
            self.generator = generator


class Pipeline:
    """The partitions of a pipeline, their devices, and the ways of skip tensors between them."""

    def __init__(self, partitions: Sequence[Module], devices: Sequence[device_of], layout: SkipLayout) -> None:
        self.partitions, self.devices, self.layout = partitions, devices, layout

    def run(self, batches: Sequence[BatchValues], checkpointed: int, alternate: bool = False) -> list[BatchValues]:
        """Return what the last partition makes of each of `batches`; backward runs the first `checkpointed` again.

        alternate: keep the partitions from computing at the same time.
        """
        number = rng.default_generator.offset
        work = [MicroBatch(batch, number, i) for i, batch in enumerate(batches)]
        m, n = len(batches), len(self.partitions)
        alternate = alternate or min(m, n) == 1 or surroundings.bound_to_thread()
        if alternate or must_alternate(self.partitions, self.devices):
            for cycle in one_by_one(m, n):
                for i, j in cycle:
                    self.compute(work[i], j, i < checkpointed)
        else:
            self._side_by_side(work, clock_cycles(m, n), checkpointed)
        if any(each.generator.offset for each in work):
            rng.default_generator().take(1)  # the next forward draws other numbers
        return [each.batch for each in work]

    def _side_by_side(self, work: Sequence[MicroBatch], cycles: Iterable[Cycle], checkpointed: int) -> None:
        with Workers(min(len(work), len(self.partitions))) as workers:
            for cycle in cycles:
                workers.run({j: partial(self.compute, work[i], j, i < checkpointed) for i, j in cycle})

    def compute(self, work: MicroBatch, j: int, checkpointed: bool) -> None:
        """Take a micro-batch through partition `j`."""
        device, stashed = self.devices[j], self.layout.stashed_by(j)
        popped = self.layout.popped_by(j)
        with rng.using(work.generator):
            batch = work.batch.map(partial(copy, target=device))
            skips = [copy(work.skips.pop(name), device) for name in popped]
            run = partial(_run, self.partitions[j], len(batch), popped, stashed)
            out, left = checkpoint(run, *batch, *skips) if checkpointed else run(*batch, *skips)
        if j + 1 < len(self.partitions):  # the next reads it while this one has another micro-batch
            held = list(self.partitions[j].buffers())
            out, left = _apart_from(held, out), _apart_from(held, left)
        work.batch = BatchValues(out)
        work.skips.update(zip(stashed, left, strict=True))


def _apart_from(buffers: Sequence[Tensor], value: Any) -> Any:
    """`value` with copies of the buffers in it."""

    def apart(leaf: Any) -> Any:
        held = isinstance(leaf, Tensor) and not leaf._rg and any(same_memory(leaf, each) for each in buffers)
        return leaf.clone() if held else leaf

    return trees.transform(apart, value) if buffers else value


def _run(
    partition: Module, count: int, popped: tuple[SkipName, ...], stashed: tuple[SkipName, ...], *values: Any
) -> tuple[Any, list[Tensor | None]]:
    """Return what `partition` makes of the first `count` values, and what it stashes for later ones; the other values
    are what it pops. Depends on its arguments alone, so that it may run again."""
    with use_skip_tracker(SkipTracker(dict(zip(popped, values[count:], strict=True)))) as tracker:
        out = partition(*values[:count])
        return out, [tracker.load(name) for name in stashed]
