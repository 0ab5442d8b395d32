"""A schedule as data: what each rank does in which order, and where the stages are. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from resilin.errors import UsageError
from resilin.pipeline.plan.action import COMMUNICATIONS, COMPUTATIONS, FORWARD, Action


@dataclass(frozen=True)
class PipelinePlan:
    """Who does what in which order, for one step of a pipeline.

    Args:
        actions: by rank, its actions in order; a None is an idle slot, which only drawings and files have.
        placement: by stage, the rank that has it.
        microbatches: how many of them a step has.
        schedule: name of what it was made by, such as "1F1B"; empty for one that was read from a file.
        done: by stage, of how many micro-batches the forwards and of how many the backwards are done already, in a plan
            of what is left of a step; empty: nothing is. What they gave is there, and is sent again to who needs it.
    """

    actions: tuple[tuple[Action | None, ...], ...]
    placement: tuple[int, ...]
    microbatches: int
    schedule: str = field(default="", compare=False)
    done: tuple[tuple[int, int], ...] = ()

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """How many stages there are, on all ranks together."""
        return len(self.placement)

    @cached_property
    def has_communication(self) -> bool:
        """Whether what is sent and received stands in it."""
        return any(a is not None and a.computation_type in COMMUNICATIONS for row in self.actions for a in row)

    def of(self, rank: int) -> tuple[Action, ...]:
        """Give the actions of a rank, without idle slots."""
        return tuple(action for action in self.actions[rank] if action is not None)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Give the stages that a rank has, in ascending order."""
        return tuple(stage for stage, owner in enumerate(self.placement) if owner == rank)

    def computations(self) -> PipelinePlan:
        """Give the plan without communication, preparations and idle slots."""
        return self.with_actions(
            tuple(tuple(a for a in row if a is not None and a.computation_type in COMPUTATIONS) for row in self.actions)
        )

    def forward_only(self) -> PipelinePlan:
        """Give the order of its forwards alone: what `eval` runs."""
        return self.with_actions(
            tuple(
                tuple(
                    part
                    for action in row
                    if action is not None
                    for part in action.parts
                    if part.computation_type is FORWARD
                )
                for row in self.actions
            )
        )

    def with_actions(self, actions: Sequence[Sequence[Action | None]]) -> PipelinePlan:
        """Give a plan with other actions for the same stages, ranks and micro-batches."""
        return replace(self, actions=tuple(map(tuple, actions)))

    def done_of(self, stage: int) -> tuple[int, int]:
        """Give of how many micro-batches a stage's forwards and backwards are done before this plan begins."""
        return self.done[stage] if self.done else (0, 0)


def from_actions(actions: Mapping[int, Sequence[Action | None]], schedule: str = "") -> PipelinePlan:
    """Make a plan of actions by rank, as PyTorch's schedules hold them: where the stages are follows from them.

    UsageError when ranks or stages are missing, or a stage is on two ranks.
    """
    if not actions or sorted(actions) != list(range(len(actions))):
        raise UsageError(f"a plan has the actions of ranks 0, 1, 2, ..., got ranks {sorted(actions)}")
    owners: dict[int, int] = {}
    microbatches = count = 0
    for rank in sorted(actions):
        for step, action in enumerate(actions[rank]):
            for part in () if action is None else action.parts:
                owner = owners.setdefault(part.stage_index, rank)
                if owner != rank:
                    raise UsageError(
                        f"Rank {rank}, step {step}: Stage {part.stage_index} is assigned to both rank {rank} "
                        f"and rank {owner}"
                    )
                count += 1
                microbatches = max(microbatches, 1 + (-1 if part.microbatch_index is None else part.microbatch_index))
    missing = next((stage for stage in range(len(owners)) if stage not in owners), None)
    if missing is not None or not owners:
        raise UsageError(f"no rank has stage {missing or 0}, though there are stages up to {max(owners, default=0)}")
    if not 1 <= microbatches <= count:  # before anything is as large as such a number
        raise UsageError(f"{count} actions cannot be of {microbatches} micro-batches: expected 0, 1, ... without gaps")
    rows = tuple(tuple(actions[rank]) for rank in range(len(actions)))
    return PipelinePlan(rows, tuple(owners[stage] for stage in range(len(owners))), microbatches, schedule)
