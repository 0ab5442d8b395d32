"""Brings the gradients of each stage into the order of micro-batches, whatever a plan's own is. Pure.

A sum of gradients has the same bits in every schedule only if it is summed in one order. Of a backward that comes too
early the first half stays where it is, as other ranks wait for it; the second waits until those before are through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from resilin.pipeline.plan.action import BACKWARD_INPUT, BACKWARD_WEIGHT, FULL_BACKWARD, Action
from resilin.pipeline.plan.plan import PipelinePlan


def in_order(plan: PipelinePlan) -> PipelinePlan:
    """Give the plan with each W, or second half of a B, no earlier than those of earlier micro-batches of its stage.

    What must wait so keeps its micro-batch alive: `validate` counts it. A plan in order comes back as it is.
    """
    return plan.with_actions([list(_Row(plan).ordered(row)) for row in plan.actions])


class _Row:
    def __init__(self, plan: PipelinePlan) -> None:
        # By stage: the micro-batch whose gradients are summed next.
        self._next = {stage: plan.done_of(stage)[1] for stage in range(plan.stages)}
        self._held: set[Action] = set()  # second halves that came too early

    def ordered(self, row: Sequence[Action | None]) -> Iterator[Action | None]:
        for action in row:
            if action is None:
                yield None
                continue
            done = [self._early(part) for part in action.parts]
            kept = tuple(part for part in done if part is not None)
            if kept:
                yield (
                    action if kept == action.parts else action._replace(sub_actions=kept) if len(kept) > 1 else kept[0]
                )
            for part in action.parts:
                yield from self._released(part.stage_index)

    def _early(self, part: Action) -> Action | None:
        """What of a part is done where it stands."""
        stage, kind, number, _ = part
        if kind not in (FULL_BACKWARD, BACKWARD_WEIGHT) or number is None:
            return part
        if number == self._next.get(stage, 0):
            self._next[stage] = number + 1
            return part
        self._held.add(Action(stage, BACKWARD_WEIGHT, number))
        return part._replace(computation_type=BACKWARD_INPUT) if kind is FULL_BACKWARD else None

    def _released(self, stage: int) -> Iterator[Action]:
        """The second halves whose turn has come."""
        while (action := Action(stage, BACKWARD_WEIGHT, self._next.get(stage, 0))) in self._held:
            self._held.remove(action)
            self._next[stage] = self._next.get(stage, 0) + 1
            yield action
