"""What is left of a step that a loss has broken off, and how the ranks of the next world end it.

    rank 0: stage 0, F to 3, B to 1      rank 1: stage 1, lost      rank 2: stage 2, F to 2, B to 1
    ──► stage 1 begins anew, of all micro-batches; the others give it again what they gave, and go on where they were

A stage that another rank has now brings along the gradients that are summed, and computes the forwards whose backward
is missing again. The order in which a stage's gradients are summed stays that of micro-batches, so the bits do, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from resilin.core import trees
from resilin.core.tensor import Tensor
from resilin.distributed.group.process_group import ProcessGroup
from resilin.pipeline import values
from resilin.pipeline.messages import Exchange, MessageKind, Route, StageMessage
from resilin.pipeline.microbatch_graph import MicrobatchGraph
from resilin.pipeline.plan.list_schedule import list_schedule
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.plan.validate import validate
from resilin.pipeline.stage import PipelineStage
from resilin.pipeline.step import PipelineStep, Results, StepBatch
from resilin.pipeline.step_log import StageProgress, StepLog

Name = tuple[int, tuple[int, int]]
"""Of a step: its number, and the version of the weights that it began with."""


@dataclass
class BrokenStep:
    """What one rank has of it.

    Args:
        gradients: by stage, those of its parameters, in their order.
        buffers: by stage, those that its forwards have changed, with what they are now.
    """

    name: Name
    batch: StepBatch
    log: StepLog
    graphs: dict[tuple[int, int], MicrobatchGraph]
    losses: dict[int, Tensor]
    results: Results
    gradients: dict[int, list[Tensor | None]]
    buffers: dict[int, list[tuple[Tensor, np.ndarray[Any, Any]]]]

    @staticmethod
    def of(
        name: Name, step: PipelineStep, stages: Sequence[PipelineStage], before: Mapping[int, np.ndarray[Any, Any]]
    ) -> BrokenStep | None:
        """Take over what `step` has, and the gradients that it has summed; None: it was broken off while it computed.

        before: by id of a buffer of `stages`, what it was before the step.
        """
        assert step.log is not None, "it was to be gone on with"
        if step.log.computing:
            return None
        gradients: dict[int, list[Tensor | None]] = {}
        buffers: dict[int, list[tuple[Tensor, np.ndarray[Any, Any]]]] = {}
        for stage in stages:
            weights = list(stage.submod.parameters())
            gradients[stage.stage_index] = [weight._grad for weight in weights]
            for weight in weights:
                weight._grad = None
            buffers[stage.stage_index] = [
                (buffer, buffer._array.copy())
                for buffer in stage.submod.buffers()
                if id(buffer) in before and not _same_bytes(buffer._array, before[id(buffer)])
            ]
        return BrokenStep(name, step.batch, step.log, step.graphs, step.losses, step.results, gradients, buffers)

    def told(self, batch: StepBatch, stages: Sequence[PipelineStage]) -> dict[str, Any]:
        """Say what there is, to ranks that are about to make the step of `batch`; plain values."""
        same = all(self._has_same_inputs(batch, stage) for stage in stages if stage.stage_index in self.log.here)
        stages_here = {
            stage: (*progress, not self.buffers[stage] or progress.forwards == progress.weights == 0)
            for stage, progress in self.log.here.items()
        }
        return {"same": same, "stages": stages_here}

    def _has_same_inputs(self, batch: StepBatch, stage: PipelineStage) -> bool:
        mine = self.batch
        return (
            _same(mine.kwargs, batch.kwargs)
            and (not stage.is_first or _same(mine.args, batch.args))
            and (not stage.is_last or _same(mine.targets, batch.targets))
        )


@dataclass(frozen=True)
class Rest:
    """How a broken-off step is ended.

    Args:
        done: by stage, what is not made again.
        holders: by stage, the rank of the pipeline that has what is done; None: nothing is.
        plan: of what is left.
    """

    done: tuple[StageProgress, ...]
    holders: tuple[int | None, ...]
    plan: PipelinePlan

    @property
    def begun(self) -> dict[int, StageProgress]:
        """What is done, by stage."""
        return dict(enumerate(self.done))

    def is_moved(self, stage: int) -> bool:
        """Whether another rank has what is done than has the stage now."""
        return self.holders[stage] not in (None, self.plan.placement[stage])


def rest_of(told: Sequence[Any], placement: Sequence[int], microbatches: int) -> Rest | None:
    """Plan what is left of a step; None: all of it. Pure.

    told: by rank, what `BrokenStep.told` of it said; None where there is nothing. placement: by stage, its rank now.
    """
    if not all(one["same"] for one in told if one is not None):
        return None  # another batch: what is there is of no use
    done: list[StageProgress] = []
    holders: list[int | None] = []
    for stage, rank in enumerate(placement):
        holder = next((other for other, one in enumerate(told) if one is not None and stage in one["stages"]), None)
        progress = StageProgress()
        if holder is not None:
            forwards, inputs, weights, movable = told[holder]["stages"][stage]
            if holder == rank:
                progress = StageProgress(forwards, inputs, weights)
            elif movable:  # without graphs: only those count that have none any more
                progress = StageProgress(weights, weights, weights)
        done.append(progress)
        holders.append(holder if progress.forwards else None)
    if not any(progress.forwards for progress in done):
        return None
    plan = list_schedule(placement, microbatches, done=[(progress.forwards, progress.weights) for progress in done])
    validate(plan)
    return Rest(tuple(done), tuple(holders), plan)


def take_up(
    rest: Rest,
    broken: BrokenStep | None,
    step: PipelineStep,
    stages: Sequence[PipelineStage],
    group: ProcessGroup | None,
    exchange: Exchange,
) -> None:
    """Bring `step` to where it was broken off, and give others again what they need of it. All ranks call it.

    broken: what this rank has; None: nothing.
    """
    assert step.log is not None, "it is gone on with"
    for stage in stages:
        if rest.holders[stage.stage_index] is not None and not rest.is_moved(stage.stage_index):
            assert broken is not None, "this rank has said that it has the stage"
            _go_on(broken, step, stage)
    _move(rest, broken, step, stages, group)
    for route, message in step.log.to_send_again():
        exchange.send(route, message)


def _go_on(broken: BrokenStep, step: PipelineStep, stage: PipelineStage) -> None:
    """A stage that stays where it was."""
    index, log = stage.stage_index, step.log
    assert log is not None, "see take_up"
    weights = broken.log.here[index].weights
    _put_gradients(stage, broken.gradients[index])
    for buffer, now in broken.buffers[index]:
        buffer._array[...] = now
        buffer._bump()
    step.graphs.update({key: graph for key, graph in broken.graphs.items() if key[0] == index and key[1] >= weights})
    for (route, _), message in broken.log.sent.items():
        if route.source == index:
            log.keep(route, message)
    if stage.is_last:
        step.losses.update(broken.losses)
        step.results.outputs.update(broken.results.outputs)
        step.results.losses.update(broken.results.losses)


def _move(
    rest: Rest,
    broken: BrokenStep | None,
    step: PipelineStep,
    stages: Sequence[PipelineStage],
    group: ProcessGroup | None,
) -> None:
    """Stages that are elsewhere now: their gradients, and what they gave that somebody needs again."""
    moved = [stage for stage in range(len(rest.done)) if rest.is_moved(stage)]
    if not moved:
        return
    assert group is not None, "there is another rank"
    # of a stage number s the end that it had is called s, the one that it has now s + their number
    ends = tuple(0 if holder is None else holder for holder in rest.holders) + rest.plan.placement
    mover = Exchange(group, ends, group.rank())
    for stage in moved:
        if rest.holders[stage] == group.rank():
            assert broken is not None, "this rank has said that it has the stage"
            _give_away(broken, stage, rest, mover, step.number)
    here = {stage.stage_index: stage for stage in stages}
    for index in moved:
        if index in here:
            _take_in(step, here[index], rest, mover)
    mover.finish()


def _mover(stage: int, rest: Rest) -> Route:
    return Route(MessageKind.FORWARD, stage, stage + len(rest.done))


def _give_away(broken: BrokenStep, stage: int, rest: Rest, mover: Exchange, number: int) -> None:
    weights = rest.done[stage].weights
    kept = [
        (route, message)
        for (route, microbatch), message in broken.log.sent.items()
        if route.source == stage and microbatch < weights
    ]
    results = broken.results
    tree = {
        "gradients": broken.gradients[stage],
        "outputs": [results.outputs.get(at) for at in range(weights)],
        "losses": [results.losses.get(at) for at in range(weights)],
        "kept": [[*map(int, route), message.microbatch] for route, message in kept],
    }
    head = StageMessage(number, 0, True, None, *values.take_apart(tree))
    route = _mover(stage, rest)
    for at, message in enumerate([head, *(message for _, message in kept)]):
        mover.send(route, message._replace(microbatch=at))


def _take_in(step: PipelineStep, stage: PipelineStage, rest: Rest, mover: Exchange) -> None:
    route, log = _mover(stage.stage_index, rest), step.log
    assert log is not None, "see take_up"
    head = mover.receive(route, step.number, 0, True, stage.device)
    tree = values.put_together(head.layout, head.tensors)
    _put_gradients(stage, tree["gradients"])
    for at, (kind, source, target, number, microbatch) in enumerate(tree["kept"], 1):
        message = mover.receive(route, step.number, at, True, stage.device)
        log.keep(Route(MessageKind(kind), source, target, number), message._replace(microbatch=microbatch))
    if stage.is_last:
        step.results.outputs.update({at: value for at, value in enumerate(tree["outputs"]) if value is not None})
        step.results.losses.update({at: loss for at, loss in enumerate(tree["losses"]) if loss is not None})


def _put_gradients(stage: PipelineStage, gradients: Sequence[Tensor | None]) -> None:
    for weight, gradient in zip(stage.submod.parameters(), gradients, strict=True):
        weight._grad = gradient


def _same(one: Any, two: Any) -> bool:
    """Whether two trees have equal tensors and values."""
    (mine, shape), (here, other) = (trees.flatten(None if tree is None else list(tree)) for tree in (one, two))
    return shape == other and all(_same_leaf(a, b) for a, b in zip(mine, here, strict=True))


def _same_leaf(one: Any, two: Any) -> bool:
    if one is two:
        return True
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and _same_bytes(one.numpy(), two.numpy())
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and _same_bytes(one, two)
    return type(one) is type(two) and bool(one == two)


def _same_bytes(one: np.ndarray[Any, Any], two: np.ndarray[Any, Any]) -> bool:
    return one.tobytes() == two.tobytes()
