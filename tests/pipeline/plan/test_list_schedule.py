"""Stages that lie anywhere get a plan as good as 1F1B, in memory that the number of micro-batches does not change."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import B, F, naive_ends

from resilin.errors import UsageError
from resilin.pipeline.plan.action import Action
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.generate import generate
from resilin.pipeline.plan.index import Index
from resilin.pipeline.plan.list_schedule import list_schedule
from resilin.pipeline.plan.simulate import Times, simulate
from resilin.pipeline.plan.validate import validate
from resilin.pipeline.plan.waits import Waits


@st.composite
def placements(draw, stages=8):
    """Any map of stages to ranks that leaves no rank without one."""
    ranks = draw(st.lists(st.integers(0, 4), min_size=1, max_size=stages))
    named = {rank: number for number, rank in enumerate(dict.fromkeys(ranks))}
    return tuple(named[rank] for rank in ranks)


@given(placements(), st.integers(1, 12), st.booleans(), st.floats(0, 2))
def test_any_placement_has_a_plan_that_can_be_run(placement, microbatches, split, hop):
    times = Times(hop=hop)
    plan = list_schedule(placement, microbatches, split_backward=split, times=times)
    assert plan.placement == placement
    memory = validate(plan)
    for complete in (add_communication(plan), add_communication(plan, early=True)):
        validate(complete)
    validate(complete, synchronous=True)
    for rank, held in enumerate(memory.forwards):
        assert held <= sum(len(placement) - stage for stage in plan.stages_of(rank))


@given(placements(), st.integers(1, 8), st.booleans())
def test_a_plan_is_at_most_one_pass_longer_than_its_busiest_rank_has_work(placement, microbatches, split):
    plan = list_schedule(placement, microbatches, split_backward=split)
    work = 3 * microbatches * max(map(placement.count, placement))
    one = simulate(list_schedule(placement, 1)).total
    assert work <= simulate(plan).total <= microbatches * one


@pytest.mark.parametrize(
    "placement", [(0, 1, 1, 2), (0, 1, 2, 1), (0, 1, 2, 2), (1, 0, 0, 1), (0, 0, 1, 1), (2, 0, 1, 0)]
)
@pytest.mark.parametrize("split", [False, True])
def test_after_the_loss_of_a_rank_a_step_takes_little_longer_than_the_busiest_has_work(placement, split):
    work = 3 * 16 * max(map(placement.count, placement))
    assert simulate(list_schedule(placement, 16, split_backward=split)).total <= 1.08 * work


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8, 16])
def test_a_stage_on_each_rank_takes_as_long_as_1f1b_and_no_more_memory(ranks, microbatches):
    plan = list_schedule(range(ranks), microbatches)
    assert simulate(plan).total == simulate(generate("GPipe", ranks, microbatches)).total
    assert all(held <= ranks - rank for rank, held in enumerate(validate(plan).microbatches))


@pytest.mark.parametrize("microbatches", [20, 40, 80])
def test_memory_does_not_grow_with_the_number_of_microbatches(microbatches):
    few, many = (list_schedule((0, 1, 2, 1, 0), number) for number in (20, microbatches))
    assert validate(many).forwards == validate(few).forwards


@given(placements(), st.integers(1, 6), st.data())
def test_limits_bound_what_a_stage_holds(placement, microbatches, data):
    limits = data.draw(st.lists(st.integers(1, 3), min_size=len(placement), max_size=len(placement)))
    plan = list_schedule(placement, microbatches, limits=limits, split_backward=data.draw(st.booleans()))
    validate(plan)
    for row in plan.actions:
        alive = dict.fromkeys(range(len(placement)), 0)
        for stage, kind, _, _ in row:
            alive[stage] += {"F": 1, "B": -1, "W": -1}.get(kind.value, 0)
            assert alive[stage] <= limits[stage]


@st.composite
def interrupted(draw):
    """A placement, and how far each stage came in a step until a rank was lost, whose stages begin anew."""
    placement, microbatches = draw(placements(stages=6)), draw(st.integers(1, 6))
    plan = list_schedule(placement, microbatches)
    order = Waits(Index(plan)).order()
    ran = [plan.actions[rank][number] for rank, number in order[: draw(st.integers(0, len(order)))]]
    counts = [tuple(sum(a[:2] == (stage, kind) for a in ran) for kind in (F, B)) for stage in range(len(placement))]
    lost = draw(st.integers(0, plan.ranks - 1))
    saved = min(counts[stage][1] for stage in plan.stages_of(lost))
    kept = draw(st.integers(0, saved))
    done = [(kept, kept) if placement[stage] == lost else count for stage, count in enumerate(counts)]
    survivors = plan.ranks - 1 or 1
    moved = [draw(st.integers(0, survivors - 1)) if rank == lost else rank - (rank > lost) for rank in placement]
    named = {rank: number for number, rank in enumerate(dict.fromkeys(moved))}
    return tuple(named[rank] for rank in moved), microbatches, done


@given(interrupted(), st.booleans())
def test_what_is_left_of_a_step_is_planned_when_a_rank_is_lost(case, split):
    placement, microbatches, done = case
    plan = list_schedule(placement, microbatches, done=done, split_backward=split)
    validate(plan)
    left = sorted(part for row in plan.actions for part in row if part.computation_type is F)
    assert left == [
        Action(stage, F, number) for stage in range(len(placement)) for number in range(done[stage][0], microbatches)
    ]
    for complete in (add_communication(plan), add_communication(plan, early=True)):
        validate(complete)
        assert naive_ends(complete)
        assert complete.computations() == plan
    validate(complete, synchronous=True)
    assert simulate(plan).total <= microbatches * simulate(list_schedule(placement, 1)).total


def test_what_survivors_gave_to_a_lost_rank_is_sent_to_its_successor():
    plan = list_schedule((0, 1, 2), 3, done=[(3, 1), (1, 1), (2, 1)])  # the rank of stage 1 came back from a copy
    assert [" ".join(map(str, row)) for row in add_communication(plan).actions] == [
        "0SEND_F1 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2",
        "1RECV_F1 1F1 1RECV_F2 1F2 1SEND_F2 1RECV_B1 1B1 1SEND_B1 1RECV_B2 1B2 1SEND_B2",
        "2B1 2SEND_B1 2RECV_F2 2F2 2B2 2SEND_B2",
    ]


def test_what_is_sent_again_arrives_after_a_hop():
    rest = list_schedule((0, 1), 1, done=[(1, 0), (0, 0)], times=Times(hop=0.5))
    validate(rest)
    assert simulate(rest, Times(hop=0.5)).starts == ((4,), (0.5, 1.5))


def test_what_is_done_is_not_done_again():
    rest = list_schedule((0, 1), 2, done=[(1, 0), (1, 1)])
    again = rest.with_actions([[Action(0, F, 0), *rest.actions[0]], rest.actions[1]])
    with pytest.raises(UsageError, match="rank 0, action 0: 0F0 was done before the plan begins"):
        validate(again)
    with pytest.raises(UsageError, match="rank 1: 1F1 is missing"):
        validate(rest.with_actions([rest.actions[0], []]))


def test_slow_stages_make_another_order():
    equal = list_schedule((0, 1, 0), 4)
    slow = list_schedule((0, 1, 0), 4, times=Times(forward=[1, 9, 1], backward=[2, 9, 2]))
    assert equal != slow


@pytest.mark.parametrize(
    ("placement", "options", "message"),
    [
        ((), {}, "placement gives each stage its rank"),
        ((0, 2), {}, r"each of the ranks 0, 1, ... a stage; got \[0, 2\]"),
        ((1, 1), {}, "placement gives each stage its rank"),
        ((0, 1), {"limits": [1]}, r"limits: expected 2 numbers from 1, one for each stage, got \[1\]"),
        ((0, 1), {"limits": [1, 0]}, "limits: expected 2 numbers from 1"),
        ((0, 1), {"done": [(1, 1)]}, "done: expected 2 pairs of numbers, one for each stage"),
        (
            (0, 1),
            {"done": [(1, 1), (1, 2)]},
            "done: expected 0 <= backwards <= forwards <= 4, got 1 forwards and 2 back",
        ),
        ((0, 1), {"done": [(5, 1), (0, 0)]}, "got 5 forwards and 1 backwards of stage 0"),
    ],
)
def test_what_is_no_placement_or_limit_is_refused(placement, options, message):
    with pytest.raises(UsageError, match=message):
        list_schedule(placement, 4, **options)
    with pytest.raises(UsageError, match="microbatches must be at least 1, got 0"):
        list_schedule((0, 1), 0)
