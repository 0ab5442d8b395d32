"""What cannot be run is refused before anything runs, and the error says where what is wrong."""

import time

import pytest
from hypothesis import given
from plans import EVERY, naive_ends, plan, shuffled

from resilin._base.clock import Deadline
from resilin.errors import UsageError
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.generate import generate
from resilin.pipeline.plan.validate import validate
from resilin.testing.patience import PATIENCE_S

GOOD = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")


def test_a_sound_plan_says_what_it_holds():
    memory = validate(plan(*GOOD))
    assert memory.forwards == (2, 1)
    assert memory.microbatches == (2, 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("0F0 0B0 0B1", GOOD[1]), "rank 0: 0F1 is missing; each of the 2 stages computes each of the 2 micro-batches"),
        (("0F0 0F1 0B0", GOOD[1]), "rank 0: 0B1 is missing"),
        (("0F0 0F1 0B0 0I1", GOOD[1]), "of the backward of stage 0, micro-batch 1 there is 0I1; expected either B, or"),
        (("0F0 0F1 0B0 0W1", GOOD[1]), "of the backward of stage 0, micro-batch 1 there is 0W1"),
        (("0F0 0F1 0B0 0B1 0I1 0W1", GOOD[1]), "micro-batch 1 there are 0B1 and 0I1 and 0W1; expected either B, or"),
        (("0F0 0F1 0F0 0B0 0B1", GOOD[1]), "rank 0, action 2: 0F0 was done before, as action 0"),
        (("0F0 0F1 0B0 0B1 1F0", GOOD[1]), "rank 0, action 4: 1F0 is of stage 1, which is on rank 1"),
        (("0F0 0F1 0B0 0B1 2F0", GOOD[1]), "rank 0, action 4: 2F0 is of stage 2, but there are stages 0 to 1"),
        (("0F0 0F1 0B0 0B2", GOOD[1]), "rank 0, action 3: 0B2 is of micro-batch 2, expected one of 0 to 1"),
        (("0F0 0F1 0B0 0B", GOOD[1]), "rank 0, action 3: 0B is of micro-batch None, expected one of 0 to 1"),
        (("0F0 0F1 0B1 0B0", "1F0 1F1 1B0 1B1"), r"rank 0: 0B1 \(action 2\) comes before 0B0 \(action 3\), but"),
        (("0F0 0F1 0I1 0I0 0W1 0W0", GOOD[1]), r"rank 0: 0W1 \(action 4\) comes before 0W0 \(action 5\)"),
        (("0F0 ()OVERLAP_F_B", GOOD[1]), "rank 0, action 1: .* expected forwards and backwards in the brackets"),
        (("0F0 (0F1;0SEND_F1)OVERLAP_F_B", GOOD[1]), "expected forwards and backwards in the brackets"),
        (("0F0 (0F1)F", GOOD[1]), "expected forwards and backwards in the brackets"),
    ],
)
def test_what_is_wrong_is_named(rows, message):
    with pytest.raises(UsageError, match=message):
        validate(plan(*rows))


def test_another_order_of_gradients_passes_where_nobody_minds():
    reverse = plan("0F0 0F1 0B1 0B0", "1F0 1F1 1B1 1B0")
    assert validate(reverse, in_order=False).forwards == (2, 2)


def test_a_deadlock_names_the_ranks_and_what_each_waits_for():
    with pytest.raises(UsageError) as caught:
        validate(plan("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"), in_order=False)
    assert str(caught.value) == (
        "this plan deadlocks: rank 0 waits at 0B0 (action 1) for 1B0 of rank 1 (action 3); rank 1 waits at 1F1 "
        "(action 0) for 0F1 of rank 0 (action 2). Each comes behind what its rank waits at: order the actions so that "
        "none waits for a later one"
    )


def test_a_backward_before_its_forward_waits_for_its_own_rank():
    with pytest.raises(UsageError, match=r"rank 0 waits at 0B0 \(action 0\) for 0F0 of rank 0 \(action 1\)"):
        validate(plan("0B0 0F0", microbatches=1))


