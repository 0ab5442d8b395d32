"""What all ranks of a pipeline must have alike before the first of them sends anything, and what they tell one another.

Checked in the first step, and in the first evaluation. All ranks raise the same error, so nobody waits for a message
that never comes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from resilin.core.tensor import Tensor
from resilin.distributed.agreement.checksum import checksum
from resilin.distributed.agreement.exchange import on_all_ranks
from resilin.distributed.group.process_group import ProcessGroup
from resilin.errors import CollectiveMismatch, UsageError
from resilin.pipeline.plan.plan import PipelinePlan
from resilin.pipeline.stage import PipelineStage

FUNCTION = "schedule.step"


@dataclass(frozen=True)
class Tie:
    """A weight that several stages have.

    Args:
        stages: in ascending order.
    """

    key: str
    stages: tuple[int, ...]


@dataclass(frozen=True)
class Agreement:
    """What all ranks know once they have agreed.

    Args:
        ties: the tied weights.
        skips: by name of a skip tensor, the stages that stash and pop it.
        told: by rank, what else it said of itself.
    """

    ties: list[Tie]
    skips: dict[str, tuple[int, int]]
    told: list[Any]


def said(
    schedule: str, plan: PipelinePlan, stages: Sequence[PipelineStage], trains: bool, step: int, more: Any = None
) -> dict[str, Any]:
    """Give what a rank says of itself. more: what all shall know besides; plain values."""
    tied: list[list[Any]] = []
    skips: list[list[Any]] = []
    for stage in stages:
        for key, weight in stage.tied_parameters().items():
            tied.append([key, stage.stage_index, _described(weight), checksum(weight)])
        skips += [["stash", name, stage.stage_index] for name in stage.stashes]
        skips += [["pop", name, stage.stage_index] for name in stage.pops]
    return {
        "equal": {
            "the schedule": schedule,
            "the number of stages": plan.stages,
            "the number of micro-batches": plan.microbatches,
            "whether there is a loss_fn, so that gradients are computed": trains,
            "the number of steps so far": step,
            "the plan (its checksum)": f"{zlib.crc32(repr((plan.actions, plan.placement)).encode()):08x}",
        },
        "stages": [stage.stage_index for stage in stages],
        "tied": tied,
        "skips": skips,
        "more": more,
    }


def _described(weight: Tensor) -> str:
    frozen = "" if weight.requires_grad else ", frozen"
    return f"{weight.dtype} {list(weight.shape)}{frozen}"


def agree(group: ProcessGroup | None, plan: PipelinePlan, prepare: Callable[[], dict[str, Any]]) -> Agreement:
    """Compare what all ranks say.

    What `prepare` raises on one rank is raised on all. CollectiveMismatch and UsageError, the same on all ranks, where
    they do not fit together.
    """
    _, everybody = on_all_ranks(group, FUNCTION, prepare, lambda found: found)
    for rank, other in enumerate(everybody):
        for name, value in everybody[0]["equal"].items():
            if other["equal"][name] != value:
                raise CollectiveMismatch(
                    f"{FUNCTION}: {name} is {value} on rank 0 and {other['equal'][name]} on rank {rank} of the "
                    "pipeline; all ranks must make their schedule with the same arguments, and make the same calls"
                )
    for rank, other in enumerate(everybody):
        wanted = list(plan.stages_of(rank))
        if sorted(other["stages"]) != wanted:
            raise UsageError(
                f"{FUNCTION}: rank {rank} of the pipeline has stages {sorted(other['stages'])}, the schedule has "
                f"{wanted} there; stage_indices(rank, ranks, stages) of the schedule's class says which to make"
            )
    return Agreement(_ties(everybody), _skips(everybody), [other["more"] for other in everybody])


def _ties(everybody: list[dict[str, Any]]) -> list[Tie]:
    found: dict[str, list[tuple[int, str, int]]] = {}
    for other in everybody:
        for key, stage, described, number in other["tied"]:
            found.setdefault(key, []).append((stage, described, number))
    ties = []
    for key, holders in sorted(found.items()):
        holders.sort()
        first = holders[0]
        for stage, described, number in holders[1:]:
            if described != first[1] or number != first[2]:
                how = f"{first[1]} in stage {first[0]} and {described} in stage {stage}"
                same = f"of other values in stage {stage} than in stage {first[0]}"
                raise UsageError(
                    f"{FUNCTION}: tied weight {key!r} is {how if described != first[1] else same}; begin with equal "
                    "copies, as by making the whole model from one seed on every rank"
                )
        if len(holders) > 1:
            ties.append(Tie(key, tuple(stage for stage, _, _ in holders)))
    return ties


def _skips(everybody: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    ends: dict[str, dict[str, list[int]]] = {}
    for other in everybody:
        for end, name, stage in other["skips"]:
            ends.setdefault(name, {"stash": [], "pop": []})[end].append(stage)
    for name, both in sorted(ends.items()):
        stashed, popped = both["stash"], both["pop"]
        if len(stashed) != 1 or len(popped) != 1 or stashed[0] > popped[0]:
            raise UsageError(
                f"{FUNCTION}: skip tensor {name!r} is stashed by stages {stashed} and popped by stages {popped}; "
                "expected one stage that stashes it, and one behind it that pops it"
            )
    return {name: (both["stash"][0], both["pop"][0]) for name, both in sorted(ends.items())}
