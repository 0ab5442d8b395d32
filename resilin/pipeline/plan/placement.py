"""Which rank has which stage: in a loop, or there and back in a V. Pure."""

from __future__ import annotations

from resilin.errors import UsageError


def placement(ranks: int, stages: int, style: str = "loop") -> tuple[int, ...]:
    """Give the rank of each stage.

    "loop" deals the stages out to ranks 0, 1, ..., and again from 0; "v" turns round at either end, so that with two
    stages on each rank the first and the last stage are on rank 0.
    """
    if style == "loop":
        return tuple(stage % ranks for stage in range(stages))
    if style != "v":
        raise UsageError(f"Style {style} is not supported.")
    if stages % ranks:
        raise UsageError(f"num_stages {stages} must be evenly divisible by pp_size {ranks} for V schedules")
    there, back = range(ranks), range(ranks)[::-1]
    return tuple(rank for turn in range(stages // ranks) for rank in (back if turn % 2 else there))
