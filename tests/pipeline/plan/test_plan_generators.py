"""Every schedule, for every number of ranks, stages and micro-batches that it takes, is a plan that can be run."""

import itertools

import pytest
from hypothesis import given
from plans import EVERY, B, F, I, W, generated

from resilin.errors import UsageError
from resilin.pipeline.plan import csv
from resilin.pipeline.plan.action import Action, computations
from resilin.pipeline.plan.communication import add_communication, add_reduce_grad, merge_backward
from resilin.pipeline.plan.generate import SCHEDULES, generate, schedule
from resilin.pipeline.plan.simulate import simulate
from resilin.pipeline.plan.validate import validate


@given(generated())
def test_every_plan_can_be_run_timed_written_and_read(plan):
    memory = validate(plan)
    assert all(0 < held <= plan.microbatches for held in memory.microbatches)
    timeline = simulate(plan)
    assert 0 <= timeline.bubble < 1
    assert csv.loads(csv.dumps(plan)) == plan
    for complete in (add_communication(plan), add_communication(plan, early=True)):
        assert validate(complete) == memory
        assert csv.loads(csv.dumps(complete)) == complete
        assert complete.computations() == plan
    assert simulate(add_communication(plan)).total == timeline.total


@given(generated())
def test_every_plan_does_what_its_placement_says(plan):
    assert plan.placement == schedule(plan.schedule).placement(plan.ranks, plan.stages)
    for rank in range(plan.ranks):
        done = [action for action in computations(plan.actions[rank]) if action.computation_type is F]
        assert sorted(done) == [
            Action(stage, F, number) for stage in plan.stages_of(rank) for number in range(plan.microbatches)
        ]


@given(generated())
def test_forwards_alone_can_be_run_too(plan):
    forwards = plan.forward_only()
    validate(forwards, backward=False)
    validate(add_communication(forwards), backward=False)
    with pytest.raises(UsageError, match=r"in a plan of forwards alone"):
        validate(plan, backward=False)


@given(generated())
def test_nothing_deadlocks_where_a_send_waits_for_its_receive(plan):
    validate(add_communication(plan, early=True), synchronous=True)


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches"),
    [
        (name, ranks, microbatches)
        for name in ("1F1B", "ZBVZeroBubble")
        for ranks in (1, 2, 4, 8, 16)
        for microbatches in (1, 3, 8, 16, 17, 32, 64)
        if name != "1F1B" or microbatches >= ranks
    ],
)
def test_a_rank_holds_as_many_microbatches_as_there_are_ranks_at_most(name, ranks, microbatches):
    memory = validate(generate(name, ranks, microbatches), microbatches_at_most=ranks)
    if name == "1F1B":
        assert memory.microbatches == tuple(float(ranks - rank) for rank in range(ranks))


def test_a_rank_of_gpipe_holds_all_microbatches():
    assert validate(generate("GPipe", 4, 9)).microbatches == (9, 9, 9, 9)


def test_few_microbatches_take_zbv_less_time_than_its_pattern_with_gaps():
    for ranks in range(2, 9):
        assert simulate(generate("ZBVZeroBubble", ranks, ranks)).total == 6 * ranks + ranks - 1


def test_schedules_are_found_by_name_in_any_case():
    assert schedule("zbvZEROBUBBLE") is SCHEDULES["ZBVZeroBubble"]
    with pytest.raises(UsageError, match=r"Unknown schedule name 'ZB'. The valid options are \['GPipe', '1F1B'"):
        schedule("ZB")


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("1F1B", (4, 3), r"Number of microbatches \(3\) must be greater than or equal to the number of stages \(4\)"),
        ("Interleaved1F1B", (4, 9), r"Interleaved 1F1B requires the number of microbatches to be a multiple of the "
         r"number of rounds \(2\), but got 9"),
        ("InterleavedZeroBubble", (4, 9), r"Zero bubble requires the number of microbatches to be a multiple of the "
         r"number of rounds \(2\), but got 9"),
        ("ZBVZeroBubble", (4, 8, 1), "ZBV requires exactly 2 stages per rank, but got 1"),
        ("DualPipeV", (4, 8, 3), "DualPipeV requires exactly 2 stages per rank, but got 3"),
        ("DualPipeV", (4, 7), "DualPipeV requires at least as many microbatches as stages, but got 7 microbatches and "
         "8 stages"),
        ("GPipe", (0, 4), "GPipe: ranks must be at least 1, got 0"),
        ("GPipe", (4, 0), "GPipe: microbatches must be at least 1, got 0"),
        ("LoopedBFS", (4, 4, 0), "LoopedBFS: stages per rank must be at least 1, got 0"),
        ("1F1B", (4, 4, 2), "1F1B has 1 stage on each rank, got 2 stages per rank"),
    ],
)  # fmt: skip
def test_numbers_that_a_schedule_does_not_take_are_refused(name, numbers, message):
    with pytest.raises(UsageError, match=message):
        generate(name, *numbers)


@pytest.mark.parametrize("name", EVERY)
def test_one_rank_computes_without_communication(name):
    plan = generate(name, 1, 4)
    assert not add_communication(plan).has_communication
    assert simulate(plan).bubble == 0


@given(generated())
def test_gradients_of_a_stage_are_complete_after_its_last_weights(plan):
    for row in add_reduce_grad(plan).actions:
        complete = [action.stage_index for action in row if str(action).endswith("REDUCE_GRAD")]
        assert sorted(complete) == sorted({part.stage_index for part in computations(row)})
        for stage, (position, _) in zip(complete, _reduced(row), strict=True):
            later = [part for part in computations(row[position:]) if part.stage_index == stage]
            assert not [part for part in later if part.computation_type in (B, W)]


def _reduced(row):
    return [(position, action) for position, action in enumerate(row) if str(action).endswith("REDUCE_GRAD")]


@given(generated())
def test_merged_halves_are_the_same_backwards(plan):
    merged = merge_backward(plan)
    validate(merged)
    assert merge_backward(merged) == merged
    for before, after in itertools.pairwise(action for row in merged.actions for action in row):
        assert not (before.computation_type is I and after == before._replace(computation_type=W))
