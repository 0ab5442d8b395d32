"""A rank is lost at each action of each schedule: only what is not done is made again, and the bits stay the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from typing import Any

import extent
import pytest
import test_divided_pipelines as divided
from generations import Change, play

import resilin
from resilin import nn, optim
from resilin.data import ElasticSampler
from resilin.distributed.pipelining import ElasticPipeline, SplitPoint, pipeline
from resilin.elastic.worker.state import State
from resilin.pipeline import broken_step
from resilin.pipeline.plan.action import FULL_BACKWARD
from resilin.pipeline.plan.generate import SCHEDULES, generate
from resilin.pipeline.step import PipelineStep
from resilin.pipeline.step_log import StageProgress

MICROBATCHES, RANKS = divided.MICROBATCHES, 2


def net_of(seed: int, norm: bool) -> nn.Module:
    resilin.manual_seed(seed)
    third = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8) if norm else nn.LayerNorm(8))
    return nn.Sequential(nn.Linear(6, 16), nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 16)), third, nn.Linear(8, 3))


def make(seed: int, schedule: str = "", norm: bool = True, **options: Any) -> State:
    net = net_of(seed, norm)
    model: Any = net
    if schedule:
        paths = ("2",) if SCHEDULES[schedule].stages_per_rank == 1 else ("1", "2", "3")
        pipe = pipeline(net, (), split_spec=dict.fromkeys(paths, SplitPoint.BEGINNING))
        model = ElasticPipeline(pipe, MICROBATCHES, divided.loss_of, schedule, **options)
    optimizer = optim.AdamW(model.parameters(), lr=0.05)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    return State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=ElasticSampler(8, 8), seen=0)


@cache
def undisturbed(norm: bool = True) -> str:
    (one,) = play(partial(make, norm=norm), divided.train, 1)
    return one


def actions_of(schedule: str, rank: int) -> int:
    plan = generate(schedule, RANKS, MICROBATCHES)
    return sum(len(action.parts) for action in plan.computations().of(rank))


DEATHS = [
    (schedule, rank, action, after)
    for schedule in SCHEDULES
    for rank in range(RANKS)
    for action in range(actions_of(schedule, rank))
    for after in (1, 2, 3)
]


@pytest.mark.parametrize(
    ("schedule", "victim", "action", "after"), extent.short(DEATHS, of=DEATHS[:: -(-len(DEATHS) // 20)])
)
def test_whoever_is_lost_at_whatever_action_the_bits_are_those_of_the_module(
    schedule: str, victim: int, action: int, after: int
) -> None:
    change = Change(1, f"action {action}", (victim,), after, seats=action % 2 == 0)  # else some stages move
    assert set(play(partial(make, schedule=schedule), divided.train, RANKS, [change])) == {undisturbed()}


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int, str, int]]:
    """How often (step, stage, F, I or W, micro-batch) was done, on all ranks of all worlds: a B is both halves."""
    found: Counter[tuple[int, int, str, int]] = Counter()
    real = PipelineStep._give

    def give(self: PipelineStep, stage: Any, kind: Any, microbatch: int, given: Any) -> None:
        for each in "IW" if kind is FULL_BACKWARD else kind.value:
            found[self.number, stage.stage_index, each, microbatch] += 1
        real(self, stage, kind, microbatch, given)

    monkeypatch.setattr(PipelineStep, "_give", give)
    return found


@pytest.mark.parametrize("schedule", ["1F1B", "GPipe", "Interleaved1F1B", "ZBVZeroBubble"])
@pytest.mark.parametrize("victim", [0, 1])
def test_what_survivors_have_done_is_not_made_again(schedule: str, victim: int, done: Counter[Any]) -> None:
    change = Change(1, "action 6", (victim,), RANKS, seats=True)
    assert set(play(partial(make, schedule=schedule), divided.train, RANKS, [change])) == {undisturbed()}
    lost = set(generate(schedule, RANKS, MICROBATCHES).stages_of(victim))
    again = {key for key, count in done.items() if count > 1}
    assert again
    assert {step for step, *_ in again} == {1}
    assert {stage for _, stage, *_ in again} <= lost


@pytest.mark.parametrize(("schedule", "action"), [("1F1B", 5), ("Interleaved1F1B", 12), ("ZBVZeroBubble", 13)])
@pytest.mark.parametrize("norm", [False, True])
def test_a_stage_that_moves_brings_its_gradients_along(
    schedule: str, action: int, norm: bool, done: Counter[Any]
) -> None:
    moved = set(generate(schedule, RANKS, MICROBATCHES).stages_of(1))
    written = {1 if schedule == "1F1B" else 2} if norm else set()  # its buffers are those of later micro-batches
    change = Change(1, f"action {action}", (0,), RANKS)  # rank 1 takes the seat of rank 0, a newcomer its own
    assert set(play(partial(make, schedule=schedule, norm=norm), divided.train, RANKS, [change])) == {undisturbed(norm)}
    again = {stage for (_, stage, kind, _), count in done.items() if count > 1 and kind == "W" and stage in moved}
    assert again == written & moved  # of a stage that has not brought them, those of micro-batch 0 were summed twice


def test_two_losses_in_one_step_and_one_while_the_first_is_mended(turns: Callable[..., int]) -> None:
    cases = list(product(range(0, 16, 3), range(0, 12, 2)))[:: turns(short=7, full=1)]
    for first, second in cases:
        changes = [
            Change(1, f"action {first}", (0,), 2, seats=True),
            Change(1, f"action {second}", (1,), 2, seats=True),
        ]
        ended = play(partial(make, schedule="ZBVZeroBubble"), divided.train, RANKS, changes)
        assert set(ended) == {undisturbed()}, (first, second)


def test_another_batch_begins_the_step_anew(done: Counter[Any]) -> None:
    worlds: list[int] = []

    def train(state: State, at: Any) -> None:
        worlds.append(state._generation)
        seen = len(worlds) > RANKS  # the second world
        while state.step < 2:
            for plan in state.sampler.steps(0, 1):
                state.optimizer.zero_grad()
                x, y = divided.batch(state.step + 10 * seen)
                state.model.step(x, target=y)
                state.optimizer.step()
                state.commit(plan)
                if state.step == 2:
                    return

    change = Change(1, "action 6", (1,), RANKS, seats=True)
    assert len(set(play(partial(make, schedule="1F1B"), train, RANKS, [change]))) == 1
    forwards = [count for (step, stage, kind, _), count in done.items() if (step, stage, kind) == (1, 0, "F")]
    assert max(forwards) == 2


def test_redo_step_makes_all_of_it_again_and_keeps_nothing(done: Counter[Any]) -> None:
    change = Change(1, "action 6", (1,), RANKS, seats=True)
    made = partial(make, schedule="1F1B", redo="step")
    assert set(play(made, divided.train, RANKS, [change])) == {undisturbed()}
    assert max(count for (step, stage, *_), count in done.items() if (step, stage) == (1, 0)) == 2


def test_the_rest_of_a_step_is_planned_of_what_ranks_say() -> None:
    here = {"same": True, "stages": {0: (3, 1, 1, False)}}
    there = {"same": True, "stages": {2: (2, 1, 1, True)}}
    rest = broken_step.rest_of([here, None, there], (0, 1, 2), 4)
    assert rest is not None
    assert rest.done == (StageProgress(3, 1, 1), StageProgress(), StageProgress(2, 1, 1))
    assert rest.holders == (0, None, 2)
    moved = broken_step.rest_of([there, None], (0, 0, 1), 4)
    assert moved is not None
    assert (moved.done[2], moved.holders[2], moved.is_moved(2)) == (StageProgress(1, 1, 1), 0, True)
    assert broken_step.rest_of([None, here], (0, 0, 1), 4) is None  # it moves, and cannot
    assert broken_step.rest_of([here, {"same": False, "stages": {}}], (0, 1, 1), 4) is None
    assert broken_step.rest_of([None, None], (0, 1, 1), 4) is None
