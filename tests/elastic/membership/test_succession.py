"""Which of two generations goes on where a store was lost, and how a node notices that it was."""

from dataclasses import replace

import pytest

from resilin.elastic.membership import succession
from resilin.elastic.membership.succession import REFILLED, ROOM, SPREAD, goes_back_to, judge, outranks, refill
from resilin.elastic.records import Closed, Generation, GenerationMember, Node, Slot
from resilin.elastic.rendezvous.one_store import OneStore, StoreReplaced
from resilin.store import MemoryStore


def generation(number, origin="a", refills=()):
    return Generation(
        number=number, kind="inplace", members=(GenerationMember(origin, 0, 1, 0),), nodes=(origin,), master_addr="h",
        master_port=1, restarts_used=2, reason="", origin=origin, refills=refills,
    )  # fmt: skip


def node(name, *, stateful):
    return Node(id=name, host="h", address="h", master_port=1, slots=(Slot(index=0),), stateful=stateful)


def test_what_is_put_back_is_the_last_world_under_a_number_that_nobody_has_used():
    last = generation(7)
    new = refill(last, 0xABC)
    assert 7 + ROOM <= new.number < 7 + ROOM + SPREAD
    assert (new.members, new.nodes, new.restarts_used, new.origin) == (last.members, last.nodes, 2, "a")
    assert new.refills == ((new.number, "abc"),)
    assert (new.kind, new.reason, new.boundary) == ("inplace", REFILLED, "commit")
    assert refill(new, 1).refills[:1] == new.refills


@pytest.mark.parametrize(
    ("known", "last", "goes_on"),
    [
        (generation(7), generation(7), True),
        (generation(9), generation(7), True),
        (generation(6), generation(7), False),
        (generation(9, origin="b"), generation(7), False),
        (generation(150, refills=((107, "x"),)), generation(7), True),
        (generation(150, refills=((107, "x"),)), generation(60), True),
        (generation(150, refills=((107, "x"),)), generation(107), False),
        (generation(150, refills=((107, "x"),)), generation(150, refills=((107, "x"),)), True),
        (generation(150, refills=((107, "x"),)), generation(108, refills=((107, "y"),)), False),
        (generation(250, refills=((200, "x"),)), generation(108, refills=((107, "y"),)), True),
        (generation(7), generation(107, refills=((107, "y"),)), False),
    ],
    ids=[
        "itself", "later", "earlier", "another beginning", "put back after it", "that it has not heard of, with room",
        "beyond that room", "the same line", "another line", "another line, above", "before it was put back",
    ],
)  # fmt: skip
def test_a_node_goes_on_only_with_numbers_that_its_own_line_has_not_used(known, last, goes_on):
    assert goes_back_to(known, last) is goes_on


def test_an_empty_store_is_filled_and_a_start_that_has_hardly_trained_gives_way_to_state():
    last, fresh = generation(7), generation(1, origin="new")
    young, old = [node("new", stateful=False)], [node("new", stateful=True)]
    assert judge(last, None, None, holds_state=False, there=[]) == "refill"
    assert judge(last, fresh, None, holds_state=True, there=young) == "refill"
    assert judge(last, fresh, None, holds_state=False, there=young) == "refuse"
    assert judge(last, fresh, None, holds_state=True, there=old) == "refuse"
    assert judge(last, None, Closed(outcome="succeeded", reason=""), holds_state=True, there=[]) == "refuse"


def test_the_second_of_two_survivors_joins_and_one_of_another_line_begins_anew_in_the_first():
    last = generation(7)
    first = refill(last, 5)
    assert judge(last, first, None, holds_state=True, there=[]) == "join"
    assert judge(refill(last, 5 + SPREAD), first, None, holds_state=True, there=[]) == "yield"
    assert judge(generation(1, origin="new"), first, None, holds_state=False, there=[]) == "yield"
    assert outranks(first, generation(1, origin="new"))
    assert not outranks(generation(1, origin="new"), last), "that was put back by nobody"
    assert not outranks(first, first)
    assert succession.judge(last, generation(6), None, holds_state=True, there=[]) == "refuse"


@pytest.mark.parametrize("numbered", [True, False])
def test_no_answer_of_another_store_is_taken_for_one_of_the_store_that_was_known(numbered):
    class Unnumbered(MemoryStore):
        def txn(self, *args):
            return replace(super().txn(*args), store=0)

    kind = MemoryStore if numbered else Unnumbered
    with kind() as lost, kind() as other:
        one = OneStore(lost)
        one.put("/a", b"1")
        one.put("/a", b"2")
        assert one.get("/a").value == b"2"
        one._store = other
        if numbered:
            for _ in range(9):
                other.put("/b", b"3")  # it has had more revisions than the one before
        for _ in range(2):
            with pytest.raises(StoreReplaced):
                one.get("/a")
        one.accept()
        assert one.get("/a") is None
        assert one.range("/")[1] == (10 if numbered else 1)
