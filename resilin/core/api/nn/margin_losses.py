"""The margin losses of torch.nn.functional: hinges on scores, on similarities and on distances."""

# N samples, C classes

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core.api.conversion.through_host import through_host
from resilin.core.api.manipulation import indexing
from resilin.core.api.mathematics import one_pass, reducing
from resilin.core.api.mathematics.distances import pairwise_distance
from resilin.core.api.mathematics.half_precision import opened, rounded_once
from resilin.core.api.nn.loss_reduction import check_reduction, need_broadcast, old_reduction, reduced
from resilin.core.api.nn.neural import need_tensors, relu, softplus
from resilin.core.kernels import index_range
from resilin.core.kernels.common import is_readable
from resilin.core.tensor import Tensor, wrap


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """input where target is 1, max(0, margin - input) where it is -1; reduced."""
    reduction = old_reduction(size_average, reduce, reduction)
    need_broadcast("hinge_embedding_loss", input=input, target=target)
    input, narrow = opened(input)
    near = indexing.where(target != -1, input, 0.0)
    far = indexing.where(target != 1, (margin - input).clamp(min=0), 0.0)
    made: Tensor = narrow(reduced(near + far, reduction))
    return made


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin - target * (input1 - input2)), reduced; target 1 asks for a larger input1, -1 for a smaller."""
    reduction = old_reduction(size_average, reduce, reduction)
    need_broadcast("margin_ranking_loss", input1=input1, input2=input2, target=target)
    if not input1._array.ndim == input2._array.ndim == target._array.ndim:
        raise RuntimeError(
            f"margin_ranking_loss: all inputs should have the same number of dimensions, got {tuple(input1.shape)}, "
            f"{tuple(input2.shape)} and target {tuple(target.shape)}"
        )
    input1, input2, target, narrow = opened(input1, input2, target)
    made: Tensor = narrow(reduced((-target * (input1 - input2) + margin).clamp(min=0), reduction))
    return made


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """log(1 + exp(-target * input)) for targets of 1 and -1, without overflow; reduced."""
    reduction = old_reduction(size_average, reduce, reduction)
    need_broadcast("soft_margin_loss", input=input, target=target)
    if (found := one_pass.loss_of_difference("margin", input, target, reduction)) is not None:
        return found
    input, target, narrow = opened(input, target)
    made: Tensor = narrow(reduced(softplus(-target * input, threshold=math.inf), reduction))
    return made


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """1 - cos where target is 1, max(0, cos - margin) where it is -1, for inputs (N, D) or (D,); reduced."""
    reduction = old_reduction(size_average, reduce, reduction)
    need_tensors("cosine_embedding_loss", input1=input1, input2=input2, target=target)
    a, b, t = input1._array.shape, input2._array.shape, target._array.shape
    if (len(t), len(a), len(b)) not in ((0, 1, 1), (1, 2, 2)):
        raise RuntimeError(
            f"cosine_embedding_loss: expected inputs (N, D) and target (N,), or (D,) and (), got {a}, {b} and {t}"
        )
    input1, input2, narrow = opened(input1, input2)
    similarity = _cosine(input1, input2)
    need_broadcast("cosine_embedding_loss", similarity=similarity, target=target)
    near = indexing.where(target == 1, 1 - similarity, 0.0)
    far = indexing.where(target == -1, (similarity - margin).clamp(min=0), 0.0)
    made: Tensor = narrow(reduced(near + far, reduction))
    return made


_COSINE_EPS = 1e-12  # PyTorch's, added to the squares of both norms


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine along the last dimension, its denominator kept from 0 in the way of PyTorch's loss."""
    need_broadcast("cosine_embedding_loss", input1=a, input2=b)
    squares = (reducing.sum(a * a, -1) + _COSINE_EPS) * (reducing.sum(b * b, -1) + _COSINE_EPS)
    made: Tensor = reducing.sum(a * b, -1) / squares.sqrt()
    return made


