"""Actions are written as PyTorch writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import plan

from resilin.errors import UsageError
from resilin.pipeline.plan.action import COMPUTATIONS, Action, ComputationType
from resilin.pipeline.plan.placement import placement
from resilin.pipeline.plan.plan import from_actions


@pytest.mark.parametrize("text", ["0F1", "2B3", "1I0", "1W0", "0SEND_F1", "7RECV_B12", "3UNSHARD", "0REDUCE_GRAD"])
def test_the_text_of_an_action_is_its_inverse(text):
    action = Action.from_str(text)
    assert str(action) == repr(action) == text


def test_sub_actions_stand_in_brackets():
    action = Action.from_str("(0F4;7B1)OVERLAP_F_B")
    assert action == Action(-1, ComputationType.OVERLAP_F_B, None, (Action.from_str("0F4"), Action.from_str("7B1")))
    assert str(action) == "(0F4;7B1)OVERLAP_F_B"
    assert action.parts == action.sub_actions
    assert action.is_compute_op


def test_an_empty_cell_is_an_idle_slot():
    assert Action.from_str("  ") is None


@pytest.mark.parametrize("text", ["F0", "0X1", "0", "0F1B2", "-1F0", "1F-1", "٣F1", "9999999999F0", "(0F1", "()X"])
def test_other_text_is_refused(text):
    with pytest.raises(UsageError, match=r"Invalid (action string|computation type)"):
        Action.from_str(text)


@given(st.integers(0, 99), st.sampled_from(ComputationType), st.integers(0, 99) | st.none())
def test_every_action_comes_back_from_its_text(stage, kind, microbatch):
    if kind is not ComputationType.OVERLAP_F_B:
        action = Action(stage, kind, microbatch)
        assert Action.from_str(str(action)) == action
        assert action.is_compute_op == (kind in COMPUTATIONS)


def test_stages_lie_in_a_loop_or_in_a_v():
    assert placement(3, 6) == (0, 1, 2, 0, 1, 2)
    assert placement(3, 9, "v") == (0, 1, 2, 2, 1, 0, 0, 1, 2)
    with pytest.raises(UsageError, match=r"num_stages 5 must be evenly divisible by pp_size 2 for V schedules"):
        placement(2, 5, "v")
    with pytest.raises(UsageError, match="Style w is not supported"):
        placement(2, 4, "w")


def test_where_stages_are_follows_from_the_actions():
    one = plan("0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0", placement=(0, 1, 1, 0), microbatches=1)
    assert from_actions(dict(enumerate(one.actions))) == one
    assert one.stages_of(0) == (0, 3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({}, "a plan has the actions of ranks 0, 1, 2"),
        ({1: []}, "a plan has the actions of ranks 0, 1, 2"),
        ({0: ["0F0"], 1: ["0B0"]}, "Rank 1, step 0: Stage 0 is assigned to both rank 1 and rank 0"),
        ({0: ["0F0"], 1: ["2F0"]}, "no rank has stage 1, though there are stages up to 2"),
        ({0: ["999999999F0"]}, "no rank has stage 0, though there are stages up to 999999999"),
        ({0: ["0F999999999"]}, "1 actions cannot be of 1000000000 micro-batches"),
        ({0: [""]}, "no rank has stage 0"),
        ({0: ["0UNSHARD"]}, "1 actions cannot be of 0 micro-batches"),
    ],
)
def test_actions_that_make_no_plan_are_refused(rows, message):
    with pytest.raises(UsageError, match=message):
        from_actions({rank: [Action.from_str(text) for text in row] for rank, row in rows.items()})
