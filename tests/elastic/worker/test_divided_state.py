"""State that is divided among ranks: whoever dies at whatever moment, the bits are those of one undivided optimizer."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import count, product
from pathlib import Path
from typing import Any

import generations
import numpy as np
import pytest
from generations import At, Change, play

import resilin
from resilin import checkpoint, nn, optim
from resilin import distributed as dist
from resilin.data import ElasticSampler
from resilin.ddp import DistributedDataParallel
from resilin.ddp.comm_hooks import default_hooks
from resilin.ddp.comm_hooks.ddp_zero_hook import hook_with_zero_step, hook_with_zero_step_interleaved
from resilin.elastic.worker.state import State
from resilin.errors import StateError, UsageError
from resilin.zero.optimizer import ZeroRedundancyOptimizer

STEPS = 5
KINDS = {
    "AdamW": (optim.AdamW, {"lr": 0.05}),
    "SGD with momentum": (optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "SGD": (optim.SGD, {"lr": 0.05}),  # has no state at all
    "Adafactor": (optim.Adafactor, {"lr": 0.05}),  # whole tensors
}


def make(seed: int, kind: str = "AdamW", divided: bool = True, as_view: bool = False, snapshot: bool = False) -> State:
    resilin.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    frozen = nn.Parameter(resilin.ones(5), requires_grad=False)
    optimizer_class, options = KINDS[kind]
    params = [*net.parameters(), frozen]
    optimizer = (
        ZeroRedundancyOptimizer(params, optimizer_class, parameters_as_bucket_view=as_view, **options)
        if divided
        else optimizer_class(params, **options)
    )
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    sampler = ElasticSampler(8, 4, 2)
    return State(snapshot=snapshot, model=net, optimizer=optimizer, scheduler=scheduler, sampler=sampler, seen=0)


def train(state: State, at: At, until: int = STEPS) -> None:
    while state.step < until:
        for plan in state.sampler.steps():
            state.optimizer.zero_grad()
            x = np.random.default_rng(state.step).standard_normal((4, 6)).astype(np.float32)
            state.model(resilin.from_numpy(x)).square().mean().backward()
            dist.all_reduce(resilin.ones(1))
            at("reduced")
            state.optimizer.step()
            at("applied")
            state.scheduler.step()
            state.seen += 1
            state.commit(plan)
            at("committed")
            if state.step == until:
                return


plain_digest = generations.digest


def digest(state: State) -> str:
    """As `generations.digest`, with the whole state of the optimizer gathered on each rank in turn."""
    if not isinstance(state.optimizer, ZeroRedundancyOptimizer):
        return plain_digest(state)
    found = ""
    for rank in range(dist.get_world_size()):
        state.optimizer.consolidate_state_dict(to=rank)
        if rank == dist.get_rank():
            found = plain_digest(state)
    return found


@pytest.fixture(autouse=True)
def _gather_for_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "digest", digest)


@cache
def undisturbed(kind: str = "AdamW") -> str:
    """One worker with the plain optimizer."""
    (one,) = play(partial(make, kind=kind, divided=False), train, 1)
    return one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_in_every_world_the_bits_are_those_of_the_plain_optimizer(size: int, kind: str) -> None:
    assert set(play(partial(make, kind=kind), train, size)) == {undisturbed(kind)}


@pytest.mark.parametrize("site", ["reduced", "applied", "committed"])
def test_whoever_is_lost_of_whatever_world_and_whatever_comes_after(site: str, turns: Callable[..., int]) -> None:
    for size in (2, 3):
        for lost, after in list(product(range(size), (size - 1, size, size + 2)))[:: turns(short=2, full=1)]:
            change = Change(2, site, (lost,), after)
            assert set(play(make, train, size, [change])) == {undisturbed()}, (size, change)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_state_outlives_a_loss(kind: str) -> None:
    changes = [Change(1, "reduced", (2,), 3), Change(3, "applied", (0,), 2)]
    assert set(play(partial(make, kind=kind), train, 3, changes)) == {undisturbed(kind)}


def test_worlds_that_grow_and_shrink_at_commits_and_lose_ranks_between() -> None:
    changes = [
        Change(1, "committed", (), 3), Change(2, "applied", (1,), 4), Change(3, "committed", (), 2),
        Change(4, "reduced", (0,), 1),
    ]  # fmt: skip
    for size in (1, 2):
        assert set(play(make, train, size, changes)) == {undisturbed()}


def test_a_snapshot_of_everything_else_goes_together_with_divided_state() -> None:
    changes = [Change(1, "reduced", (1,), 3), Change(2, "moment 30", (0,), 2), Change(3, "applied", (1,), 2)]
    assert set(play(partial(make, snapshot=True), train, 3, changes)) == {undisturbed()}


@pytest.mark.parametrize(("size", "lost", "as_view"), [(2, 1, True), (3, 0, False)])
def test_a_rank_may_die_at_every_announced_moment_of_a_step(
    size: int, lost: int, as_view: bool, turns: Callable[..., int]
) -> None:
    """Every message, every piece of every collective, before and after each part of the step, until the next step."""
    for number in count(0, turns(short=4, full=1)):
        changes = [
            Change(1, "reduced", (1,), size),  # so one of the survivors is a newcomer
            Change(STEPS - 2, f"moment {number}", (lost,), size - 1),
        ]
        began: list[tuple[int, int]] = []
        assert set(play(partial(make, as_view=as_view), counting(began), size, changes)) == {undisturbed()}, changes
        if (0, size - 1) not in began:  # the rank did not die: there is no such moment
            break
    assert number > 25, "announcements of a step"


@pytest.mark.parametrize("site", ["applied", "moment 8", "moment 20"])
def test_another_rank_may_die_while_the_others_recover(site: str, turns: Callable[..., int]) -> None:
    """Rank 0 of four dies first; its buddy is rank 2, so rank 1 or 3 may be lost before it has new copies."""
    for second in (0, 2):  # in the world without rank 0
        for number in range(second, 1000, turns(short=19, full=3)):
            began: list[tuple[int, int]] = []
            changes = [Change(STEPS - 2, site, (0,), 3), Change(0, f"moment {number}", (second,), 2)]
            assert set(play(make, counting(began), 4, changes)) == {undisturbed()}, changes
            if (second, 3) in began:  # it had recovered
                break
        assert number > 20, "announcements of a recovery"


def test_what_is_lost_with_a_rank_and_its_buddy_is_named() -> None:
    with pytest.raises(StateError) as raised:
        play(make, train, 4, [Change(2, "reduced", (1, 3), 4)])
    assert str(raised.value) == (
        "optimizer: the state of 72 elements is lost, [48, 96) of '0' and 3 more ranges: ranks [1, 3] of the world of "
        "4 went at once, and with them both copies of what rank 1 (buddy 3), 3 (buddy 1) held. Load the last checkpoint"
    )


def test_an_optimizer_of_a_group_of_its_own_is_refused() -> None:
    def made(seed: int) -> State:
        state = make(seed)
        state.optimizer._given = True
        return state

    with pytest.raises(UsageError, match=r"made with process_group=\.\.\., but elastic\.run makes a new group"):
        play(made, train, 2)


def test_ranks_that_divide_other_parameters_are_named() -> None:
    def made(seed: int) -> State:
        state = make(seed)
        if seed:
            state.optimizer.add_param_group({"params": [nn.Parameter(resilin.ones(3))]})
        return state

    with pytest.raises(StateError, match="optimizer: rank 1 divides other parameters than rank 0"):
        play(made, train, 2)


def counting(began: list[tuple[int, int]]):  # type: ignore[no-untyped-def]
    """`train`, which remembers who has begun to, in worlds of which size."""

    def trained(state: State, at: At) -> None:
        began.append((dist.get_rank(), dist.get_world_size()))
        train(state, at)

    return trained


def test_the_fingerprint_is_one_for_all_worlds_and_that_of_a_world_that_has_ended_is_refused() -> None:
    found: list[str] = []
    states: list[State] = []

    def trained(state: State, at: At) -> None:
        train(state, at)
        states.append(state)
        found.append(state.fingerprint())

    for size in (1, 2, 3):
        play(make, trained, size, [Change(2, "applied", (0,), size)] if size > 1 else [])
    assert len(found) == 1 + 2 + 3
    assert len(set(found)) == 1
    states[0].fingerprint()  # of one rank: nobody else is needed
    with pytest.raises(UsageError, match="divided among 3 ranks, and their world has ended"):
        states[-1].fingerprint()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_checkpoint_of_all_ranks_goes_on_in_another_world(tmp_path: Path, after: int) -> None:
    def until_saved(state: State, at: At) -> None:
        train(state, at, until=3)
        checkpoint.save(tmp_path / "saved", {"state": state})

    def from_saved(state: State, at: At) -> None:
        checkpoint.load(tmp_path / "saved", {"state": state})
        assert state.step == 3
        train(state, at)

    play(make, until_saved, 2)
    assert set(play(make, from_saved, after)) == {undisturbed()}


def test_who_dies_after_a_load_within_a_world_costs_nothing_of_it(tmp_path: Path) -> None:
    def loading(state: State, at: At) -> None:
        if state.step == 0:
            checkpoint.load(tmp_path / "saved", {"state": state})
        at("loaded")
        train(state, at)

    def until_saved(state: State, at: At) -> None:
        train(state, at, until=3)
        checkpoint.save(tmp_path / "saved", {"state": state})

    play(make, until_saved, 2)
    assert set(play(make, loading, 3, [Change(3, "loaded", (1,), 2)])) == {undisturbed()}


def test_what_is_divided_for_good_is_refused_with_what_to_do() -> None:
    class Divided(nn.Linear):
        def sharded_state_dict(self) -> None:
            """What such modules have."""

    with pytest.raises(UsageError, match=r"'model' is a Divided whose state is divided among the ranks.*resilin\.zero"):
        State(model=Divided(2, 2))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_kept_twice_is_as_much_as_documented_and_half_of_it_only_within_a_step(size: int) -> None:
    between: list[dict[str, int]] = []
    within: list[dict[str, int]] = []

    def trained(state: State, at: At) -> None:
        train(state, lambda site: within.append(state.optimizer.stats()) if site == "applied" else None, until=3)
        between.append(state.optimizer.stats())

    play(make, trained, size, [Change(2, "committed", (), size)])
    state, params = sum(stats["own_state_bytes"] for stats in between), 4 * between[0]["elements"]
    kept = [sum(stats.get("kept_bytes", 0) for stats in each) for each in (between, within[-size:])]
    assert kept == ([state, 3 * state + 2 * params] if size > 1 else [0, 0])  # on all ranks together


@pytest.mark.parametrize("hook", [hook_with_zero_step, hook_with_zero_step_interleaved])
def test_updates_inside_backward_are_redone_as_well(hook: Callable[..., Any]) -> None:
    def made(seed: int) -> State:
        state = make(seed)
        params = [param for param in state.model.parameters() if param.requires_grad]
        optimizer = ZeroRedundancyOptimizer(params, optim.AdamW, overlap_with_ddp=True, lr=0.05)
        return State(model=state.model, optimizer=optimizer, sampler=ElasticSampler(8, 4, 2))

    def trained(state: State, at: At) -> None:
        model = DistributedDataParallel(state.model)
        model.register_comm_hook(None, hook(default_hooks.allreduce_hook, model, state.optimizer))
        while state.step < STEPS:
            for plan in state.sampler.steps():
                state.optimizer.zero_grad()
                x = np.random.default_rng(state.step).standard_normal((4, 6)).astype(np.float32)
                model(resilin.from_numpy(x)).square().mean().backward()  # the mean of two equal gradients is exact
                state.commit(plan)
                if state.step == STEPS:
                    break

    (expected,) = play(made, trained, 1)
    for number in range(0, 60, 7):
        changes = [Change(STEPS - 2, f"moment {number}", (number % 2,), 2)]
        assert set(play(made, trained, 2, changes)) == {expected}, changes


def test_without_buddies_nothing_is_kept_and_a_loss_names_the_setting() -> None:
    def made(seed: int) -> State:
        state = make(seed)
        optimizer = ZeroRedundancyOptimizer(state.model.parameters(), optim.AdamW, lr=0.05, buddies=False)
        scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return State(model=state.model, optimizer=optimizer, scheduler=scheduler, sampler=state.sampler, seen=0)

    stats: list[dict[str, int]] = []

    def trained(state: State, at: At) -> None:
        train(state, at)
        stats.append(state.optimizer.stats())

    play(made, trained, 2, [Change(2, "committed", (), 3)])
    assert not any("buddy" in each for each in stats)
    for site in ("applied", "reduced"):
        with pytest.raises(StateError, match=r"ranks \[1\] of the world of 2 went, .*made with buddies=False\. Load"):
            play(made, train, 2, [Change(2, site, (1,), 2)])
    for number in (20, 24, 28):  # inside of the step
        with pytest.raises(StateError, match=r"made with buddies=False\. Load the last checkpoint"):
            play(made, train, 2, [Change(2, f"moment {number}", (1,), 2)])
