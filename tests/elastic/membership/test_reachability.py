"""Who goes on when some nodes cannot connect with others: the pure choice against all sets, and what it never does."""

import itertools
import random
import time
from dataclasses import replace

import pytest

from resilin.elastic.hangs.stall_record import Stall, Standing
from resilin.elastic.membership import decision, queries, reachability, scaling
from resilin.elastic.membership.reachability import Candidate, staying
from resilin.elastic.membership.view import Config, Seen, View
from resilin.elastic.records import Generation, GenerationMember, Node, Slot


def best_by_brute_force(candidates, pairs):
    """The rule as the docs say it, over every set: ids of those that go on, nobody where no set has all the state."""
    bad = {frozenset(pair) for pair in pairs}
    everything = set().union(*(c.parts for c in candidates))
    best = None
    for count in range(len(candidates) + 1):
        for chosen in itertools.combinations(candidates, count):
            if any(frozenset((a.id, b.id)) in bad for a, b in itertools.combinations(chosen, 2)):
                continue
            holders = sum(c.holders for c in chosen)
            held = set().union(*(c.parts for c in chosen)) == everything
            lowest = sorted(c.rank for c in chosen)
            key = (held, sum(c.workers for c in chosen), holders, any(c.leads for c in chosen), [-r for r in lowest])
            if best is None or key > best[0]:
                best = key, frozenset(c.id for c in chosen)
    return best[1] if best[0][0] else frozenset()


def random_case(seed, most):
    """Candidates and pairs that are apart; in half of the cases state is divided, and each part is kept twice."""
    chance = random.Random(seed)
    count = chance.randint(1, most)
    ranks = chance.sample(range(100), count)
    leader = chance.randrange(count)
    divided, away = chance.random() < 0.5, chance.sample(range(count), chance.choice([0, 0, 1]))
    candidates = []
    for i in range(count):
        workers = chance.choice([1, 1, 2, 8])
        holders = workers if divided else chance.choice([0, workers])
        parts = {i, (i + count // 2) % count} if divided and i not in away else {0} if holders and not divided else ()
        candidates.append(Candidate(
            id=f"n{i}", workers=workers, holders=holders, rank=ranks[i], leads=i == leader, parts=frozenset(parts),
        ))  # fmt: skip
    density = chance.choice([0.1, 0.3, 0.7, 1.0])
    pairs = [p for p in itertools.combinations([c.id for c in candidates], 2) if chance.random() < density]
    return candidates, pairs


def test_the_choice_is_the_best_of_all_sets(turns):
    nobody = 0
    for seed in range(turns(short=300, full=20_000)):
        candidates, pairs = random_case(seed, 9)
        kept = staying(candidates, pairs)
        assert kept == best_by_brute_force(candidates, pairs), (seed, candidates, pairs)
        nobody += not kept
    assert nobody > 20, "cases in which no set that is whole has all the state"


def test_the_order_in_which_it_is_told_makes_no_difference():
    for seed in range(200):
        candidates, pairs = random_case(seed, 12)
        chance = random.Random(seed)
        again = [pair if chance.random() < 0.5 else pair[::-1] for pair in chance.sample(pairs, len(pairs))]
        assert staying(chance.sample(candidates, len(candidates)), again) == staying(candidates, pairs)


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 300])
def test_many_nodes_with_many_cuts_still_leave_a_set_that_is_whole_and_has_the_state(count):
    for seed in range(10):
        chance = random.Random(seed)
        ranks = chance.sample(range(count), count)
        candidates = [
            Candidate(id=str(i), workers=1, holders=held, rank=ranks[i], parts=frozenset({0} if held else ()))
            for i in range(count)
            for held in [int(i == 0 or chance.random() < 0.1)]
        ]
        pairs = [p for p in itertools.combinations(map(str, range(count)), 2) if chance.random() < 0.2]
        begin = time.process_time()
        kept = staying(candidates, pairs)
        assert time.process_time() - begin < 5
        assert not any(one in kept and other in kept for one, other in pairs)
        assert sum(c.holders for c in candidates if c.id in kept) > 0


