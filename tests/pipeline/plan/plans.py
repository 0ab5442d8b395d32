"""Plans for tests, and a slow, obvious judge of them."""

from __future__ import annotations

from hypothesis import strategies as st

from resilin.errors import UsageError
from resilin.pipeline.plan.action import Action, ComputationType
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.generate import SCHEDULES, generate
from resilin.pipeline.plan.plan import PipelinePlan

F, B, I, W = (ComputationType(kind) for kind in "FBIW")
EVERY = sorted(SCHEDULES)


def plan(*rows: str, placement: tuple[int, ...] | None = None, microbatches: int = 2) -> PipelinePlan:
    """A plan of rows such as "0F0 0F1 0B0 0B1"; stage s is on rank s unless `placement` says another."""
    actions = tuple(tuple(Action.from_str(text) for text in row.split()) for row in rows)
    return PipelinePlan(actions, placement or tuple(range(len(rows))), microbatches)


@st.composite
def generated(draw: st.DrawFn, ranks: int = 6, microbatches: int = 16) -> PipelinePlan:
    """A plan of any schedule for any numbers that it takes."""
    name = draw(st.sampled_from(EVERY))
    several = SCHEDULES[name].several and SCHEDULES[name].style == "loop"
    p, m = draw(st.integers(1, ranks)), draw(st.integers(1, microbatches))
    v = draw(st.integers(1, 3)) if several else None
    try:
        return generate(name, p, m, v)
    except UsageError:  # every schedule takes a multiple of the ranks from twice as many on
        return generate(name, p, p * max(2, m // p), v)


def naive_needs(plan: PipelinePlan, part: Action) -> list[Action]:
    """What must be done before a part of an action, each of them with its alternatives."""
    stage, kind, number, _ = part
    last = plan.stages - 1
    if kind is F:
        return [Action(stage - 1, F, number)] if stage else []
    if kind is W:
        return [Action(stage, I, number)]
    if kind in (I, B):
        return [Action(stage, F, number)] + ([Action(stage + 1, I, number)] if stage < last else [])
    return {
        "SEND_F": [Action(stage, F, number)],
        "SEND_B": [Action(stage, I, number)],
        "RECV_F": [Action(stage - 1, ComputationType.SEND_F, number)],
        "RECV_B": [Action(stage + 1, ComputationType.SEND_B, number)],
    }[kind.value]


def naive_ends(plan: PipelinePlan) -> bool:
    """Whether all actions can be done, tried in turn until nothing moves; messages are where they are received."""
    done = {
        Action(stage, kind, number)
        for stage in range(plan.stages)
        for kind, count in zip((F, I), plan.done_of(stage), strict=True)
        for number in range(count)
    }
    at = [0] * plan.ranks
    moved = True
    while moved:
        moved = False
        for rank in range(plan.ranks):
            row = plan.of(rank)
            while at[rank] < len(row):
                parts = row[at[rank]].parts
                needs = {need for part in parts for need in naive_needs(plan, part)}
                if not needs <= done | _given(parts) or not all(_received(plan, part, done) for part in parts):
                    break
                done |= _given(parts)
                at[rank] += 1
                moved = True
    return all(at[rank] == len(plan.of(rank)) for rank in range(plan.ranks))


def _given(parts: tuple[Action, ...]) -> set[Action]:
    """What actions give: a full backward what its first half gives, too."""
    return set(parts) | {part._replace(computation_type=I) for part in parts if part.computation_type is B}


def _received(plan: PipelinePlan, part: Action, done: set[Action]) -> bool:
    """Whether what other ranks give a computation was received, in a plan with communication."""
    stage, kind, number, _ = part
    source = {F: stage - 1, I: stage + 1, B: stage + 1}.get(kind, stage)
    if not plan.has_communication or not 0 <= source < plan.stages:
        return True
    receive = ComputationType.RECV_F if kind is F else ComputationType.RECV_B
    return plan.placement[source] == plan.placement[stage] or Action(stage, receive, number) in done


@st.composite
def shuffled(draw: st.DrawFn) -> PipelinePlan:
    """A plan with or without communication, in which two actions of a rank may have changed places."""
    result = draw(generated(ranks=4, microbatches=5))
    if draw(st.booleans()):
        result = add_communication(result, early=draw(st.booleans()))
    rows = [list(row) for row in result.actions]
    for _ in range(draw(st.integers(0, 2))):
        row = rows[draw(st.integers(0, len(rows) - 1))]
        a, b = draw(st.integers(0, len(row) - 1)), draw(st.integers(0, len(row) - 1))
        row[a], row[b] = row[b], row[a]
    return result.with_actions(rows)
