"""Limits gradients, in place."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from resilin.core import shard_metadata
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.kernels.common import Array
from resilin.core.tensor import Tensor, wrap
from resilin.errors import ResilinError


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    every = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [parameter.grad for parameter in every if parameter.grad is not None]


def _whole_gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Gradients of which a norm can be taken. UsageError for those of pieces, of which other ranks have the rest."""
    every = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    why = "and each rank would scale its own by another norm; call clip_grad_norm_(max_norm) of the sharded module"
    shard_metadata.refuse("clip_grad_norm_", enumerate(every), why)
    why = "and each would scale its own by another norm; call clip_grad_norm_(max_norm) of the pipeline"
    shard_metadata.refuse_divided("clip_grad_norm_", enumerate(every), why)
    return _gradients(every)


def get_total_norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The norm of all tensors taken as one vector: the norm of their norms, in order. 0-dim, of their (real) dtype.

    A norm that overflows is infinite. foreach is accepted.

    Raises: ResilinError when it is not finite and error_if_nonfinite.
    """
    given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if not given:
        return Tensor._wrap(np.zeros((), np.float32))
    kind = np.result_type(*{tensor._array.real.dtype for tensor in given})
    return norm_of_norms(norms_of(given, norm_type), norm_type, kind, given[0]._dev, error_if_nonfinite)


def norms_of(tensors: Sequence[Tensor], norm_type: float) -> list[Any]:
    """The norm of each tensor, as a number of its device's array library."""
    with np.errstate(all="ignore"):
        return [_norm(tensor._array.ravel(), norm_type, tensor._dev.xp) for tensor in tensors]


def norm_of_norms(norms: Sequence[Any], norm_type: float, kind: Any, dev: Any, error_if_nonfinite: bool) -> Tensor:
    """The norm of all tensors whose norms these are, in their order: a tensor of dtype `kind`.

    Raises as get_total_norm.
    """
    with np.errstate(all="ignore"):
        total = dev.xp.asarray(_norm(dev.xp.asarray(norms), norm_type, dev.xp), dtype=kind)
    if error_if_nonfinite and not math.isfinite(float(total)):
        raise ResilinError(
            f"the norm of order {norm_type} of the gradients is {float(total)}, so they cannot be clipped; "
            "look for the first step with a loss that is not finite, or pass error_if_nonfinite=False"
        )
    return wrap(total, dev)


def _norm(vector: Array, order: float, xp: Any) -> Any:
    if vector.size == 1 and order != 0:
        return xp.abs(vector[0])  # neither overflows nor vanishes
    if vector.dtype.itemsize == 2:
        vector = vector.astype(np.float32)  # squares of 16-bit floats overflow
    return xp.linalg.norm(vector, order)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their norm, taken as one vector, is at most `max_norm`. Returns the norm before.

    The factor is max_norm / (norm + 1e-6), at most 1, as in PyTorch. foreach is accepted. UsageError for the pieces of
    a module of `zero.shard` and the stages of an ElasticPipeline, which have this as a method.
    """
    gradients = _whole_gradients(parameters)
    total = get_total_norm(gradients, norm_type, error_if_nonfinite)
    _scale(gradients, max_norm, total)
    return total


def clip_grads_with_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, total_norm: Tensor, foreach: bool | None = None
) -> None:
    """Scale all gradients by max_norm / (total_norm + 1e-6), at most 1, for a norm known from elsewhere.

    foreach is accepted.
    """
    _scale(_gradients(parameters), max_norm, total_norm)


def _scale(gradients: list[Tensor], max_norm: float, total: Tensor) -> None:
    if total.is_meta:
        return
    factor = float(max_norm) / (float(total) + 1e-6)
    if factor < 1 or math.isnan(factor):  # NaN goes into the gradients, as in PyTorch
        with no_grad():
            for gradient in gradients:
                gradient.mul_(factor)


def clip_grad_norm(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """The older name of `clip_grad_norm_`, with a FutureWarning."""
    text = "nn.utils.clip_grad_norm is the older name of nn.utils.clip_grad_norm_, which changes gradients in place"
    warnings.warn(text, FutureWarning, stacklevel=2)
    return clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float, foreach: bool | None = None) -> None:
    """Cut every element of the gradients to [-clip_value, clip_value]. foreach is accepted."""
    limit = float(clip_value)
    with no_grad():
        for gradient in _gradients(parameters):
            gradient.clamp_(-limit, limit)
