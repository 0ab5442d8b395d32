"""A step's gradients: scaled by its micro-batches, and added to those of steps before it."""

from __future__ import annotations

from collections.abc import Sequence

from resilin.core.tensor import Tensor
from resilin.pipeline.stage import PipelineStage


class Gradients:
    """Those of a rank's stages in one step. What was there before is put aside, so that scaling leaves it alone."""

    def __init__(self, stages: Sequence[PipelineStage], divisor: int) -> None:
        """divisor: the number of micro-batches; 1: nothing is scaled."""
        self._divisor = divisor
        found: dict[int, Tensor] = {id(p): p for stage in stages for p in stage.submod.parameters()}
        self._weights = list(found.values())
        self._before: list[tuple[Tensor, Tensor]] = []
        if divisor != 1:
            self._before = [(weight, weight._grad.clone()) for weight in self._weights if weight._grad is not None]
            for weight, _ in self._before:
                weight._grad = None

    def finish(self) -> None:
        """Scale what the step brought, and add what was there before it."""
        if self._divisor != 1:
            for weight in self._weights:
                if weight._grad is not None:
                    weight._grad._array /= self._divisor
                    weight._grad._bump()
        for weight, before in self._before:
            if weight._grad is None:
                weight._grad = before
            else:
                weight._grad._array += before._array
                weight._grad._bump()
        self._before = []
