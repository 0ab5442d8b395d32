"""What one rank computes and another needs is sent and received, once, where it is of use."""

import pytest
from hypothesis import given
from plans import generated, plan

from resilin.errors import UsageError
from resilin.pipeline.plan.action import COMMUNICATIONS, COMPUTATIONS, Action, ComputationType
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.generate import generate

RECEIVES = {ComputationType.RECV_F, ComputationType.RECV_B}


def text(plan):
    return [" ".join(map(str, row)) for row in plan.actions]


def test_a_receive_stands_before_what_needs_it_and_a_send_behind_what_gives_it():
    assert text(add_communication(generate("1F1B", 2, 2))) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    ]


def test_stages_on_one_rank_send_nothing():
    both = plan("0F0 1F0 1B0 0B0", "2F0 2B0", placement=(0, 0, 1), microbatches=1)
    assert text(add_communication(both)) == [
        "0F0 1F0 1SEND_F0 1RECV_B0 1B0 0B0",
        "2RECV_F0 2F0 2B0 2SEND_B0",
    ]


def test_what_two_parts_of_an_action_need_is_received_before_both():
    row = " ".join(map(str, add_communication(generate("DualPipeV", 2, 4)).actions[0]))
    assert " 3RECV_F2 0RECV_B0 (3F2;0B0)OVERLAP_F_B 3B2 3SEND_B2 " in row
    assert " (0F3;3B1)OVERLAP_F_B 0SEND_F3 3SEND_B1 " in row


@given(generated())
def test_with_early_receives_messages_between_two_ranks_never_overtake(plan):
    complete = add_communication(plan, early=True)
    sent, received = {}, {}
    for row in complete.actions:
        for stage, kind, number, _ in row:
            if kind in COMMUNICATIONS:
                step = 1 if kind.value.endswith("F") else -1
                first, second = (stage - step, stage) if kind in RECEIVES else (stage, stage + step)
                lane = (complete.placement[first], complete.placement[second])
                (received if kind in RECEIVES else sent).setdefault(lane, []).append((first, second, number))
    assert sent == received


@given(generated())
def test_with_late_receives_only_what_needs_a_message_follows_it(plan):
    for row in add_communication(plan).actions:
        for number, action in enumerate(row):
            if action.computation_type in RECEIVES:
                user = next(later for later in row[number:] if later.computation_type in COMPUTATIONS)
                kinds = "F" if action.computation_type is ComputationType.RECV_F else "IB"
                assert any(
                    Action(action.stage_index, ComputationType(kind), action.microbatch_index) in user.parts
                    for kind in kinds
                )


def test_communication_is_added_once():
    with pytest.raises(UsageError, match="this plan has communication already"):
        add_communication(add_communication(generate("1F1B", 2, 2)))


def test_a_plan_that_deadlocks_gets_none():
    with pytest.raises(UsageError, match="this plan deadlocks"):
        add_communication(plan("0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"))
