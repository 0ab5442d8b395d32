"""A timed plan idles as its formula says, and as long as its actions and hops take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import EVERY, generated, plan

from resilin.errors import UsageError
from resilin.pipeline.plan.action import COMMUNICATIONS
from resilin.pipeline.plan.bubble import formula
from resilin.pipeline.plan.communication import add_communication, add_reduce_grad
from resilin.pipeline.plan.generate import SCHEDULES, generate
from resilin.pipeline.plan.simulate import Times, simulate

TIME = st.integers(1, 5).map(float)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 4, 8])
@pytest.mark.parametrize("name", EVERY)
def test_bubbles_are_those_of_the_formulas(name, ranks, rounds):
    if name == "DualPipeV" and rounds == 1:
        rounds = 3
    exact = formula(name, ranks, ranks * rounds)
    if exact is None:  # between p and 2p-1 micro-batches
        assert (name, rounds) == ("ZBVZeroBubble", 1)
    else:
        assert simulate(generate(name, ranks, ranks * rounds)).bubble == pytest.approx(exact)


def test_the_formula_of_1f1b_is_the_known_one():
    for ranks in (1, 2, 4):
        for microbatches in (4, 8, 16):
            known = (ranks - 1) / (microbatches + ranks - 1)
            assert formula("1F1B", ranks, microbatches) == pytest.approx(known)
            assert formula("Interleaved1F1B", ranks, microbatches, 3) == pytest.approx(
                (ranks - 1) / (3 * microbatches + ranks - 1)
            )


@given(TIME, TIME, TIME, st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_formulas_of_whole_backwards_hold_for_any_times(forward, inputs, weights, ranks, rounds, stages):
    times = Times(forward=forward, backward_input=inputs, backward_weight=weights)
    for name in ("GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B"):
        v = stages if SCHEDULES[name].several else 1
        exact = formula(name, ranks, ranks * rounds, v, forward=forward, backward_input=inputs, backward_weight=weights)
        assert simulate(generate(name, ranks, ranks * rounds, v), times).bubble == pytest.approx(exact)


def test_where_there_is_no_formula_there_is_none():
    assert formula("ZBVZeroBubble", 4, 6) is None
    assert formula("InterleavedZeroBubble", 4, 8, forward=2.0) is None
    assert formula("LoopedBFS", 4, 3) is None
    assert formula("GPipe", 4, 3) is not None


@pytest.mark.parametrize("microbatches", [4, 8, 16])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["InterleavedZeroBubble", "ZBVZeroBubble"])
def test_zero_bubble_idles_less_than_half_as_long_as_1f1b(name, ranks, microbatches):
    whole = simulate(generate("1F1B", ranks, microbatches), Times(forward=2, backward_input=2, backward_weight=2))
    halves = simulate(generate(name, ranks, microbatches))  # two stages on a rank, each of half its layers
    assert halves.bubble < whole.bubble / 2
    assert halves.total < whole.total


def test_actions_start_when_their_inputs_are_there():
    timeline = simulate(plan("0F0 0B0", "1F0 1B0", microbatches=1), Times(forward=2, backward=3, hop=0.5))
    assert timeline.starts == ((0, 8), (2.5, 4.5))
    assert timeline.ends == ((2, 11), (4.5, 7.5))
    assert timeline.total == 11
    assert timeline.busy == (5, 5)
    assert timeline.bubble == pytest.approx(1 - 10 / 22)


def test_times_may_differ_by_stage():
    timeline = simulate(plan("0F0 0I0 0W0", "1F0 1B0", microbatches=1), Times(forward=[1, 5], backward_weight=[2, 4]))
    assert timeline.ends == ((1, 12, 14), (6, 11))


def test_as_many_times_as_stages_are_expected():
    with pytest.raises(UsageError, match=r"Times.forward: expected one time or 2, one for each stage, got 3"):
        simulate(plan("0F0 0B0", "1F0 1B0", microbatches=1), Times(forward=[1, 2, 3]))


def test_two_parts_of_one_action_follow_one_another_or_take_a_time_of_their_own():
    both = plan("(0F0;1F0)OVERLAP_F_B 1B0 0B0", placement=(0, 0), microbatches=1)
    assert simulate(both, Times(forward=[2, 3])).ends == ((5, 7, 9),)
    assert simulate(both, Times(forward=[2, 3], overlap=4)).ends == ((4, 6, 8),)


def test_the_first_part_of_an_action_gives_before_the_second_ends():
    pair = plan("0F0 (0F1;0B0)OVERLAP_F_B 0B1", "1F0 1B0 1F1 1B1")
    assert simulate(pair).starts == ((0, 4, 8), (1, 2, 5, 6))
    assert simulate(pair, Times(overlap=2.5)).starts == ((0, 4, 9.5), (1, 2, 6.5, 7.5))


def test_idle_slots_and_what_is_done_for_a_whole_stage_take_no_time():
    plain = generate("1F1B", 2, 3)
    slots = plain.with_actions([[None, *row, None] for row in add_reduce_grad(plain).actions])
    timeline = simulate(slots)
    assert timeline.total == simulate(plain).total
    assert timeline.starts[0][:2] == (0, 0)
    assert timeline.starts[0][-1] == timeline.ends[0][-3]


@given(generated(ranks=4, microbatches=8), st.floats(0, 3))
def test_a_rank_that_receives_late_never_waits_longer(plan, hop):
    times = Times(hop=hop)
    late, early = (simulate(add_communication(plan, early=early), times).total for early in (False, True))
    assert late <= early + 1e-9
    assert late == pytest.approx(simulate(plan, times).total)


def test_a_message_arrives_one_hop_after_it_was_sent():
    timeline = simulate(add_communication(generate("GPipe", 2, 1)), Times(hop=0.5))
    received = [
        (str(action), end)
        for row, ends in zip(timeline.plan.actions, timeline.ends, strict=True)
        for action, end in zip(row, ends, strict=True)
        if action.computation_type in COMMUNICATIONS
    ]
    assert received == [("0SEND_F0", 1), ("0RECV_B0", 5), ("1RECV_F0", 1.5), ("1SEND_B0", 4.5)]


@given(generated(), TIME, TIME, TIME, st.floats(0, 2))
def test_no_rank_does_two_things_at_once_or_any_before_its_inputs(plan, forward, inputs, weights, hop):
    times = Times(forward=forward, backward_input=inputs, backward_weight=weights, hop=hop)
    timeline = simulate(plan, times)
    for starts, ends in zip(timeline.starts, timeline.ends, strict=True):
        assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    ended = {
        part: end
        for row, ends in zip(plan.actions, timeline.ends, strict=True)
        for action, end in zip(row, ends, strict=True)
        for part in action.parts
    }
    for row, starts in zip(plan.actions, timeline.starts, strict=True):
        for action, start in zip(row, starts, strict=True):
            stage, kind, number, parts = action
            if parts is None and kind.value == "F" and stage:
                source = next(part for part in ended if part[:3] == (stage - 1, kind, number))
                far = plan.placement[stage] != plan.placement[stage - 1]
                assert start >= ended[source] + (hop if far else 0) - 1e-9 or _in_pair(plan, source)


def _in_pair(plan, part):
    """Whether a part is one of two in an action: the first of them gives before the action ends."""
    return any(part in action.parts and action.sub_actions for row in plan.actions for action in row)
