"""Clip gradients by their norm over all stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core.tensor import Tensor
from resilin.distributed.agreement.exchange import on_all_ranks
from resilin.errors import UsageError
from resilin.nn.utils import clip_grad
from resilin.pipeline.stage import PipelineStage

_FUNCTION = "pipelining.clip_grad_norm_"


def clip_grad_norm_(
    stages: PipelineStage | Sequence[PipelineStage],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale the gradients of all stages so that their norm, taken as one vector, is at most `max_norm`.

    A collective of the stages' group: every rank calls it with all of its stages. The norm, which is returned, and the
    gradients have the bits of `nn.utils.clip_grad_norm_` on the whole model, whose parameters come in the order of the
    stages; a tied weight counts once. Raises as that does, on all ranks.
    """
    here = [stages] if isinstance(stages, PipelineStage) else sorted(stages, key=lambda stage: stage.stage_index)
    if not here:
        raise UsageError(f"{_FUNCTION}: expected the stages of this rank, got none")
    _, everybody = on_all_ranks(here[0].group, _FUNCTION, lambda: _norms(here, norm_type), lambda found: found)
    seen: set[str] = set()
    norms: list[Any] = []
    kinds: set[Any] = set()
    for _, found in sorted((stage, found) for rank in everybody for stage, found in rank):
        for key, value, of, kind in found:
            if key not in seen:
                norms.append(np.dtype(of).type(value))
                kinds.add(np.dtype(kind))
            seen |= {key} if key else set()
    dev = here[0].device
    total = clip_grad.norm_of_norms(norms, norm_type, np.result_type(*kinds or {"float32"}), dev, error_if_nonfinite)
    weights = {id(weight): weight for stage in here for weight in stage.submod.parameters()}
    clip_grad.clip_grads_with_norm_(weights.values(), max_norm, total)
    return total


def _norms(stages: Sequence[PipelineStage], norm_type: float) -> list[list[Any]]:
    """By stage: of each gradient the name of a tied weight or "", its norm, and the names of both dtypes."""
    told = []
    seen: set[int] = set()
    for stage in stages:
        tied = {id(weight): key for key, weight in stage.tied_parameters().items()}
        weights = [w for w in stage.submod.parameters() if w.grad is not None and id(w) not in seen]
        seen |= set(map(id, weights))
        grads: list[Any] = [weight.grad for weight in weights]
        norms = clip_grad.norms_of(grads, norm_type)
        found = [
            [tied.get(id(weight), ""), float(norm), str(np.asarray(norm).dtype), grad._array.real.dtype.name]
            for weight, grad, norm in zip(weights, grads, norms, strict=True)
        ]
        told.append([stage.stage_index, found])
    return told
