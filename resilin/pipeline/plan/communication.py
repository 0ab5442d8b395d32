"""Adds to a plan of computations what is sent and received, and when the gradients of a stage are complete. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from resilin.errors import UsageError
from resilin.pipeline.plan.action import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    BACKWARDS,
    FORWARD,
    FULL_BACKWARD,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    SEND_B,
    SEND_F,
    Action,
)
from resilin.pipeline.plan.index import Index
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.plan.waits import Waits


def add_communication(plan: PipelinePlan, early: bool = False) -> PipelinePlan:
    """Give the plan with a SEND and a RECV for whatever one rank computes and another needs.

    A SEND stands right behind what computes it. A RECV stands right before what needs it, so that a rank which waits in
    RECV never waits for a message that it could do without; messages between two ranks may then overtake one another,
    and a SEND must not wait for its RECV. With `early`, a RECV stands where its SEND's turn is, as PyTorch puts it:
    messages never overtake, and nothing deadlocks even where a SEND does wait.

    Raises: UsageError when the plan deadlocks (as `validate` tells), or has communication already.
    """
    if plan.has_communication:
        raise UsageError(
            "this plan has communication already: expected computations alone, as plan.computations() gives"
        )
    order = Waits(Index(plan)).order()
    return plan.with_actions(_early(plan, order) if early else _late(plan))


def add_reduce_grad(plan: PipelinePlan) -> PipelinePlan:
    """Give the plan with a REDUCE_GRAD for each stage, right behind the last action that computes its gradients."""
    return plan.with_actions([list(_reduced(plan, row)) for row in plan.actions])


def merge_backward(plan: PipelinePlan) -> PipelinePlan:
    """Give the plan with each I that its own W follows at once as a B, which may compute both in less time."""
    return plan.with_actions([list(_merged([action for action in row if action is not None])) for row in plan.actions])


def _crosses(plan: PipelinePlan, stage: int, other: int) -> bool:
    return 0 <= other < plan.stages and plan.placement[stage] != plan.placement[other]


def _sent_again(plan: PipelinePlan) -> Iterator[Action]:
    """What was computed before the plan begins, and is needed by what is left of the step."""
    for stage in range(plan.stages):
        for send, step, of in ((SEND_F, 1, 0), (SEND_B, -1, 1)):
            if _crosses(plan, stage, stage + step):
                for number in range(plan.done_of(stage + step)[of], plan.done_of(stage)[of]):
                    yield Action(stage, send, number)


def _received(plan: PipelinePlan, part: Action) -> Action | None:
    """What must be received before `part`, if anything."""
    stage, kind, microbatch, _ = part
    if kind is FORWARD and _crosses(plan, stage, stage - 1):
        return Action(stage, RECV_F, microbatch)
    if kind in BACKWARDS and _crosses(plan, stage, stage + 1):
        return Action(stage, RECV_B, microbatch)
    return None


def _sent(plan: PipelinePlan, part: Action) -> Action | None:
    """What is sent after `part`, if anything."""
    stage, kind, microbatch, _ = part
    number = microbatch or 0
    if kind is FORWARD and _crosses(plan, stage, stage + 1) and number >= plan.done_of(stage + 1)[0]:
        return Action(stage, SEND_F, microbatch)
    if kind in BACKWARDS and _crosses(plan, stage, stage - 1) and number >= plan.done_of(stage - 1)[1]:
        return Action(stage, SEND_B, microbatch)
    return None


def _late(plan: PipelinePlan) -> list[list[Action]]:
    rows: list[list[Action]] = [[] for _ in plan.actions]
    for send in _sent_again(plan):
        rows[plan.placement[send.stage_index]].append(send)
    for rank, row in enumerate(rows):
        for action in plan.of(rank):
            row += [found for part in action.parts if (found := _received(plan, part)) is not None]
            row.append(action)
            row += [found for part in action.parts if (found := _sent(plan, part)) is not None]
    return rows


def _early(plan: PipelinePlan, order: Sequence[tuple[int, int]]) -> list[list[Action]]:
    """One order of all ranks' actions, in which each message is sent and received at once."""
    rows: list[list[Action]] = [[] for _ in plan.actions]
    for again in _sent_again(plan):
        _send_at_once(plan, again, rows)
    for rank, number in order:
        action = plan.actions[rank][number]
        if action is None:
            continue
        rows[rank].append(action)
        for part in action.parts:
            send = _sent(plan, part)
            if send is not None:
                _send_at_once(plan, send, rows)
    return rows


def _send_at_once(plan: PipelinePlan, send: Action, rows: list[list[Action]]) -> None:
    step, kind = (1, RECV_F) if send.computation_type is SEND_F else (-1, RECV_B)
    stage = send.stage_index + step
    rows[plan.placement[send.stage_index]].append(send)
    rows[plan.placement[stage]].append(Action(stage, kind, send.microbatch_index))


def _reduced(plan: PipelinePlan, row: Sequence[Action | None]) -> Iterator[Action]:
    left = {stage: plan.microbatches - plan.done_of(stage)[1] for stage in range(plan.stages)}
    for action in row:
        if action is None:
            continue
        yield action
        for part in action.parts:
            if part.computation_type in (FULL_BACKWARD, BACKWARD_WEIGHT):
                left[part.stage_index] -= 1
                if not left[part.stage_index]:
                    yield Action(part.stage_index, REDUCE_GRAD)


def _merged(row: Sequence[Action]) -> Iterator[Action]:
    position = 0
    while position < len(row):
        action = row[position]
        following = row[position + 1] if position + 1 < len(row) else None
        if action.computation_type is BACKWARD_INPUT and following == action._replace(computation_type=BACKWARD_WEIGHT):
            yield action._replace(computation_type=FULL_BACKWARD)
            position += 2
        else:
            yield action
            position += 1
