"""Failures at one step: when they end the job, and when they speak against a node."""

from dataclasses import replace

import pytest

from resilin.elastic.membership.repeated_failures import ENTERING, Judgement, Tally, judge, tally
from resilin.elastic.membership.view import Config
from resilin.elastic.records import Generation

CONFIG = Config(min_nodes=1, max_nodes=3, max_restarts=9)
BEFORE = Generation(
    number=4, kind="inplace", members=(), nodes=(), master_addr="", master_port=1, restarts_used=2, reason="",
    failed_step=7, failed_times=2, failed_on=("a",), failed_in=3,
)  # fmt: skip


def failure(node="a", step=7, code=1, kind="", worked_in=4):
    return {"node": node, "step": step, "code": code, "type": kind, "worked_in": worked_in}


def test_one_more_failure_at_the_same_step_counts_and_its_node_is_kept():
    assert tally(BEFORE, [failure()]) == Tally(7, 3, ("a",), 4)
    assert tally(BEFORE, [failure("b")]) == Tally(7, 3, ("a", "b"), 4)


def test_workers_that_fail_together_count_once():
    assert tally(BEFORE, [failure("b"), failure("c"), failure("d")]) == Tally(7, 3, ("a", "b"), 4)


def test_one_that_fails_a_little_later_than_the_others_shows_that_it_is_not_the_node_and_counts_no_more():
    assert tally(BEFORE, [failure("b", worked_in=3)]) == Tally(7, 2, ("a", "b"), 3)
    assert tally(BEFORE, [failure("b", step=9, worked_in=3)]) == Tally(7, 2, ("a",), 3)
    assert tally(BEFORE, [failure("c", step=9), failure("b", worked_in=3)]) == Tally(9, 1, ("c",), 4)


def test_one_that_fails_in_the_world_that_others_are_about_to_enlarge_counts():
    enlarged = replace(BEFORE, failed_in=2)
    assert tally(enlarged, [failure("b", worked_in=3)]) == Tally(7, 3, ("a", "b"), 3)
    assert tally(enlarged, [failure("b", worked_in=2)]) == Tally(7, 2, ("a", "b"), 2), "it was counted"


def test_another_step_begins_anew():
    assert tally(BEFORE, [failure("b", step=9), failure("c", step=8)]) == Tally(8, 1, ("c",), 4)


@pytest.mark.parametrize(
    "told",
    [[], [failure(code=-9)], [failure(step=None)], [failure(worked_in=3)]],
    ids=["nothing", "killed", "unknown step", "did not work in this generation"],
)
def test_what_says_nothing_of_a_step_changes_nothing(told):
    assert tally(BEFORE, told) == Tally(7, 2, ("a",), 3)


def test_who_failed_because_another_did_speaks_neither_against_its_node_nor_the_step():
    assert tally(BEFORE, [failure(), failure("b", kind="PeerLost")]) == Tally(7, 3, ("a",), 4)
    assert tally(BEFORE, [failure("a", code=-9), failure("b", kind="PeerLost")]) == Tally(7, 2, ("a",), 3)
    assert tally(BEFORE, [failure("b", kind="CollectiveTimeout")]) == Tally(7, 3, ("a", "b"), 4)  # nobody else did


def test_while_one_node_had_them_all_and_others_can_take_over_it_is_suspect():
    judged = judge(BEFORE, [failure()], ("a", "b"), CONFIG)
    assert judged == Judgement(suspect="a", accusation="step 7 has failed 3 times in a row, each time on this node")


def test_a_node_that_goes_anyway_needs_no_verdict_on_the_step():
    assert judge(BEFORE, [failure()], ("b",), CONFIG).suspect == "a"


@pytest.mark.parametrize(
    ("node", "staying", "min_nodes", "why"),
    [
        ("b", ("a", "b", "c"), 1, "not of a machine (it failed on a and b) or a moment, so"),
        ("a", ("a",), 1, "not of a moment, so"),
        ("a", ("a", "b"), 2, "not of a moment (or of node a, which the job cannot do without), so"),
    ],
    ids=["it failed elsewhere", "there is no other node", "too few others"],
)
def test_otherwise_the_step_is_to_blame(node, staying, min_nodes, why):
    judged = judge(BEFORE, [failure(node)], staying, replace(CONFIG, min_nodes=min_nodes))
    assert judged.verdict.startswith("step 7 has failed 3 times in a row: the fault is of that step")
    assert why in judged.verdict
    assert judged.suspect == ""


def test_fewer_failures_and_old_ones_are_neither():
    nothing = Judgement()
    assert judge(replace(BEFORE, failed_times=1), [failure()], ("a", "b"), CONFIG) == nothing
    assert judge(replace(BEFORE, failed_times=3), [failure(code=-9)], ("a", "b"), CONFIG) == nothing
    assert judge(BEFORE, [failure()], ("a", "b"), replace(CONFIG, max_step_failures=0)) == nothing


LOST = replace(BEFORE, failed_step=ENTERING, failed_times=2, failed_in=2)


def entering(node="a", generation=4):
    return failure(node, step=None) | {"entering": True, "generation": generation}


def test_those_that_fail_on_the_way_into_one_world_count_once_whenever_they_are_seen():
    assert tally(BEFORE, [entering(), entering("b")]) == Tally(ENTERING, 1, ("a", "b"), 4)
    assert tally(LOST, [entering(generation=3)]) == Tally(ENTERING, 3, ("a",), 3), "a survivor, of the world before"
    assert tally(LOST, [entering("b", generation=2)]) == Tally(ENTERING, 2, ("a", "b"), 2), "it was counted"


def test_who_joined_and_came_to_work_ends_the_row_and_a_world_without_newcomers_does_not():
    assert tally(replace(LOST, fresh=True), []) == Tally(last=2)
    assert tally(replace(LOST, fresh=True), [failure(code=-9)]) == Tally(last=2)
    assert tally(LOST, []) == Tally(ENTERING, 2, ("a",), 2)
    assert tally(replace(LOST, fresh=True), [entering()]) == Tally(ENTERING, 3, ("a",), 4)


def test_the_verdict_says_that_it_was_on_the_way_into_a_world():
    verdict = judge(LOST, [entering("b")], ("a", "b"), CONFIG).verdict
    assert verdict.startswith("entering a new world (")
    assert "has failed 3 times in a row: the fault is of the state or the program" in verdict
