"""Gradients of a stage come in the order of micro-batches, whatever order a plan has."""

from hypothesis import given
from hypothesis import strategies as st
from plans import W, generated, plan

from resilin.pipeline.plan.action import Action
from resilin.pipeline.plan.gradient_order import in_order
from resilin.pipeline.plan.validate import validate


def test_the_first_half_of_an_early_backward_stays_where_it_is():
    reverse = plan("0F0 0F1 0F2 0B2 0B1 0B0", "1F0 1F1 1F2 1B2 1B1 1B0", microbatches=3)
    ordered = in_order(reverse)
    assert list(map(str, ordered.actions[0])) == ["0F0", "0F1", "0F2", "0I2", "0I1", "0B0", "0W1", "0W2"]
    assert validate(ordered).forwards == (3, 3)


def test_a_part_of_an_action_is_halved_too():
    pair = plan("0F0 0F1 (0F2;0B1)OVERLAP_F_B 0B0 0B2", microbatches=3)
    assert list(map(str, in_order(pair).actions[0])) == ["0F0", "0F1", "(0F2;0I1)OVERLAP_F_B", "0B0", "0W1", "0B2"]


@given(generated())
def test_a_plan_in_order_stays_as_it_is(plan):
    assert in_order(plan) == plan


@given(st.permutations(range(5)), st.permutations(range(5)), st.booleans())
def test_any_order_of_backwards_becomes_that_of_microbatches(inputs, weights, split):
    row = [f"0F{number}" for number in range(5)]
    row += [f"0{'I' if split else 'B'}{number}" for number in inputs]
    row += [f"0W{number}" for number in weights] if split else []
    ordered = in_order(plan(" ".join(row), microbatches=5))
    validate(ordered)
    gradients = [part.microbatch_index for part in ordered.actions[0] if str(part)[1] in "BW"]
    assert gradients == list(range(5))
    assert in_order(ordered) == ordered


def test_what_is_missing_is_not_made_up():
    ordered = in_order(plan("0F0 0F1 0I1 0W1", microbatches=2))
    assert Action(0, W, 1) not in ordered.actions[0]
