"""A node whose workers keep failing is out for a while: when, for how long, and what the world makes of it."""

from dataclasses import replace

import pytest

from resilin.elastic.membership import scaling
from resilin.elastic.membership.node_quarantine import NodeQuarantine, Rules
from resilin.elastic.membership.view import Seen, View
from resilin.elastic.records import Node, Slot, Wanted

RULES = Rules(failures=3, within_s=100.0, first_s=10.0, longest_s=40.0)


def node(name, **fields):
    given = {"min_nodes": 1, "slots": (Slot(index=0),), **fields}
    return Node(id=name, host=name, address=name, master_port=1, **given)


def view(*nodes, wanted=None):
    seen = tuple(Seen(node=each, create_revision=number) for number, each in enumerate(nodes))
    return View(nodes=seen, wanted=wanted)


PAIR = view(node("a"), node("b"))


class Story:
    """Node a as time goes on."""

    def __init__(self):
        self.lines = []
        self.of = NodeQuarantine("a", RULES, self.lines.append)

    def fails(self, *times, others=PAIR, min_nodes=1):
        """Failures at these times; until when the node is out, after the last."""
        until = self.of.update(others, min_nodes, times[0])
        for now in times:
            self.of.failed(now)
            until = self.of.update(others, min_nodes, now)
        return until


def test_failures_in_a_row_take_the_node_out_for_a_while():
    story = Story()
    assert story.fails(1.0, 2.0, 31.0) == 41.0
    assert story.of.reason.startswith("3 of its workers failed within 30 s while those of other nodes were well")
    assert story.of.update(PAIR, 1, 40.9) == 41.0
    assert story.of.update(PAIR, 1, 41.0) is None
    assert story.of.reason == ""
    assert [line.partition(":")[0] for line in story.lines] == ["this node is excluded", "this node takes part again"]


def test_fewer_failures_or_slower_ones_do_not():
    assert Story().fails(1.0, 2.0) is None
    assert Story().fails(1.0, 60.0, 120.0, 180.0) is None


def test_each_time_is_longer_up_to_a_limit_and_a_long_calm_forgets():
    story, now, lengths = Story(), 0.0, []
    for _ in range(4):
        lengths.append(story.fails(now, now, now) - now)
        now += lengths[-1] + 1.0
    assert lengths == [10.0, 20.0, 40.0, 40.0]
    now += RULES.longest_s
    story.of.update(PAIR, 1, now)
    assert story.fails(now, now, now) - now == 10.0


def test_what_fails_everywhere_is_no_fault_of_the_node():
    story = Story()
    story.of.update(PAIR, 1, 0.0)
    assert story.fails(1.0, 2.0, 3.0, others=view(node("a"), node("b", failures=2))) is None


def test_failures_of_others_that_are_long_past_do_not_count():
    story = Story()
    story.of.update(view(node("a"), node("b", failures=7)), 1, 0.0)
    assert story.fails(1.0, 2.0, 3.0, others=view(node("a"), node("b", failures=7))) == 13.0


@pytest.mark.parametrize(
    ("others", "min_nodes"),
    [(view(node("a")), 1), (PAIR, 2), (view(node("a"), node("b", leaving=True)), 1)],
)
def test_a_node_that_is_needed_stays(others, min_nodes):
    assert Story().fails(1.0, 2.0, 3.0, others=others, min_nodes=min_nodes) is None


def test_to_the_world_an_excluded_node_is_one_that_leaves():
    out = view(node("a", excluded="its workers failed"), node("b"))
    assert [seen.node.leaving for seen in scaling.adjusted(out).nodes] == [True, False]


def test_never_are_fewer_than_min_left():
    nodes = [node(name, excluded="failing", min_nodes=2) for name in "abc"]
    assert scaling.excluded(view(*nodes)) == {"a"}
    assert scaling.excluded(view(*nodes, wanted=Wanted(min_nodes=1, max_nodes=3))) == {"a", "b"}
    assert scaling.excluded(view(*nodes, wanted=Wanted(drained=("c",)))) == frozenset()
    assert scaling.excluded(view(*nodes[:2], replace(nodes[2], leaving=True))) == frozenset()


def test_a_node_whose_workers_were_all_asked_to_leave_is_nobody_who_goes_on():
    asked = tuple(
        Slot(index=index, state=state, leaving=state == "ready") for index, state in enumerate(("left", "ready"))
    )
    emptied = view(node("a"), node("b", slots=asked))
    assert Story().fails(1.0, 2.0, 3.0, others=emptied) is None
    out = view(node("a", excluded="failing"), *[seen.node for seen in emptied.nodes[1:]])
    assert scaling.excluded(out) == frozenset()
    assert scaling.excluded(view(*[seen.node for seen in out.nodes], node("c"))) == {"a"}


def test_a_node_that_alone_failed_at_one_step_goes_however_slowly_it_failed_and_others_are():
    story = Story()
    story.of.update(PAIR, 1, 0.0)
    troubled = view(node("a"), node("b", failures=2))
    story.of.accuse("step 7 has failed 3 times in a row, each time on this node")
    assert story.of.update(troubled, 1, 500.0) == 510.0
    assert story.of.reason == ("step 7 has failed 3 times in a row, each time on this node: it takes no part for 10 s")
    story.of.accuse("again")  # of a worker that was still ending
    assert story.of.update(troubled, 1, 501.0) == 510.0
    assert story.of.update(troubled, 1, 511.0) is None
