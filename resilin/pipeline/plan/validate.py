"""Proves a plan complete, in order, free of deadlock and bounded in memory, before anything runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    FULL_BACKWARD,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    Action,
)
from resilin.pipeline.plan.index import Index
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.plan.waits import Waits


@dataclass(frozen=True)
class PlanMemory:
    """What a plan keeps alive at most.

    Args:
        forwards: by rank, the most forwards whose gradients are not complete yet, of all its stages together.
        microbatches: by rank, the same in micro-batches through all of the rank, its stages being equal.
    """

    forwards: tuple[int, ...]
    microbatches: tuple[float, ...]


def validate(
    plan: PipelinePlan,
    *,
    backward: bool = True,
    in_order: bool = True,
    synchronous: bool = False,
    microbatches_at_most: float | None = None,
) -> PlanMemory:
    """Prove that a plan can be run, and say what it keeps alive.

    Each stage computes each micro-batch once, forward before backward, input gradients before those of weights; a
    stage's gradients are complete in the order of its micro-batches, so that they are summed in it whatever the
    schedule; what is sent is received, once; no rank waits for ever.

    Args:
        plan: with or without communication.
        backward: whether there are backwards. False: there must be none.
        in_order: whether a stage's gradients must come in the order of micro-batches.
        synchronous: whether to prove, too, that nothing deadlocks where a SEND waits for its RECV.
        microbatches_at_most: how many micro-batches a rank may keep alive.

    Raises: UsageError, which says where what is wrong; a deadlock names its ranks and actions.
    """
    index = Index(plan)
    for stage in range(plan.stages):
        _check_forwards(index, stage)
        gradients = _gradients(index, stage, backward)
        if in_order and gradients != sorted(gradients):
            raise UsageError(_out_of_order(index, stage, gradients))
        if plan.has_communication:
            _check_messages(index, stage, backward)
    Waits(index, synchronous).walk()
    stages = [max(1, len(plan.stages_of(rank))) for rank in range(plan.ranks)]
    memory = PlanMemory(
        tuple(index.peaks), tuple(peak / count for peak, count in zip(index.peaks, stages, strict=True))
    )
    if microbatches_at_most is not None:
        _check_memory(plan, memory, microbatches_at_most)
    return memory


def _check_forwards(index: Index, stage: int) -> None:
    where = index.of(stage, FORWARD)
    if -1 in where:
        raise UsageError(_missing(index, Action(stage, FORWARD, where.index(-1))))


def _gradients(index: Index, stage: int, backward: bool) -> list[int]:
    """By micro-batch, which action of its rank completes the gradients of a stage's weights."""
    kinds = (FULL_BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    whole, inputs, weights = (index.of(stage, kind) for kind in kinds)
    if not backward:
        for kind, where in zip(kinds, (whole, inputs, weights), strict=True):
            found = next((number for number, at in enumerate(where) if at >= 0), None)
            if found is not None:
                rank = index.plan.placement[stage]
                raise UsageError(
                    f"rank {rank}, action {where[found]}: {Action(stage, kind, found)} in a plan of forwards alone"
                )
        return []
    done = index.plan.done_of(stage)[1]
    for number, (at_whole, at_inputs, at_weights) in enumerate(zip(whole, inputs, weights, strict=True)):
        if number >= done and ((at_whole >= 0) == (at_inputs >= 0) or (at_inputs >= 0) != (at_weights >= 0)):
            raise UsageError(_wrong_backward(index, stage, number))
    return [max(pair) for pair in zip(whole, weights, strict=True)]


def _wrong_backward(index: Index, stage: int, number: int) -> str:
    kinds = (FULL_BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
    there = [Action(stage, kind, number) for kind in kinds if index.of(stage, kind)[number] >= 0]
    if not there:
        return _missing(index, Action(stage, FULL_BACKWARD, number))
    return (
        f"rank {index.plan.placement[stage]}: of the backward of stage {stage}, micro-batch {number} there "
        f"{'is' if len(there) == 1 else 'are'} {' and '.join(map(str, there))}; expected either B, or I and W"
    )


def _missing(index: Index, action: Action) -> str:
    plan = index.plan
    return (
        f"rank {plan.placement[action.stage_index]}: {action} is missing; each of the {plan.stages} stages computes "
        f"each of the {plan.microbatches} micro-batches forward, then backward"
    )


def _out_of_order(index: Index, stage: int, gradients: Sequence[int]) -> str:
    rank = index.plan.placement[stage]
    later = next(number for number in range(1, len(gradients)) if gradients[number] < gradients[number - 1])
    here, before = (index.plan.actions[rank][gradients[number]] for number in (later, later - 1))
    return (
        f"rank {rank}: {here} (action {gradients[later]}) comes before {before} (action {gradients[later - 1]}), but "
        f"the gradients of stage {stage} are summed in the order of micro-batches, so that sums do not depend on the "
        "schedule: order its B and W by micro-batch, as gradient_order.in_order(plan) does"
    )


def _check_messages(index: Index, stage: int, backward: bool) -> None:
    """Each SEND and RECV of a stage is there where the receiving stage has yet to compute with it, and nowhere else."""
    plan = index.plan
    for step, (send, receive), of in ((1, (SEND_F, RECV_F), 0), (-1, (SEND_B, RECV_B), 1)):
        for kind, other, receiver in ((send, stage + step, stage + step), (receive, stage - step, stage)):
            crosses = 0 <= other < plan.stages and plan.placement[stage] != plan.placement[other]
            needed = crosses and (backward or of == 0)
            _check_message(index, Action(stage, kind), other, plan.done_of(receiver)[of] if needed else None)


def _check_message(index: Index, message: Action, other: int, start: int | None) -> None:
    """Micro-batches from `start` on have this SEND or RECV, those before have none; with None, none has."""
    stage, kind, _, _ = message
    rank = index.plan.placement[stage]
    where = index.of(stage, kind)
    start = len(where) if start is None else start
    if -1 in where[start:]:
        number = where.index(-1, start)
        raise UsageError(
            f"rank {rank}: {message._replace(microbatch_index=number)} is missing: stage {other} is on rank "
            f"{index.plan.placement[other]}"
        )
    number = next((number for number in range(start) if where[number] >= 0), -1)
    if number >= 0:
        raise UsageError(
            f"rank {rank}, action {where[number]}: {message._replace(microbatch_index=number)}: no other rank takes "
            "part in it"
        )


def _check_memory(plan: PipelinePlan, memory: PlanMemory, at_most: float) -> None:
    for rank, held in enumerate(memory.microbatches):
        if held > at_most:
            raise UsageError(
                f"rank {rank} keeps {held:g} micro-batches alive ({memory.forwards[rank]} forwards of "
                f"{len(plan.stages_of(rank))} stages), expected at most {at_most:g}: let its backwards come earlier"
            )
