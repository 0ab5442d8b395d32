"""Plans by the name of their schedule: how many stages each takes, where it puts them, what it refuses. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from resilin.errors import UsageError
from resilin.pipeline.plan import placement
from resilin.pipeline.plan.dual_pipe_v import dual_pipe_v
from resilin.pipeline.plan.gpipe import gpipe
from resilin.pipeline.plan.interleaved import interleaved_1f1b, interleaved_zero_bubble
from resilin.pipeline.plan.looped_bfs import looped_bfs
from resilin.pipeline.plan.one_f_one_b import one_f_one_b
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.plan.zbv import zbv_zero_bubble


@dataclass(frozen=True)
class Schedule:
    """What a schedule's class says about it.

    Args:
        name: PyTorch's, as `get_schedule_class` takes it.
        style: how stages are dealt out to ranks, "loop" or "v".
        stages_per_rank: how many stages each rank has when nobody says so.
        several: whether it is for several stages on each rank.
        make: plans it, given ranks, micro-batches and stages per rank.
    """

    name: str
    style: str
    stages_per_rank: int
    several: bool
    make: Callable[[int, int, int], PipelinePlan]

    def placement(self, ranks: int, stages: int) -> tuple[int, ...]:
        """Give the rank of each stage."""
        return placement.placement(ranks, stages, self.style)


SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule("GPipe", "loop", 1, False, lambda ranks, microbatches, _: gpipe(ranks, microbatches)),
        Schedule("1F1B", "loop", 1, False, lambda ranks, microbatches, _: one_f_one_b(ranks, microbatches)),
        Schedule("LoopedBFS", "loop", 2, True, looped_bfs),
        Schedule("Interleaved1F1B", "loop", 2, True, interleaved_1f1b),
        Schedule("InterleavedZeroBubble", "loop", 2, True, interleaved_zero_bubble),
        Schedule("ZBVZeroBubble", "v", 2, True, zbv_zero_bubble),
        Schedule("DualPipeV", "v", 2, True, dual_pipe_v),
    )
}


def schedule(name: str) -> Schedule:
    """Give the schedule of this name, in upper or lower case. UsageError names those there are."""
    for known in SCHEDULES.values():
        if known.name.lower() == name.lower():
            return known
    raise UsageError(f"Unknown schedule name '{name}'. The valid options are {list(SCHEDULES)}")


def generate(name: str, ranks: int, microbatches: int, stages_per_rank: int | None = None) -> PipelinePlan:
    """Plan one step of a schedule, computations only.

    Args:
        name: the schedule's, such as "1F1B", in upper or lower case.
        ranks: how many there are.
        microbatches: of how many a step consists.
        stages_per_rank: how many stages each rank has. Default: the schedule's (1, or 2 where there may be several).

    Raises: UsageError, with PyTorch's message, for numbers that the schedule does not take.
    """
    chosen = schedule(name)
    stages_per_rank = chosen.stages_per_rank if stages_per_rank is None else stages_per_rank
    for what, number in (("ranks", ranks), ("microbatches", microbatches), ("stages per rank", stages_per_rank)):
        if number < 1:
            raise UsageError(f"{chosen.name}: {what} must be at least 1, got {number}")
    if not chosen.several and stages_per_rank != 1:
        raise UsageError(f"{chosen.name} has 1 stage on each rank, got {stages_per_rank} stages per rank")
    return chosen.make(ranks, microbatches, stages_per_rank)