def test_a_network_in_two_halves_is_two_vertices_whatever_its_size():
    halves = [[f"{side}{i}" for i in range(500)] for side in "ab"]
    candidates = [
        Candidate(id=name, workers=1, holders=1, rank=rank, leads=name == "b7", parts=frozenset({0}))
        for rank, name in enumerate([*halves[0], *halves[1]])
    ]
    assert staying(candidates, list(itertools.product(*halves))) == frozenset(halves[1])


def a_view(chance):
    """Some nodes, of which some are members of a world, and what each says of the others."""
    names = [f"n{i}" for i in range(chance.randint(2, 7))]
    inside = chance.sample(names, chance.randint(1, len(names)))
    nodes = []
    for number, name in enumerate(names):
        others = [other for other in names if other != name and chance.random() < 0.25]
        slots = (Slot(index=0, incarnation=1, state="ready", endpoint=name, has_state=chance.random() < 0.5),)
        node = Node(
            id=name, host=name, address=name, master_port=1, slots=slots, unreachable=tuple(others),
            leaving=chance.random() < 0.1,
        )  # fmt: skip
        nodes.append(Seen(node=node, create_revision=number))
    members = tuple(GenerationMember(name, 0, 1, rank) for rank, name in enumerate(inside))
    generation = Generation(
        number=3, kind="inplace", members=members, nodes=tuple(inside), master_addr="", master_port=1, restarts_used=0,
        reason="",
    )  # fmt: skip
    return View(nodes=tuple(nodes), generation=generation, elected=chance.choice(names))


def test_of_any_relation_what_takes_part_is_whole_and_nobody_is_left_out_for_nothing():
    for seed in range(500):
        view = a_view(random.Random(seed))
        seen = scaling.adjusted(view)
        inside = {s.node.id for s in seen.nodes if not s.node.leaving}
        pairs = reachability.pairs_apart(view)
        assert not any(one in inside and other in inside for one, other in pairs)
        left_out = {s.node.id for s in seen.nodes if s.apart}
        for name in left_out:
            foes = {b if a == name else a for a, b in pairs if name in (a, b)}
            assert foes & inside, (seed, name)
            assert view.node(name) is not None
            assert seen.apart(name)


def divided(chance, inside, outside=(), world=4):
    """Nodes with one worker each; those of `inside`, in rank order, are the present world, which nobody has taken up.

    All were in the one before it, of as many ranks, and have its parts: their own, and those of one other.
    """
    names = sorted([*inside, *outside])
    buddy = len(names) // 2
    nodes = []
    for number, name in enumerate(names):
        parts = (number, (number + buddy) % len(names))
        slot = Slot(
            index=0, incarnation=1, state="ready", endpoint=name, has_state=True, parts=parts, parts_in=world,
            parts_of=len(names),
        )  # fmt: skip
        others = tuple(other for other in names if other != name and chance.random() < 0.3)
        node = Node(id=name, host=name, address=name, master_port=1, slots=(slot,), unreachable=others)
        nodes.append(Seen(node=node, create_revision=number))
    members = tuple(GenerationMember(name, 0, 1, rank) for rank, name in enumerate(inside))
    generation = Generation(
        number=world + 1, kind="inplace", members=members, nodes=tuple(inside), master_addr="", master_port=1,
        restarts_used=0, reason="",
    )  # fmt: skip
    return View(nodes=tuple(nodes), generation=generation, elected=chance.choice(names))


def test_who_goes_on_has_all_of_divided_state_or_all_wait_and_nobody_is_ended():
    config = Config(min_nodes=1, max_nodes=9, max_restarts=0)
    torn, joined = 0, 0
    for seed in range(600):
        chance = random.Random(seed)
        names = [f"n{i}" for i in range(chance.randint(2, 7))]
        inside = chance.sample(names, chance.randint(1, len(names)))
        seen = scaling.adjusted(divided(chance, inside, set(names) - set(inside)))
        here = [s.node for s in seen.nodes if not s.node.leaving]
        pairs = reachability.pairs_apart(seen)
        parts = {part for node in here for part in node.slots[0].parts}
        whole = [
            some
            for count in range(1, len(names) + 1)
            for some in itertools.combinations(seen.nodes, count)
            if not any((a.node.id, b.node.id) in pairs for a, b in itertools.combinations(some, 2))
            if {part for s in some for part in s.node.slots[0].parts} == set(range(len(names)))
        ]
        assert bool(here) == bool(whole), (seed, seen)
        assert seen.torn == (not whole), (seed, seen)
        situation = decision.assess(seen, config, 0.0)
        if whole:
            assert parts == set(range(len(names))), (seed, seen)
            joined += any(node.id not in inside for node in here)
            continue
        torn += 1
        assert situation.action == "steady", (seed, situation)
        assert decision.decide(seen, config, 0.0)[0] is None
        assert {m.node for m in queries.standing_by(seen)} == set(names), "all wait as long as it takes"
        assert all("no nodes that all reach one another have the whole divided state" in s.apart for s in seen.nodes)
    assert torn > 50
    assert joined > 50


