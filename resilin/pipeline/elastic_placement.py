"""Say which stages a rank has in a world of any size. Pure.

    4 stages, 9 ranks    replica 0: ranks 0-3    replica 1: ranks 4-7    rank 8 waits for others to come
    4 stages, 4 ranks    rank 0: 0    rank 1: 1    rank 2: 2    rank 3: 3
    4 stages, 3 ranks    rank 0: 0, 1    rank 1: 2    rank 2: 3

A schedule with several stages on each rank is whole with fewer ranks, and says itself where they are then:

    4 stages, 2 on each rank, 3 ranks    rank 0: 0, 2    rank 1: 1, 3    rank 2 waits    (in a V: 0, 3 and 1, 2)

With ranks in the order of their nodes, the twins of a stage are on different nodes where a node has no more ranks than
there are stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from resilin.errors import UsageError
from resilin.pipeline.plan import placement as scheduled


@dataclass(frozen=True)
class ElasticPlacement:
    """Where `stages` stages are in a world of `world_size` ranks."""

    stages: int
    world_size: int
    replicated: bool = True
    """Whether there may be several replicas."""
    stages_per_rank: int = 1
    """How many stages a rank has where the pipeline is whole."""
    style: str = "loop"
    """How they are dealt out then, see `plan.placement`."""

    def __post_init__(self) -> None:
        if self.stages < 1 or self.world_size < 1:
            raise UsageError(
                f"a pipeline has at least one stage and one rank, got {self.stages} stages and {self.world_size} ranks"
            )
        if self.stages_per_rank < 1 or self.stages % self.stages_per_rank:
            raise UsageError(
                f"{self.stages} stages cannot be {self.stages_per_rank} on each rank: cut the model into a multiple of "
                f"{self.stages_per_rank} stages, or give another stages_per_rank"
            )

    @property
    def whole_ranks(self) -> int:
        """How many ranks a whole pipeline has: one that the schedule was made for."""
        return self.stages // self.stages_per_rank

    @property
    def is_whole(self) -> bool:
        """Whether there are ranks enough for one."""
        return self.ranks == self.whole_ranks

    @property
    def replicas(self) -> int:
        """How many ranks have each stage: as many as the world has room for whole pipelines, at least 1."""
        return max(1, self.world_size // self.whole_ranks) if self.replicated else 1

    @property
    def ranks(self) -> int:
        """How many ranks one replica of the pipeline has."""
        return min(self.whole_ranks, self.world_size)

    @cached_property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage within a replica: as the schedule has it; with fewer ranks neighbours together, the
        surplus on the first ranks."""
        if self.is_whole:
            return scheduled.placement(self.ranks, self.stages, self.style)
        each, more = divmod(self.stages, self.ranks)
        counts = [each + (rank < more) for rank in range(self.ranks)]
        return tuple(rank for rank, count in enumerate(counts) for _ in range(count))

    def replica_of(self, rank: int) -> int | None:
        """The replica that `rank` is in; None for one that waits."""
        replica = rank // self.ranks
        return replica if replica < self.replicas else None

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that `rank` has; none for one that waits."""
        if self.replica_of(rank) is None:
            return ()
        return tuple(stage for stage, owner in enumerate(self.placement) if owner == rank % self.ranks)

    def holders(self, stage: int) -> tuple[int, ...]:
        """The ranks of the world that have `stage`, by replica."""
        return tuple(replica * self.ranks + self.placement[stage] for replica in range(self.replicas))
