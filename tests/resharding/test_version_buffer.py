"""Two versions of every step: whoever dies at whatever moments, the others have one step whole, and agree on which.

A model of ranks that hold their slices in real `VersionBuffer`s: every order of events that messages allow is played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pytest

from resilin.core.tensor import Tensor
from resilin.distributed.api.reconfigurable import Lot, Slice, Version
from resilin.elastic.worker import reshard_plan
from resilin.resharding import buddies
from resilin.resharding.version_buffer import VersionBuffer

ELEMENTS = 24  # divide evenly in worlds of 2, 3 and 4
FIRST, SECOND = (7, 1), (8, 1)  # the versions before and after the step

# what a rank does in a step, in order; a rank comes out of SENT when its protégé is UPDATED, and GATHERED when all are
# there; COMMITTED is the last
BETWEEN, BEGUN, WRITING, UPDATED, RECEIVED, GATHERING, GATHERED, COMMITTED = range(8)


def content(version: Version) -> np.ndarray:
    """The right state of all elements; parameters are its negative."""
    return np.arange(ELEMENTS, dtype=np.float64) + 1000 * version[0]


@dataclass
class Rank:
    """One rank: its keeper, the slices in use, its parameters."""

    number: int
    world_size: int

    def __post_init__(self) -> None:
        self.keeper = VersionBuffer()
        self.keeper.version = FIRST
        self.live = content(FIRST)[self.own].copy()
        self.param = Tensor._wrap(-content(FIRST))
        self.keeper._kept = self.lot_of(self.protege, FIRST)
        self.keeper.keep(self.shared)
        self.step = FIRST[0]

    @property
    def protege(self) -> int:
        """The rank whose buddy it is."""
        return buddies.choose([range(self.world_size)]).index(self.number)

    def part(self, rank: int) -> slice:
        """The elements of `rank`."""
        each = ELEMENTS // self.world_size
        return slice(rank * each, (rank + 1) * each)

    @property
    def own(self) -> slice:
        """Its elements."""
        return self.part(self.number)

    @property
    def shared(self) -> dict[str, Tensor]:
        """Its parameters."""
        return {"param": self.param}

    def lot_of(self, rank: int, version: Version) -> Lot:
        """A copy of the right slices of `rank`."""
        part = self.part(rank)
        return Lot(version, {"state": Slice(part.start, ELEMENTS, content(version)[part].copy())})

    def own_lot(self) -> Lot:
        """The slices in use."""
        return Lot(self.keeper.version, {"state": Slice(self.own.start, ELEMENTS, self.live)})

    def write(self, part: slice) -> None:
        """New values of some parameters."""
        self.param._array[part] = -content(SECOND)[part]
        self.param._bump()

    def advance(self, to: int) -> None:
        """Do what leads from the state before to `to`."""
        keeper = self.keeper
        if to == BEGUN:
            parts = [self.own, self.part(self.protege)]
            keeper.begin(self.own_lot(), self.shared, [{"param": range(part.start, part.stop)} for part in parts])
        elif to == WRITING:
            half = slice(self.own.start, self.own.start + len(self.live) // 2)
            self.live[: len(self.live) // 2] = content(SECOND)[half]
            self.write(half)
        elif to == UPDATED:
            self.live[:] = content(SECOND)[self.own]
            self.write(self.own)
            keeper.updated(SECOND[1])
            self.half = keeper.room(self.lot_of(self.protege, SECOND).outline())
            self.half.slices["state"].array[:3] = content(SECOND)[self.part(self.protege)][:3]  # half of it has come
        elif to == RECEIVED:
            self.half.slices["state"].array[:] = content(SECOND)[self.part(self.protege)]
            keeper.received(self.half)
        elif to == GATHERING:  # from some ranks, not from others
            self.write(self.part((self.number + 1) % self.world_size))
        elif to == GATHERED:
            self.write(slice(None))
        elif to == COMMITTED:
            keeper.keep(self.shared)
            self.step = SECOND[0]


def reachable(world_size: int) -> Iterator[tuple[int, ...]]:
    """How far all ranks may be at one time."""
    protege = [buddies.choose([range(world_size)]).index(rank) for rank in range(world_size)]
    for phases in product(range(COMMITTED + 1), repeat=world_size):
        exchanged = all(phase < RECEIVED or phases[protege[rank]] >= UPDATED for rank, phase in enumerate(phases))
        if exchanged and all(phase < GATHERED or min(phases) >= RECEIVED for phase in phases):
            yield phases


def play(phases: Sequence[int]) -> list[Rank]:
    """Ranks that are so far."""
    ranks = [Rank(number, len(phases)) for number in range(len(phases))]
    for rank, phase in zip(ranks, phases, strict=True):
        for to in range(BEGUN, phase + 1):
            rank.advance(to)
    return ranks


def recovered(survivors: Sequence[Rank], name: str, total: int = ELEMENTS) -> tuple[Version, np.ndarray] | None:
    """What the survivors put together at the commit that counts; None: some of it is lost. Every lot that claims to
    have the version is read in every order."""
    version = max((SECOND if rank.step == SECOND[0] else FIRST) for rank in survivors)
    lots = [
        [lot for lot in rank.keeper.lots(rank.own_lot(), rank.shared) if lot.version == version] for rank in survivors
    ]
    held = [
        {name: [range(lot.slices[name].start, lot.slices[name].stop) for lot in own if name in lot.slices]}
        for own in lots
    ]
    plan = reshard_plan.plan(held, [{name: range(total)}, *[{}] * (len(survivors) - 1)])
    if plan.holes:
        return None
    sign = -1 if name == "param" else 1
    for own in lots:  # whatever a rank says that it has of this version is right, not only what is asked of it
        for lot in own:
            if name in lot.slices:
                one = lot.slices[name]
                assert np.array_equal(one.array, sign * content(version)[one.start : one.stop])
    return version, sign * content(version)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_whoever_dies_the_others_have_the_step_of_the_last_commit_whole(world_size: int) -> None:
    played = 0
    for phases in reachable(world_size):
        ranks = play(phases)
        for lost in range(world_size):
            survivors = [rank for rank in ranks if rank.number != lost]
            assert recovered(survivors, "state") is not None, (phases, lost)
            if all(rank.step == FIRST[0] for rank in survivors):  # else those that committed have parameters whole
                assert recovered(survivors, "param") is not None, (phases, lost)
            played += 1
    assert played > 50


def test_of_two_that_die_together_only_a_rank_and_its_buddy_are_missed() -> None:
    buddy = buddies.choose([range(4)])
    for phases in reachable(4):
        if len(set(phases)) > 2:
            continue
        ranks = play(phases)
        for lost in combinations(range(4), 2):
            found = recovered([rank for rank in ranks if rank.number not in lost], "state")
            assert (found is None) == (buddy[lost[0]] == lost[1] or buddy[lost[1]] == lost[0]), (phases, lost)


def test_a_second_step_before_the_commit_keeps_the_version_of_the_commit() -> None:
    rank = Rank(0, 2)
    for to in (*range(BEGUN, GATHERED), BEGUN, WRITING, UPDATED):
        rank.advance(to)
    versions = [lot.version for lot in rank.keeper.lots(rank.own_lot(), rank.shared)]
    assert versions == [(9, 1), FIRST, FIRST, FIRST, FIRST], "own now; own, two ranges of parameters, the protégé's"
    rank.advance(RECEIVED)
    rank.keeper.keep(rank.shared)
    assert [lot.version for lot in rank.keeper.lots(rank.own_lot(), rank.shared)] == [(9, 1), SECOND, (9, 1)]


def test_parameters_that_somebody_else_has_written_are_given_to_nobody() -> None:
    rank = Rank(0, 2)
    rank.param.data[3] = 5.0
    assert not any("param" in lot.slices for lot in rank.keeper.lots(rank.own_lot(), rank.shared))
    rank.advance(BEGUN)
    assert not any("param" in lot.slices for lot in rank.keeper.lots(rank.own_lot(), rank.shared))


def test_mended_parameters_are_given_whole_as_of_the_version_before() -> None:
    rank = Rank(0, 2)
    for to in range(BEGUN, GATHERED + 1):
        rank.advance(to)
    rank.param._array[:] = -content(FIRST)
    rank.param._bump()
    assert whole_parameters(rank) == []
    rank.keeper.mended(rank.shared)
    assert whole_parameters(rank) == [FIRST]
    rank.write(slice(0, 1))
    assert whole_parameters(rank) == []


def whole_parameters(rank: Rank) -> list[Version]:
    """The versions at which it gives all of them."""
    lots = rank.keeper.lots(rank.own_lot(), rank.shared)
    return [lot.version for lot in lots if "param" in lot.slices and lot.slices["param"].array.size == ELEMENTS]


def test_what_is_set_aside_for_worlds_that_did_not_begin_is_given_too_until_one_begins() -> None:
    rank = Rank(0, 2)
    asides = [(rank.lot_of(0, FIRST), rank.lot_of(1, FIRST)) for _ in range(2)]
    before = len(rank.keeper.lots(rank.own_lot(), rank.shared))
    for own, protege in asides:
        rank.keeper.set_aside(own, protege)
    assert len(rank.keeper.lots(rank.own_lot(), rank.shared)) == before + 4
    assert rank.keeper.take_over() is asides[-1][0]
    assert rank.keeper.lots(rank.own_lot(), rank.shared)[1:] == [asides[-1][1]], "parameters are given after `keep`"


def test_after_a_commit_one_copy_of_the_other_ranges_is_left() -> None:
    rank = Rank(0, 2)
    for _ in range(3):
        for to in (BEGUN, UPDATED, RECEIVED):
            rank.advance(to)
        each = rank.live.nbytes
        assert rank.keeper.nbytes() == 5 * each, "state before; two ranges of parameters; two versions of the protégé's"
        rank.advance(COMMITTED)
        assert rank.keeper.nbytes() == each


def test_where_nothing_is_kept_slices_that_are_being_written_are_given_to_nobody() -> None:
    rank = Rank(0, 2)
    rank.keeper = VersionBuffer()
    rank.keeper.version = FIRST
    rank.keeper.keep(rank.shared)
    rank.keeper.begin_alone(rank.shared)
    assert rank.keeper.lots(rank.own_lot(), rank.shared) == []
    assert rank.keeper.begun, "parameters may be half-written"
    rank.keeper.updated(1)
    assert [lot.version for lot in rank.keeper.lots(rank.own_lot(), rank.shared)] == [(8, 1)]
    rank.keeper.keep(rank.shared)
    assert not rank.keeper.begun
    assert rank.keeper.nbytes() == 0


def test_room_is_filled_in_the_order_of_the_new_outline() -> None:
    keeper = VersionBuffer()
    one = Slice(0, 4, np.zeros(4))
    keeper.received(Lot(FIRST, {"a": one, "b": one}))
    room = keeper.room(Lot(SECOND, {"b": one, "a": one}).outline())
    assert list(room.slices) == ["b", "a"]
