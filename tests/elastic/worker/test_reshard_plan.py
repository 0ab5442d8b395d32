"""Who gives which elements to whom: every element that is needed comes once, from somebody who has it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilin.elastic.worker import reshard_plan
from resilin.elastic.worker.reshard_plan import Give, Hole, ReshardPlan
from resilin.resharding import buddies
from resilin.zero import partition

NAMES = {"a": 1, "b": 17, "c": 64, "empty": 0}


def ranges(world_size: int, rank: int) -> dict[str, range]:
    """A rank's part of every name."""
    return {name: partition.ranges(total, world_size, block=4)[rank] for name, total in NAMES.items()}


def with_copies(world_size: int, gone: Sequence[int] = ()) -> list[dict[str, list[range]]]:
    """What is held by those of a world that are not `gone`: own parts and those of the protégé."""
    buddy = buddies.choose([range(world_size)])
    held = []
    for rank in range(world_size):
        owners = [rank, *(other for other in range(world_size) if buddy and buddy[other] == rank)]
        if rank not in gone:
            held.append({name: [ranges(world_size, owner)[name] for owner in owners] for name in NAMES})
    return held


def check(plan: ReshardPlan, held: Sequence[dict[str, list[range]]], wanted: Sequence[dict[str, range]]) -> None:
    """Every rank gets each element that it wants once, from a rank that has it, or it is in a hole that nobody has."""
    for give in plan.gives:
        for element in range(give.start, give.stop):
            assert any(element in part for part in held[give.source].get(give.name, ()))
    for rank, want in enumerate(wanted):
        for name, part in want.items():
            got = [e for g in plan.gives if (g.receiver, g.name) == (rank, name) for e in range(g.start, g.stop)]
            holes = [e for hole in plan.holes if hole.name == name for e in range(hole.start, hole.stop)]
            assert sorted(got + [element for element in part if element in holes]) == list(part)
            assert not any(element in own for element in holes for one in held for own in one.get(name, ()))


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("before", range(1, 9))
def test_without_a_loss_any_world_becomes_any_other(before: int, after: int) -> None:
    held = (with_copies(before) + [{}] * after)[: max(before, after)]
    wanted = [ranges(after, rank) if rank < after else {} for rank in range(len(held))]
    plan = reshard_plan.plan(held, wanted)
    check(plan, held, wanted)
    assert not plan.holes


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("before", range(2, 9))
def test_any_single_loss_leaves_all_that_any_world_needs(before: int, after: int) -> None:
    for lost in range(before):
        held = with_copies(before, [lost])
        held += [{}] * (after - len(held))
        wanted = [ranges(after, rank) if rank < after else {} for rank in range(len(held))]
        plan = reshard_plan.plan(held, wanted)
        check(plan, held, wanted)
        assert not plan.holes


@pytest.mark.parametrize("before", range(2, 8))
def test_of_several_losses_exactly_those_of_a_rank_and_its_buddy_leave_holes(before: int) -> None:
    buddy = buddies.choose([range(before)])
    for count in range(2, before):
        for lost in combinations(range(before), count):
            held = with_copies(before, lost)
            plan = reshard_plan.plan(held, [{name: range(total) for name, total in NAMES.items()}])
            gone = [rank for rank in lost if buddy[rank] in lost]
            expected = {(n, e) for rank in gone for n, part in ranges(before, rank).items() for e in part}
            assert {(hole.name, e) for hole in plan.holes for e in range(hole.start, hole.stop)} == expected


def test_what_a_rank_has_it_takes_from_itself_and_neighbouring_pieces_are_one() -> None:
    held = [{"w": [range(0, 8), range(16, 24)]}, {"w": [range(8, 16), range(0, 8)]}]
    wanted = [{"w": range(0, 12)}, {"w": range(12, 24)}]
    plan = reshard_plan.plan(held, wanted)
    assert set(plan.gives) == {
        Give(0, 0, "w", 0, 8), Give(1, 0, "w", 8, 12), Give(1, 1, "w", 12, 16), Give(0, 1, "w", 16, 24)
    }  # fmt: skip
    assert set(reshard_plan.plan(held, [{"w": range(24)}, {}]).gives) == {
        Give(0, 0, "w", 0, 8), Give(1, 0, "w", 8, 16), Give(0, 0, "w", 16, 24)
    }  # fmt: skip


def test_sources_share_the_work_by_bytes() -> None:
    held: list[dict[str, list[range]]] = [{n: [range(8)] for n in "abcd"}, {n: [range(8)] for n in "abcd"}, {}]
    plan = reshard_plan.plan(held, [{}, {}, {n: range(8) for n in "abcd"}], {"a": 8, "b": 2, "c": 2, "d": 2})
    assert {give.name: give.source for give in plan.gives} == {"a": 0, "b": 1, "c": 1, "d": 1}


def test_what_nobody_has_is_named() -> None:
    held = [{"w": [range(0, 4)]}, {"w": [range(6, 8)]}]
    assert reshard_plan.plan(held, [{"w": range(8)}, {"v": range(2)}]).holes == (Hole("v", 0, 2), Hole("w", 4, 6))
    assert not reshard_plan.plan(held, [{"w": range(0)}, {}]).holes


_PART = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda ends: range(min(ends), max(ends)))
_HELD = st.dictionaries(st.sampled_from("xyz"), st.lists(_PART, max_size=3), max_size=3)
_WANTED = st.dictionaries(st.sampled_from("xyz"), _PART, max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(_HELD, _WANTED), min_size=1, max_size=5))
def test_whatever_is_held_and_wanted(ranks: list[tuple[dict[str, list[range]], dict[str, range]]]) -> None:
    held, wanted = [one for one, _ in ranks], [one for _, one in ranks]
    plan = reshard_plan.plan(held, wanted)
    check(plan, held, wanted)
    assert plan == reshard_plan.plan(held, wanted)