def test_who_waits_is_told_whose_parts_are_beyond_the_cut():
    view = cut(divided(random.Random(0), "abcd"), "ab", "ad", "cb", "cd")
    found = reachability.apart(view)
    assert found.keys() == set("abcd")
    assert "that of ranks 1, 3 of generation 4 is beyond the cut" in found["a"]
    assert "that of ranks 0, 2 of generation 4 is beyond the cut" in found["b"]


def test_a_set_with_all_of_divided_state_goes_before_a_larger_one():
    """Of six, of which three and three are buddies: those that have one another's parts are three, and no others."""
    view = divided(random.Random(0), "abcdef")  # a and d have the same parts, b and e, c and f
    view = cut(view, *(f"{one}{other}" for one in "abde" for other in "cf"))
    assert reachability.apart(view).keys() == set("abcdef")
    assert reachability.apart(cut(view, *(f"{one}{other}" for one in "de" for other in "cf"))).keys() == set("de")


def test_a_node_that_was_left_out_counts_for_its_parts_until_the_others_have_taken_up_a_world():
    torn = cut(divided(random.Random(0), "abc", "d"), "ab", "ad", "cb", "cd")
    assert reachability.apart(torn).keys() == set("abcd"), "a newer world is agreed on, and nobody has taken it up"
    without = replace(torn, nodes=tuple(s for s in torn.nodes if s.node.id in "ac"))
    assert reachability.apart(without) == {}, "b and d are gone, and with them what they alone had: the others go on"
    for parts, name in (((0, 2), "a"), ((1, 0), "b"), ((2, 1), "c")):
        torn = with_slot(torn, name, parts=parts, parts_in=5, parts_of=3)
    assert reachability.apart(torn).keys() == set("bd"), "of three, a and c have all parts"
    assert reachability.apart(with_slot(torn, "c", parts=())).keys() == set("bd"), "nothing told: it has everything"
    never = with_slot(torn, "a", parts_of=1 << 60)
    assert reachability.apart(never).keys() == set("bd"), "nobody ever had so many parts"


def test_in_a_world_that_is_as_large_as_it_may_be_those_with_parts_that_nobody_else_has_come_first():
    """The world is of a and c, who have the same parts; nobody has taken it up, and b has the others."""
    view = divided(random.Random(0), "ac", "bd")
    view = cut(replace(view, nodes=tuple(s for s in view.nodes if s.node.id != "d")))
    config = Config(min_nodes=1, max_nodes=9, max_restarts=0)
    for name in "abc":
        view = with_slot(view, name, limit=2)
    new, _ = decision.decide(scaling.adjusted(view), config, 0.0)
    assert new is not None
    assert [(m.node, m.rank) for m in new.members] == [("a", 0), ("b", 1)]
    whole = view
    for name in "abc":
        whole = with_slot(whole, name, parts=())
    assert decision.decide(scaling.adjusted(whole), config, 0.0)[0] is None, "all have everything: nobody gives way"
    for name in "ac":
        whole = with_slot(whole, name, has_state=False)
    new, _ = decision.decide(scaling.adjusted(whole), config, 0.0)
    assert new is not None
    assert [m.node for m in new.members] == ["a", "b"], "b alone has it"


