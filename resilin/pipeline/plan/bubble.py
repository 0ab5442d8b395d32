"""The bubble of each schedule by its formula: which part of all ranks' time is idle. Pure.

With p ranks, m micro-batches, v stages on each rank, and F, I, W (or B = I + W) the times of one stage's action, hops
taking none, a rank is idle for

    GPipe, 1F1B                  (p - 1) (F + B)
    LoopedBFS, Interleaved1F1B   (p - 1) (F + B)
    InterleavedZeroBubble        (p - 1) (F + I - W), with F = I = W
    ZBVZeroBubble                (p - 1) F, with F = I = W
    DualPipeV                    (p - 1) (F&B + B - 3 W), with F = I = W

and busy for m v (F + B): with more stages on a rank each is smaller, and the bubble with it.
"""

from __future__ import annotations

from resilin.pipeline.plan.generate import schedule

_WHOLE_BACKWARDS = ("GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B")


def formula(
    name: str,
    ranks: int,
    microbatches: int,
    stages_per_rank: int | None = None,
    *,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
) -> float | None:
    """Give the bubble of a schedule, from 0 to 1, or None where there is no formula: then `simulate` tells.

    Args:
        name: the schedule's.
        ranks: how many there are.
        microbatches: of how many a step consists.
        stages_per_rank: how many stages each rank has. Default: the schedule's.
        forward: the time of an F of one stage.
        backward_input: the time of an I.
        backward_weight: the time of a W; a B takes as long as an I and a W.
    """
    chosen = schedule(name)
    stages = chosen.stages_per_rank if stages_per_rank is None else stages_per_rank
    equal = forward == backward_input == backward_weight
    whole = forward + backward_input + backward_weight
    enough = microbatches >= ranks
    if chosen.name in _WHOLE_BACKWARDS and (enough or stages == 1):
        idle = whole
    elif chosen.name == "InterleavedZeroBubble" and enough and equal:
        idle = forward + backward_input - backward_weight
    elif chosen.name == "ZBVZeroBubble" and microbatches >= 2 * ranks - 1 and equal:
        idle = forward
    elif chosen.name == "DualPipeV" and microbatches >= 2 * ranks and equal:
        idle = whole + (backward_input + backward_weight) - 3 * backward_weight
    else:
        return None
    waited = (ranks - 1) * idle
    return waited / (microbatches * stages * whole + waited)