def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over classes c != y of max(0, margin - x[y] + x[c]) ** p, times weight[y]; input (N, C) or (C,)."""
    reduction = old_reduction(size_average, reduce, reduction)
    if p not in (1, 2):
        raise ValueError(f"multi_margin_loss: only p == 1 and p == 2 supported, got {p}")
    if (found := one_pass.multi_margin_loss(input, target, p, margin, weight, reduction)) is not None:
        return found
    input, weight, narrow = opened(input, weight)
    x, y, single = _scores("multi_margin_loss", input, target, 0)
    classes = x._array.shape[1]
    if weight is not None and weight._array.shape != (classes,):
        raise ValueError(f"multi_margin_loss: weight must be one-dimensional, ({classes},), got {tuple(weight.shape)}")
    text = f"multi_margin_loss: target out of range 0 to {classes - 1}, got {{value}}"
    index_range.check(y, 0, classes, RuntimeError, text)
    xp = x._dev.xp
    rows = xp.arange(len(y))
    hinge = relu(x - x[rows, y].unsqueeze(1) + margin)
    others = xp.ones(x._array.shape, x._array.dtype)
    others[rows, y] = 0
    losses = reducing.sum((hinge if p == 1 else hinge.square()) * wrap(others, x._dev), 1) / classes
    losses = losses if weight is None else losses * weight[y]
    made: Tensor = narrow(reduced(losses.squeeze(0) if single else losses, reduction))
    return made


def _scores(where: str, input: Tensor, target: Tensor, more: int) -> tuple[Tensor, Any, bool]:
    """Scores (N, C), targets with `more` dimensions beside N, and whether input came without N."""
    need_tensors(where, input=input, target=target)
    x, y = input._array, target._array
    if x.ndim not in (1, 2) or x.shape[-1] == 0:
        raise RuntimeError(f"{where}: expected input (N, C) or (C,), got {tuple(x.shape)}")
    if y.dtype.kind not in "iu":
        raise RuntimeError(f"{where}: expected class numbers of an integer dtype, got {target.dtype}")
    single = x.ndim == 1
    expected = x.shape if more else x.shape[:-1]
    if y.shape != expected and not (single and y.size == max(math.prod(expected), 1)):
        raise RuntimeError(f"{where}: expected target {expected} for input {tuple(x.shape)}, got {tuple(y.shape)}")
    return (input.unsqueeze(0), y.reshape(1, *(-1,) * more), True) if single else (input, y, False)


@through_host
def multilabel_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The sum over labels y and classes c that are none of max(0, 1 - x[y] + x[c]), divided by C; input (N, C) or (C,).

    target (N, C) or (C,): a sample's labels, then -1 and anything.
    """
    reduction = old_reduction(size_average, reduce, reduction)
    input, narrow = opened(input)
    x, y, single = _scores("multilabel_margin_loss", input, target, 1)
    classes = x._array.shape[1]
    if is_readable(y) and (y.min() < -1 or y.max() >= classes):
        raise RuntimeError(f"multilabel_margin_loss: target out of range -1 to {classes - 1}, got {target.tolist()}")
    used = np.cumprod(y >= 0, 1).astype(bool)  # up to the first -1
    widest = int(used.sum(1).max(initial=0))
    used, labels = used[:, :widest], np.where(used, y, 0)[:, :widest]
    rows = np.arange(len(y))[:, None]
    others = np.ones(x._array.shape, bool)
    others[np.broadcast_to(rows, used.shape)[used], labels[used]] = False
    counted = (used[:, :, None] & others[:, None, :]).astype(x._array.dtype)
    hinge = relu(x.unsqueeze(1) - x[rows, labels].unsqueeze(2) + 1)
    losses = reducing.sum(hinge * wrap(counted, x._dev), (1, 2)) / classes
    made: Tensor = narrow(reduced(losses.squeeze(0) if single else losses, reduction))
    return made


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin), reduced; d is `pairwise_distance` with p and eps.

    swap: the nearer of anchor and positive is compared with the negative.
    """
    reduction = old_reduction(size_average, reduce, reduction)

    def distance(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return _triplets("triplet_margin_loss", anchor, positive, negative, distance, margin, swap, reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with any distance of two tensors (default: `pairwise_distance`)."""
    distance = pairwise_distance if distance_function is None else distance_function
    where = "triplet_margin_with_distance_loss"
    return _triplets(where, anchor, positive, negative, distance, margin, swap, reduction)


@rounded_once
def _triplets(
    where: str, anchor: Tensor, positive: Tensor, negative: Tensor, distance: Any, margin: float, swap: bool, how: str
) -> Tensor:
    check_reduction(how)
    need_tensors(where, anchor=anchor, positive=positive, negative=negative)
    if margin <= 0:
        raise ValueError(f"{where}: margin must be greater than 0, got {margin}")
    shapes = [tuple(t._array.shape) for t in (anchor, positive, negative)]
    if len({len(shape) for shape in shapes}) > 1:
        raise RuntimeError(
            f"{where}: anchor, positive and negative are expected to have the same number of dimensions, got "
            f"{shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    far = distance(anchor, negative)
    if swap:
        far = far.minimum(distance(positive, negative))
    hinge: Any = distance(anchor, positive) - far + margin
    return reduced(hinge.clamp(min=0), how)