def test_where_no_member_has_the_state_those_with_the_newest_are_taken_first():
    view = cut(divided(random.Random(0), "x", "abc"))
    for name, number in (("a", None), ("b", 3), ("c", 5)):
        view = with_slot(view, name, parts=(), has_state=number is not None, left_out_after=number or 0)
    alone = replace(view, nodes=tuple(s for s in view.nodes if s.node.id != "x"))
    one, two = (Config(min_nodes=1, max_nodes=most, max_restarts=0) for most in (1, 2))
    assert queries.invited(alone, one) == ("c",)
    assert queries.invited(alone, two) == ("c", "b")
    assert queries.invited(view, two) == ("a",), "x has it: the oldest first"
    new, _ = decision.decide(scaling.adjusted(alone), one, 0.0)
    assert new is not None
    assert (new.kind, [m.node for m in new.members]) == ("inplace", ["c"])


def cut(view, *pairs):
    """The view with these cuts, and no others."""
    nodes = [
        replace(s, node=replace(s.node, unreachable=tuple(pair[1] for pair in pairs if pair[0] == s.node.id)))
        for s in view.nodes
    ]
    return replace(view, nodes=tuple(nodes))


def with_slot(view, name, **changes):
    """The view in which that node's slot is another."""
    nodes = [
        replace(s, node=replace(s.node, slots=(replace(s.node.slots[0], **changes),))) if s.node.id == name else s
        for s in view.nodes
    ]
    return replace(view, nodes=tuple(nodes))


def test_without_a_cut_nothing_changes():
    view = a_view(random.Random(1))
    well = View(
        nodes=tuple(Seen(node=s.node.__class__(**{**vars(s.node), "unreachable": ("gone",)}), create_revision=1)
                    for s in view.nodes),
        generation=view.generation,
    )  # fmt: skip
    assert scaling.adjusted(well) is well


def test_while_members_look_why_nobody_goes_on_their_links_are_no_reason_to_leave_any_out():
    """Who tells first would decide: of a node that is cut from three, the first cut that is told may be any."""
    view = a_view(random.Random(7))
    inside = view.generation.nodes
    cut = reachability.pairs_apart(view)
    within = {pair for pair in cut if set(pair) <= set(inside)}
    assert within, "a case in which members are apart"
    assert reachability.cuts_within(view, inside).count("cannot connect with one another") == len(within)
    begun = with_stall(view, inside[0], Stall(generation=view.generation.number, round=1))
    assert reachability.pairs_apart(begun) == cut - within
    assert reachability.cuts_within(begun, inside) == ""
    who = Standing(rank=0, pid=1, doing="idle")
    over = with_stall(view, inside[0], Stall(generation=view.generation.number, round=1, workers=(who,)))
    assert reachability.pairs_apart(over) == cut
    earlier = with_stall(view, inside[0], Stall(generation=view.generation.number - 1, round=1))
    assert reachability.pairs_apart(earlier) == cut


def test_who_has_said_nothing_since_the_store_lost_its_record_is_left_out_first():
    """Its record stands for a lease, it may be dead; the others' failed tries of it come one by one."""
    slots = (Slot(index=0, incarnation=1, state="ready", endpoint="there", has_state=True),)

    def node(name, put_back=False, unreachable=()):
        made = Node(
            id=name, host=name, address=name, master_port=1, slots=slots, put_back=put_back, unreachable=unreachable
        )
        return Seen(node=made, create_revision=1)

    members = tuple(GenerationMember(name, 0, 1, rank) for rank, name in enumerate("abc"))
    generation = Generation(
        number=9, kind="inplace", members=members, nodes=tuple("abc"), master_addr="", master_port=1, restarts_used=0,
        reason="",
    )  # fmt: skip
    for tried in (("b",), ("c",), ("b", "c")):
        others = [node(name, unreachable=("a",) if name in tried else ()) for name in "bc"]
        view = View(nodes=(node("a", put_back=True), *others), generation=generation, elected="a")
        assert reachability.apart(view).keys() == {"a"}
    alone = [replace(s, node=replace(s.node, slots=(replace(slots[0], has_state=False),))) for s in others]
    view = View(nodes=(node("a", put_back=True), *alone), generation=generation, elected="b")
    assert reachability.apart(view).keys() == {"b", "c"}, "it alone has the state, and may come back"


def with_stall(view, name, stall):
    """The view in which that node says so."""
    nodes = [replace(s, node=replace(s.node, stall=stall)) if s.node.id == name else s for s in view.nodes]
    return replace(view, nodes=tuple(nodes))
