"""The schedule of one world of an ElasticPipeline: a plan for its ranks, and the rest of a step that was broken off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import resilin.distributed as dist
from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Version
from resilin.errors import UsageError
from resilin.pipeline.broken_step import BrokenStep, Rest, rest_of, take_up
from resilin.pipeline.elastic_placement import ElasticPlacement
from resilin.pipeline.plan.generate import generate
from resilin.pipeline.plan.list_schedule import list_schedule
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.schedules import PipelineScheduleMulti
from resilin.pipeline.stage import PipelineStage
from resilin.pipeline.step import PipelineStep, StepBatch
from resilin.pipeline.step_log import StepLog


def plan_for(placement: ElasticPlacement, schedule: str, microbatches: int) -> PipelinePlan:
    """Plan the steps of a replica: as the schedule says where the pipeline is whole and the schedule takes as many
    micro-batches, of which a replica has fewer than the step. Pure."""
    if placement.is_whole:
        try:
            return generate(schedule, placement.ranks, microbatches, placement.stages_per_rank)
        except UsageError:
            if placement.replicas == 1:
                raise
    return list_schedule(placement.placement, microbatches)


class ElasticSchedule(PipelineScheduleMulti):
    """Plays a plan of any placement, writes down how far a step is, and ends one that was broken off."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        plan: PipelinePlan,
        loss_fn: Callable[..., Tensor] | None,
        scale_grads: bool,
        version: Callable[[], Version],
        broken: BrokenStep | None,
        logs: bool,
    ) -> None:
        """version: that of the weights. broken: what this rank has of a step of the world before. logs: whether steps
        that are broken off are to be gone on with."""
        super().__init__(stages, plan.microbatches, loss_fn, scale_grads=scale_grads)
        self._set_plan(plan)
        self._version, self._broken, self._logs = version, broken, logs
        self._begins = True  # no training step was made yet
        self._fresh = True  # there were no gradients when the step began
        self._rest: Rest | None = None
        self._under_way: PipelineStep | None = None

    def broken_off(self, before: Mapping[int, np.ndarray[Any, Any]]) -> BrokenStep | None:
        """What this rank has of the step that was broken off; None: nothing. See BrokenStep.of."""
        step, self._under_way = self._under_way, None
        return None if step is None else BrokenStep.of((step.number, self._version()), step, self._stages, before)

    def _more(self, batch: StepBatch) -> Any:
        broken = self._broken
        if not self._logs or not self._is_fresh():
            return {"same": False, "stages": {}}
        if broken is None or broken.name != (self.steps, self._version()):
            return None
        return broken.told(batch, self._stages)

    def _is_fresh(self) -> bool:
        """Whether there are no gradients of steps before: sums of a step alone can be gone on with."""
        return all(weight._grad is None for stage in self._stages for weight in stage.submod.parameters())

    def _takes_up(self) -> bool:
        """Whether steps that are broken off are gone on with. The same on all ranks."""
        agreed = self._agreed[True]
        return self._logs and not agreed.ties and not agreed.skips

    def _log(self) -> StepLog | None:
        begins, self._begins = self._begins, False
        agreed = self._agreed[True]
        if not self._logs or agreed.ties or agreed.skips:  # their parts wait in other places than a stage's
            self._broken = None
            return None
        assert self._plan is not None, "it was made with one"
        rest = rest_of(agreed.told, self._plan.placement, self._plan.microbatches) if begins else None
        self._fresh, self._rest = self._is_fresh(), rest
        return StepLog([stage.stage_index for stage in self._stages], None if rest is None else rest.begun)

    def _play(self, step: PipelineStep, plan: PipelinePlan) -> None:
        if step.log is None:
            super()._play(step, plan)
            return
        broken, self._broken = self._broken, None
        rest, self._rest = self._rest, None
        if rest is not None:
            assert self._exchange is not None, "made as ranks agreed"
            take_up(rest, broken, step, self._stages, self._group, self._exchange)
            plan = rest.plan
        self._under_way = step if self._fresh else None
        super()._play(step, plan)
        if self._group is not None:
            dist.barrier(group=self._group)  # from here on sums are scaled: nobody has to go on with them
        self._under_way = None
