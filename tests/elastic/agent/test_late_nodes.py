"""What nodes may not know of one another yet, as simulated schedules found it: each of these once ended a job."""

from resilin.elastic.membership import decision, queries
from resilin.elastic.membership.view import Config, Seen, View
from resilin.elastic.records import Generation, GenerationMember, Node, Slot

CONFIG = Config(min_nodes=1, max_nodes=4, max_restarts=3)


def seen(name, revision, **slot):
    place = {"host": name, "address": name, "master_port": 1}
    return Seen(node=Node(id=name, **place, slots=(Slot(index=0, **slot),)), create_revision=revision)


def generation(number, kind="inplace", **incarnations):
    members = [
        GenerationMember(node=node, slot=0, incarnation=incarnation, rank=rank)
        for rank, (node, incarnation) in enumerate(incarnations.items())
    ]
    return Generation(
        number=number,
        kind=kind,
        members=tuple(members),
        nodes=tuple(incarnations),
        master_addr="a",
        master_port=1,
        restarts_used=0,
        reason="",
    )


def test_a_process_that_a_restart_is_about_to_end_is_no_newcomer():
    ready = seen("a", 1, incarnation=1, state="ready", endpoint="a")
    late = seen("b", 2, incarnation=1, state="ready", endpoint="b")  # it has not heard that b/0#2 is a member
    view = View(nodes=(ready, late), generation=generation(3, "restart", a=1, b=2))
    new, _ = decision.decide(view, CONFIG, 10.0)
    assert new is None or len({(m.node, m.slot) for m in new.members}) == len(new.members)


def test_a_name_that_was_given_to_a_process_is_never_given_again():
    idle = seen("a", 1, incarnation=4), seen("b", 2)  # b has not started the worker that generation 3 named
    view = View(nodes=idle, generation=generation(3, "restart", a=4, b=1, c=2))
    new, _ = decision.decide(view, CONFIG, 10.0)
    assert {m.node: m.incarnation for m in new.members} == {"a": 5, "b": 2}


def test_a_worker_that_was_done_in_a_world_that_is_over_joins_again():
    goes_on = seen("a", 1, incarnation=1, state="ready", endpoint="a")
    back = seen("b", 2, incarnation=1, state="done", endpoint="b", done_in=2, over=2)
    view = View(nodes=(goes_on, back), generation=generation(3, a=1))
    new, _ = decision.decide(view, CONFIG, 10.0)
    assert {m.node for m in new.members} == {"a", "b"}


def test_a_worker_that_was_stopped_for_a_restart_and_came_again_counts_as_no_failure():
    stays = seen("a", 1, incarnation=1, state="ready", endpoint="a")
    again = seen("b", 2, incarnation=2, state="ready", endpoint="b", stopped=1)
    view = View(nodes=(stays, again), generation=generation(1, a=1, b=1))
    new, _ = decision.decide(view, CONFIG, 10.0)
    assert {m.node: m.incarnation for m in new.members} == {"a": 1, "b": 2}
    assert new.restarts_used == 0


def test_a_spare_has_the_place_of_a_node_that_can_take_no_part_any_more():
    stays = seen("a", 1, incarnation=1, state="ready", endpoint="a")
    spent = seen("b", 2, incarnation=1, state="failed", fault="external")
    view = View(nodes=(stays, spent, seen("c", 3)), generation=generation(1, a=1, b=1))
    no_restarts = Config(min_nodes=2, max_nodes=2, max_restarts=0)
    assert queries.invited(view, no_restarts) == ("c",)
    assert queries.invited(view, Config(min_nodes=2, max_nodes=2, max_restarts=1)) == ()
