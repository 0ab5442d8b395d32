"""Weights that several stages have: their gradient is summed as in a backward of the whole model.

    last stage with the weight   contributions of micro-batch i ─► their sum ──┐ message
    ...                          its own contributions are added to that  ◄────┘ ─► ...
    first stage with it          adds its own, and accumulates, micro-batch by micro-batch
                                 at the end of the step: the gradient goes to all others

Contributions wait unsummed until what comes before them in that order is there, so no bit depends on the schedule.
A stage that reduces over replicas takes its weight's sum at the end of the step, in one backward that all replicas do:
when the parts of a micro-batch come differs from replica to replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from resilin.core.autograd import split_backward
from resilin.core.autograd.split_backward import Parts
from resilin.core.ops.creation import zeros_like
from resilin.core.tensor import Tensor, wrap
from resilin.nn.modules.module import Module
from resilin.pipeline import values
from resilin.pipeline.messages import Exchange, MessageKind, Route, StageMessage
from resilin.pipeline.reducing import reduces, reducing


class Holder(NamedTuple):
    """One stage's copy of a weight."""

    key: str
    stage: int


class _Here:
    """A copy that this rank has, and how far its gradients are."""

    def __init__(self, weight: Tensor, above: int | None, below: int | None, reducer: Module | None) -> None:
        """reducer: the stage's module, if it reduces over replicas."""
        self.weight, self.above, self.below, self.reducer = weight, above, below, reducer
        self.total: Any = None  # what the reducer is to take at the end of the step
        self.parts: dict[int, Parts] = {}  # by micro-batch, of those whose turn has not come
        self.next = 0


class TiedWeights:
    """The weights of one rank's stages that other stages have, too. For one step; begin another with a new one."""

    def __init__(
        self,
        stages: Mapping[str, Sequence[int]],
        here: Mapping[Holder, Tensor],
        modules: Mapping[int, Module],
        exchange: Exchange,
        step: int,
        microbatches: Sequence[int],
    ) -> None:
        """stages: by key, all stages with the weight. here: those of this rank; modules: of its stages. microbatches:
        that are computed."""
        self._exchange, self._step, self._turns = exchange, step, list(microbatches)
        self._stages = {key: sorted(found) for key, found in stages.items()}
        self._here: dict[Holder, _Here] = {}
        for holder in sorted(here, key=lambda each: (each.key, -each.stage)):
            order = self._stages[holder.key]
            place = order.index(holder.stage)
            above = order[place + 1] if place + 1 < len(order) else None
            module = modules[holder.stage]
            self._here[holder] = _Here(
                here[holder], above, order[place - 1] if place else None, module if reduces(module) else None
            )

    def weights(self, stage: int) -> dict[str, Tensor]:
        """Give the weights that a stage of this rank has, by key."""
        return {holder.key: one.weight for holder, one in self._here.items() if holder.stage == stage}

    def add(self, stage: int, microbatch: int, found: Mapping[Tensor, Parts]) -> None:
        """Keep what a backward of a stage contributed on a micro-batch, until its turn."""
        for holder, one in self._here.items():
            if holder.stage == stage:
                one.parts[microbatch] = found.get(one.weight, [])

    def advance(self, wait: bool = False) -> None:
        """Sum and hand on what has come; with `wait`, all there is to come."""
        for holder, one in self._here.items():
            while one.next < len(self._turns) and self._turns[one.next] in one.parts:
                microbatch = self._turns[one.next]
                route = (
                    None
                    if one.above is None
                    else _route(MessageKind.WEIGHT, holder.key, self._stages, one.above, holder.stage)
                )
                if route is not None and not wait and not self._exchange.ready(route, self._step, microbatch):
                    break
                self._sum(holder, one, microbatch, route)
                one.next += 1
        if wait:
            for one in self._here.values():
                if one.below is None and one.reducer is not None:
                    self._reduce(one, one.reducer)

    def _sum(self, holder: Holder, one: _Here, microbatch: int, route: Route | None) -> None:
        before = None
        if route is not None:
            message = self._exchange.receive(route, self._step, microbatch, True, one.weight._dev)
            before = message.tensors[0]._array if message.tensors else None
        parts = one.parts.pop(microbatch)
        if one.below is None and one.reducer is None:
            split_backward.accumulate(one.weight, before, parts)
            return
        total = split_backward.summed(one.weight, before, parts)
        if one.below is None:
            one.total = split_backward.summed(
                one.weight, None, [part for part in (one.total, total) if part is not None]
            )
            return
        found = None if total is None else wrap(total, one.weight._dev)
        self._send(_route(MessageKind.WEIGHT, holder.key, self._stages, holder.stage, one.below), microbatch, found)

    def _reduce(self, one: _Here, module: Module) -> None:
        """Accumulate the sum of all micro-batches, and reduce it: zero where this replica has none."""
        total = zeros_like(one.weight)._array if one.total is None else one.total
        with reducing(module, None, self._turns[-1], last=True, completes=True):
            split_backward.accumulate(one.weight, total, [])
        one.total = None

    def _send(self, route: Route, microbatch: int, tensor: Tensor | None) -> None:
        tensors, layout = values.take_apart(tensor)
        self._exchange.send(route, StageMessage(self._step, microbatch, True, None, tensors, layout))

    def totals(self) -> None:
        """Give the gradients to all stages with the weights. After `advance(wait=True)` and all that changes them."""
        for holder, one in self._here.items():
            if one.below is None:
                for stage in self._stages[holder.key][1:]:
                    self._send(
                        _route(MessageKind.TOTAL, holder.key, self._stages, holder.stage, stage), 0, one.weight._grad
                    )
        for holder, one in self._here.items():
            if one.below is not None:
                first = self._stages[holder.key][0]
                route = _route(MessageKind.TOTAL, holder.key, self._stages, first, holder.stage)
                message = self._exchange.receive(route, self._step, 0, True, one.weight._dev)
                self._put(one.weight, message.tensors[0] if message.tensors else None)

    def _put(self, weight: Tensor, total: Tensor | None) -> None:
        if any(one.weight is weight and one.below is None for one in self._here.values()):
            return  # the first stage's own: one parameter in several stages of this rank
        if total is None or weight._grad is None:
            weight._grad = total
        else:
            weight._grad._array[...] = total._array
            weight._grad._bump()


def _route(kind: MessageKind, key: str, stages: Mapping[str, Sequence[int]], source: int, target: int) -> Route:
    """The route of one weight: several weights of the same stages have one of their own each."""
    return Route(kind, source, target, sorted(stages).index(key))
