"""Ranks that leave together: all know which ones, and those that stay have everything before any is gone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import resilin
from resilin import distributed as dist
from resilin import nn, optim
from resilin.data import ElasticSampler
from resilin.elastic.worker import handover, sharded_part, sync
from resilin.elastic.worker.state import State
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer


def test_every_rank_knows_who_was_asked() -> None:
    def main(rank: int) -> frozenset[int]:
        return handover.agree(rank in (1, 3), dist.default_group())

    assert run_ranks(4, main).results() == [frozenset({1, 3})] * 4


def held(state: State) -> dict[str, set[int]]:
    """The elements of each logical tensor of the present version that this rank could give."""
    thing = state._divided()["optimizer"].thing
    found: dict[str, set[int]] = {}
    for lot in thing.lots():
        for name, one in lot.slices.items() if lot.version == thing.version() else ():
            found.setdefault(name, set()).update(range(one.start, one.stop))
    return found


@pytest.mark.parametrize(
    ("going", "buddies", "moves"),
    [((1,), True, False), ((0, 1), True, False), ((1, 3), True, True), ((1,), False, True), ((0, 1, 2), True, True)],
)
def test_those_that_stay_have_everything_and_nothing_moves_where_they_had_it(
    going: tuple[int, ...], buddies: bool, moves: bool
) -> None:
    """Buddies of four are two apart."""

    def main(rank: int) -> tuple[int, dict[str, set[int]]]:
        with dist.use_group(None):
            resilin.manual_seed(rank)
            net = nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 3))
            optimizer = ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, buddies=buddies)
            state = State(model=net, optimizer=optimizer, sampler=ElasticSampler(8, 4, 4))
        group = dist.default_group()
        sync.make_equal(state, group, rank, 4)
        for param in net.parameters():
            param.grad = resilin.ones_like(param)
        state.optimizer.step()
        state.commit()
        moved = handover.hand_over(state._divided(), state._last.small.versions, frozenset(going), group)
        return moved, held(state)

    results = run_ranks(4, main).results()
    assert any(moved for moved, _ in results) == moves
    totals = {"0.exp_avg": 96, "1.exp_avg_sq": 16, "2.exp_avg": 48, "3.exp_avg": 3}
    for name, total in totals.items():
        staying = [found.get(name, set()) for rank, (_, found) in enumerate(results) if rank not in going]
        assert set().union(*staying) == set(range(total)), name


def test_nobody_hands_over_when_nobody_stays() -> None:
    def main(rank: int) -> int:
        return handover.hand_over({}, {}, frozenset({0, 1}), dist.default_group())

    assert run_ranks(2, main).results() == [0, 0]


def test_a_worker_tells_whose_parts_it_has_of_every_object():
    def part(rank, world_size, buddies):
        return SimpleNamespace(thing=SimpleNamespace(seats=lambda: (rank, world_size, buddies)))

    assert sharded_part.kept([]) == ((), 0)
    assert sharded_part.kept([part(1, 4, (2, 3, 0, 1))]) == ((1, 3), 4)
    assert sharded_part.kept([part(0, 1, ())]) == ((0,), 1)
    assert sharded_part.kept([part(2, 3, (1, 2, 0)), part(2, 3, ())]) == ((2,), 3), "the other has no second copies"
