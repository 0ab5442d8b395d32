"""What a rank has of a step that is under way, so that the ranks of another world can end it.

how far each stage is    forwards, gradients of inputs, gradients of weights: each in the order of micro-batches
what it gave to others   once more for who has lost it; without graphs, so that no activations are kept alive
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from resilin.core.tensor import wrap
from resilin.pipeline.messages import MessageKind, Route, StageMessage
from resilin.pipeline.plan.action import BACKWARD_INPUT, FORWARD, FULL_BACKWARD, ComputationType

Given = list[tuple[Route, StageMessage]]
"""What an action gives to other stages."""


class StageProgress(NamedTuple):
    """Of how many micro-batches what is done at a stage."""

    forwards: int = 0
    inputs: int = 0
    """Of whose inputs the gradients are computed, and sent."""
    weights: int = 0
    """Whose gradients of weights are summed."""


_NOTHING = StageProgress()


class StepLog:
    """How far this rank's stages are in a step, and what they gave."""

    def __init__(self, stages: Iterable[int], begun: Mapping[int, StageProgress] | None = None) -> None:
        """begun: by stage, of all ranks, what was done before; None: nothing was."""
        self._begun = begun or {}
        self.here = {stage: self._begun.get(stage, _NOTHING) for stage in stages}
        self.sent: dict[tuple[Route, int], StageMessage] = {}
        self.computing = False
        """Whether an action has begun to compute, and is not done."""

    def did(self, stage: int, kind: ComputationType, microbatch: int, given: Given) -> Given:
        """An action is done. Returns what is to be sent: what others have already is kept alone."""
        forwards, inputs, weights = self.here[stage]
        self.here[stage] = StageProgress(
            microbatch + 1 if kind is FORWARD else forwards,
            microbatch + 1 if kind in (BACKWARD_INPUT, FULL_BACKWARD) else inputs,
            microbatch + 1 if kind not in (FORWARD, BACKWARD_INPUT) else weights,
        )
        self.computing = False
        for route, message in given:
            self.keep(route, message)
        return [(route, message) for route, message in given if self._is_wanted(route, message.microbatch)]

    def keep(self, route: Route, message: StageMessage) -> None:
        """Remember what a stage of this rank gave."""
        bare = [wrap(tensor._array, tensor._dev) for tensor in message.tensors]
        self.sent[route, message.microbatch] = message._replace(tensors=bare)

    def to_send_again(self) -> Given:
        """What this rank's stages gave before, and others have lost, or never got."""
        return [(route, message) for (route, number), message in self.sent.items() if self._is_wanted(route, number)]

    def _is_wanted(self, route: Route, microbatch: int) -> bool:
        target = self._begun.get(route.target, _NOTHING)
        forward = route.kind in (MessageKind.FORWARD, MessageKind.SKIP)
        return microbatch >= (target.forwards if forward else target.inputs)
