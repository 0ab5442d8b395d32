"""Distances and similarities between vectors: torch.nn.functional's, and torch.cdist."""

# P rows of x1, R rows of x2, D columns

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from resilin.core.api.manipulation import rearranging
from resilin.core.api.mathematics import one_pass, reducing
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.nn.neural import need_tensors, widened
from resilin.core.dtype import promote_types
from resilin.core.ops.distance import ORDERS, euclidean_distances, row_distances
from resilin.core.tensor import Tensor

_MODES = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
_MANY_ROWS = 25  # above, PyTorch goes through a matrix product: with a difference per pair memory would be P * R * D


def _need_broadcast(where: str, x1: Tensor, x2: Tensor) -> None:
    need_tensors(where, x1=x1, x2=x2)
    try:
        np.broadcast_shapes(x1._array.shape, x2._array.shape)
    except ValueError:
        raise RuntimeError(f"{where}: the shapes {tuple(x1.shape)} and {tuple(x2.shape)} cannot be broadcast") from None


@one_pass.preferring(one_pass.cosine_similarity)
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between x1 and x2 (broadcast) along `dim`; norms below `eps` count as `eps`.

    16-bit floats are multiplied as float32: their squares would overflow.
    """
    _need_broadcast("cosine_similarity", x1, x2)
    common = promote_types(x1.dtype, x2.dtype)
    if not common.is_floating_point:
        raise RuntimeError(f"cosine_similarity: expected a floating point dtype in common, got {common}")
    a, b = (widened(x if x.dtype is common else x.to(common)) for x in (x1, x2))
    if a._array.shape != b._array.shape:
        a, b = rearranging.broadcast_tensors(a, b)
    # each by its own length first: products of both lengths leave the range where the lengths do not
    a, b = (x / reducing.norm(x, 2, dim, True).clamp(min=eps) for x in (a, b))
    made: Tensor = reducing.sum(a * b, dim).to(common)
    return made


@rounded_once
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 - x2 + eps (broadcast) along the last dimension."""
    _need_broadcast("pairwise_distance", x1, x2)
    return reducing.norm(x1 - x2 + eps, p, -1, keepdim)


def _need_norm(where: str, p: float) -> None:
    if not p >= 0:
        raise RuntimeError(f"{where}: only non-negative p values are supported, got {p}")


@rounded_once
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = _MODES[0]) -> Tensor:
    """The p-norm of the difference of every row of x1 (..., P, D) and every row of x2 (..., R, D): (..., P, R).

    compute_mode: whether p=2 goes through a matrix product (fast; distances near 0 lose digits): by default it does
    when P or R exceeds 25. The gradient of a distance 0 is 0.
    """
    need_tensors("cdist", x1=x1, x2=x2)
    a, b = x1._array.shape, x2._array.shape
    if len(a) < 2 or len(b) < 2:
        raise RuntimeError(f"cdist: x1 and x2 must have at least 2 dimensions, got shapes {a} and {b}")
    if a[-1] != b[-1]:
        raise RuntimeError(f"cdist: x1 and x2 must have the same number of columns, got shapes {a} and {b}")
    if not x1.is_floating_point() or x1.dtype is not x2.dtype:
        raise RuntimeError(f"cdist: expected x1 and x2 of one floating point dtype, got {x1.dtype} and {x2.dtype}")
    _need_norm("cdist", p)
    if compute_mode not in _MODES:
        raise ValueError(f"cdist: compute_mode must be one of {', '.join(_MODES)}, got {compute_mode!r}")
    if p in ORDERS and a[-1]:
        near: Tensor = row_distances.call(x1, x2, float(p))
        return near
    if p != 2:
        return reducing.norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1) if a[-1] else _empty_sum(x1, x2)
    many = max(a[-2], b[-2]) > _MANY_ROWS
    made: Tensor = euclidean_distances.call(x1, x2, compute_mode == _MODES[1] or (compute_mode == _MODES[0] and many))
    return made


def _empty_sum(x1: Tensor, x2: Tensor) -> Tensor:
    """The distances of rows without columns: zeros."""
    return reducing.sum(x1.unsqueeze(-2) - x2.unsqueeze(-3), -1)


def _places(rows: int) -> np.ndarray[Any, Any]:
    """Where the pairs of different rows are in a flattened square of distances."""
    first, second = np.triu_indices(rows, 1)
    places: np.ndarray[Any, Any] = first * rows + second
    return places


_FEW_ROWS = 64  # whose places are kept
_places_of_few = functools.lru_cache(maxsize=8)(_places)


@rounded_once
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distances between all pairs of rows of input (N, D), in the order (0, 1), (0, 2), ... (N - 2, N - 1)."""
    need_tensors("pdist", input=input)
    if input._array.ndim != 2 or not input.is_floating_point():
        raise RuntimeError(f"pdist: expected a floating point tensor (N, D), got {input.dtype} {tuple(input.shape)}")
    _need_norm("pdist", p)
    rows = len(input)
    if input._array.shape[1] and (p == 2 or p in ORDERS):  # all are sooner made than pairs of rows are gathered
        pairs = (_places_of_few if rows <= _FEW_ROWS else _places)(rows)
        return cdist(input, input, p, _MODES[2]).flatten()[pairs]
    first, second = np.triu_indices(rows, 1)
    if not input._array.shape[1]:
        return reducing.sum(input[first] - input[second], -1)
    return reducing.norm(input[first] - input[second], p, -1)
