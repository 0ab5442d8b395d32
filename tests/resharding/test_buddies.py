"""Buddies: on another host where there is one, each rank the buddy of one; what they exchange arrives whole."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from resilin import distributed as dist
from resilin._base import fault_points
from resilin.distributed.api.reconfigurable import Lot, Outline, Slice, Version
from resilin.errors import CollectiveMismatch
from resilin.resharding import buddies
from resilin.resharding.buddies import Pairing
from resilin.resharding.survivor import Survivor
from resilin.testing.ranks import run_ranks


def hosts_of(sizes: tuple[int, ...], spread: bool) -> list[list[int]]:
    """Ranks of hosts of these sizes: host by host, or dealt out in turn."""
    total = sum(sizes)
    if not spread:
        ranks = iter(range(total))
        return [[next(ranks) for _ in range(size)] for size in sizes]
    hosts: list[list[int]] = [[] for _ in sizes]
    turn = 0
    for rank in range(total):
        while len(hosts[turn % len(sizes)]) == sizes[turn % len(sizes)]:
            turn += 1
        hosts[turn % len(sizes)].append(rank)
        turn += 1
    return hosts


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("count", range(1, 5))
def test_every_rank_is_the_buddy_of_one_and_as_many_as_can_be_have_theirs_on_another_host(
    count: int, spread: bool
) -> None:
    for sizes in combinations_with_replacement(range(1, 5), count):
        hosts, total = hosts_of(sizes, spread), sum(sizes)
        chosen = buddies.choose(hosts)
        if total == 1:
            assert chosen == ()
            continue
        assert sorted(chosen) == list(range(total))
        assert all(buddy != rank for rank, buddy in enumerate(chosen))
        where = {rank: number for number, host in enumerate(hosts) for rank in host}
        elsewhere = sum(where[rank] != where[buddy] for rank, buddy in enumerate(chosen))
        assert elsewhere == min(total, 2 * (total - max(sizes)))


@pytest.mark.parametrize("total", range(2, 9))
def test_neighbours_up_to_half_of_the_ranks_may_leave_together(total: int) -> None:
    chosen = buddies.choose([range(total)])
    for first in range(total):
        leaving = {(first + n) % total for n in range(total // 2)}
        assert not any(chosen[rank] in leaving for rank in leaving)


def lot_of(rank: int, step: int, generation: int, sizes: dict[str, int]) -> Lot:
    slices = {name: Slice(rank, 1 << 30, np.arange(size) * 100.0 + rank * 10 + step) for name, size in sizes.items()}
    return Lot((step, generation), slices, {"step": step // 2}, {"w": range(rank, rank + 1)})


@pytest.mark.parametrize("transport", ["shm", "hosts"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_slices_of_any_size_arrive_whole_also_when_they_change_their_shape(
    world_size: int, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buddies, "CHUNK_BYTES", 64)
    monkeypatch.setattr(buddies, "DIRECT_BYTES", 400)
    sizes = [{}, {"a": 3}, {"a": 3}, {"a": 3}, {"a": 0, "b": 100}, {"b": 100, "c": 1}]

    def main(rank: int) -> None:
        pairing = Pairing(dist.default_group())
        for step, size in enumerate(sizes):
            mine = {name: length + 7 * rank for name, length in size.items()}
            got = pairing.exchange(lot_of(rank, step, 1, mine), Outline.empty)
            theirs = {name: length + 7 * pairing.protege for name, length in size.items()}
            expected = lot_of(pairing.protege, step, 1, theirs)
            assert got.outline() == expected.outline()
            assert all(np.array_equal(got.slices[n].array, one.array) for n, one in expected.slices.items())

    run_ranks(world_size, main, transport=transport).results()


def test_a_rank_that_stepped_more_often_than_its_protege_is_named() -> None:
    def main(rank: int) -> None:
        pairing = Pairing(dist.default_group())
        pairing.exchange(lot_of(rank, 4 + rank, 1, {"a": 2}), Outline.empty)

    outcome = run_ranks(2, main)
    texts = [str(error) for error in outcome.errors.values() if isinstance(error, CollectiveMismatch)]
    assert texts
    assert "all ranks must call step() equally often" in texts[0]


def test_every_piece_announces_itself_to_those_who_plan_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buddies, "CHUNK_BYTES", 64)
    heard: list[str] = []
    monkeypatch.setattr(fault_points, "heard", heard.append)

    def main(rank: int) -> None:
        Pairing(dist.default_group()).exchange(lot_of(rank, 1, 1, {"a": 16}), Outline.empty)

    run_ranks(2, main).results()
    assert heard.count("buddy") == 2 * (1 + 2 + 1), "before, after each of two chunks, and after"
    heard.clear()
    monkeypatch.setattr(buddies, "DIRECT_BYTES", 16)
    run_ranks(2, main).results()
    assert heard.count("buddy") == 2 * (1 + 1 + 1), "before, after the slice, and after"


class Nothing:
    """A `Content` without slices."""

    def own(self, version: Version) -> Lot:
        return Lot(version, {})

    def use(self, lot: Lot, group: dist.ProcessGroup) -> None:
        pass

    def writes(self) -> list[int]:
        return []


@pytest.mark.parametrize("size", [1, 2])
def test_the_buddy_and_what_is_kept_are_told_in_every_world_that_may_have_them(size: int) -> None:
    def work(rank: int) -> list[dict[str, int | None]]:
        found = []
        for twice in (True, False):
            survivor = Survivor(Nothing(), twice)  # type: ignore[arg-type]
            found.append(dict(survivor.stats()))
            survivor.prepare(Lot((0, 1), {}), dist.default_group())
            survivor.take_over()
            found.append(dict(survivor.stats()))
        return found

    buddy = None if size == 1 else 1
    assert run_ranks(size, work).results()[0] == [{}, {"buddy": buddy, "kept_bytes": 0}, {}, {}]