def test_ranks_that_only_wait_for_the_cycle_are_not_in_it():
    with pytest.raises(UsageError) as caught:
        validate(plan("0F0 0B0", "1F0 1B0", "2B0 2F0", microbatches=1))
    assert "rank 2 waits at 2B0 (action 0) for 2F0 of rank 2 (action 1). It comes later on the same rank" in str(
        caught.value
    )
    assert "rank 0" not in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("0F0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"), "rank 0: 0SEND_F0 is missing: stage 1 is on rank 1"),
        (("0F0 0SEND_F0 0RECV_B0 0B0", "1F0 1B0 1SEND_B0"), "rank 1: 1RECV_F0 is missing: stage 0 is on rank 0"),
        (("0F0 0SEND_F0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"), "rank 0: 0RECV_B0 is missing: stage 1 is on rank 1"),
        (("0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0", "1RECV_F0 1F0 1B0 1SEND_B0"), "0SEND_B0: no other rank takes part"),
        (("0SEND_F0 0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"), r"rank 0 waits at 0SEND_F0 .* for 0F0 of rank 0"),
        (("0F0 0RECV_B0 0B0 0SEND_F0", "1RECV_F0 1F0 1B0 1SEND_B0"), r"rank 0 waits at 0RECV_B0 .* for 1SEND_B0"),
        (("0F0 0SEND_F0 0RECV_B0 0B0", "1F0 1RECV_F0 1B0 1SEND_B0"), r"rank 1 waits at 1F0 .* for 1RECV_F0 of rank 1"),
    ],
)
def test_messages_that_nobody_sends_receives_or_needs_are_named(rows, message):
    with pytest.raises(UsageError, match=message):
        validate(plan(*rows, microbatches=1))


def test_a_send_that_waits_for_its_receive_may_deadlock_where_others_do_not():
    both = plan(
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    )
    validate(both)
    with pytest.raises(UsageError, match=r"rank 0 waits at 0SEND_F1 .* for 1RECV_F1 .* rank 1 waits at 1SEND_B0"):
        validate(both, synchronous=True)


def test_the_two_parts_of_one_action_wait_for_both_before_they_start():
    last = "1F0 (1F1;1B0)OVERLAP_F_B 1B1"
    validate(plan("0F0 0F1 0B0 0B1", last))
    with pytest.raises(UsageError, match=r"rank 0 waits at \(0F1;0B0\)OVERLAP_F_B \(action 1\) for \(1F1;1B0\)"):
        validate(plan("0F0 (0F1;0B0)OVERLAP_F_B 0B1", last))


def test_a_part_of_an_action_may_use_what_the_part_before_it_gives():
    validate(plan("(0F0;0B0)OVERLAP_F_B (0F1;0B1)OVERLAP_F_B"))


def test_what_a_rank_holds_is_bounded_where_a_bound_is_given():
    validate(plan(*GOOD), microbatches_at_most=2)
    with pytest.raises(
        UsageError, match=r"rank 0 keeps 2 micro-batches alive \(2 forwards of 1 stages\), .* at most 1"
    ):
        validate(plan(*GOOD), microbatches_at_most=1)


@given(shuffled())
def test_the_verdict_is_that_of_trying_all_actions_in_turn(plan):
    if naive_ends(plan):
        validate(plan, in_order=False)
    else:
        with pytest.raises(UsageError, match="this plan deadlocks: "):
            validate(plan, in_order=False)


@pytest.mark.parametrize("name", EVERY)
def test_sixteen_ranks_and_64_microbatches_take_at_most_50_ms(name):
    plan = add_communication(generate(name, 16, 64))
    late = Deadline(PATIENCE_S)
    while cost_s(plan) > 0.05:  # others share the cores: at a quiet moment
        assert not late.passed()


def cost_s(plan):
    """Processor time of a proof."""
    start = time.process_time()
    validate(plan)
    return time.process_time() - start
