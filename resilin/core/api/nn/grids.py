"""Sampling at places that a grid gives, and grids of affine maps: torch.nn.functional's spatial transformers.

An element sampled is a sum over neighbouring input elements, each weighted by its distances along the dimensions.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from resilin.core.api.manipulation.indexing import where
from resilin.core.api.manipulation.joining import stack
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.nn.neural import need_tensors
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.device import CPU
from resilin.core.kernels.loader import short
from resilin.core.ops import gather_weighted as ops
from resilin.core.ops.creation import linspace, ones_like, zeros
from resilin.core.tensor import Tensor, wrap

# N batch, C channels, P points (all elements of the grid)


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """Where the elements of an output of `size` (N, C, H, W) or (N, C, D, H, W) lie after the maps `theta`.

    theta: (N, 2, 3) or (N, 3, 4), floating point. Returns (N, H, W, 2) or (N, D, H, W, 3): coordinates x, y (, z)
    from -1 to 1, which are the centres of the outermost elements with `align_corners`, else their outer edges.
    """
    need_tensors("affine_grid", theta=theta)
    size = tuple(size)
    if not theta.is_floating_point():
        raise ValueError(f"affine_grid: expected theta to have floating point type, got {theta.dtype}")
    if len(size) not in (4, 5):
        raise NotImplementedError(f"affine_grid: only 4D and 5D sizes are supported, got {size}")
    count, shape = len(size) - 2, tuple(theta.shape)
    if theta.dim() != 3 or shape[1:] != (count, count + 1):
        raise ValueError(
            f"affine_grid: expected {count}D affine matrices of shape (N, {count}, {count + 1}) for size {size}, got "
            f"{shape}"
        )
    if min(size) < 1:
        raise ValueError(f"affine_grid: expected non-zero, positive output size, got {size}")
    if shape[0] != size[0]:
        raise RuntimeError(f"affine_grid: expected one matrix for each of {size[0]} images, got {shape}")
    if theta._dev is CPU and math.prod(size[2:]) <= _REMEMBERED:
        points = wrap(_remembered_points(size[2:], theta._array.dtype, bool(align_corners)), CPU)
    else:
        points = _points(size[2:], theta, bool(align_corners))
    grid: Tensor = (points @ theta.transpose(1, 2)).reshape(size[0], *size[2:], count)
    return grid


def _points(lengths: tuple[int, ...], like: Tensor, corners: bool) -> Tensor:
    """The coordinates of all elements of an output, the last dimension's first, and a one: (1, P, dimensions + 1)."""
    count = len(lengths)
    steps = [_steps(n, like, corners) for n in lengths]
    axes = [step.reshape([-1 if i == d else 1 for i in range(count)]) for d, step in enumerate(steps)]
    base = [axis.expand(lengths) for axis in reversed(axes)]
    made: Tensor = stack([*base, ones_like(base[0])], -1).reshape(1, -1, count + 1)
    return made


_REMEMBERED = 1 << 16  # points of a grid that is kept, 1 MB of float32


@functools.lru_cache(8)
def _remembered_points(lengths: tuple[int, ...], dtype: Any, corners: bool) -> Any:
    with no_grad():
        return _points(lengths, wrap(np.zeros(0, dtype), CPU), corners)._array


def _steps(count: int, like: Tensor, corners: bool) -> Tensor:
    if count == 1:
        return zeros(1, dtype=like.dtype, device=like.device)
    steps: Tensor = linspace(-1, 1, count, dtype=like.dtype, device=like.device)
    return steps if corners else steps * ((count - 1) / count)


@short("grid_sample", "input grid mode padding_mode align_corners")
@rounded_once
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """The input (N, C, H, W) or (N, C, D, H, W) at the places of `grid` (N, ..., 2) or (N, ..., 3).

    grid: coordinates x, y (, z); -1 and 1 are the centres of the outermost elements with `align_corners`, else their
    outer edges. mode: "bilinear" (of volumes: trilinear), "nearest", "bicubic" (of images only).
    padding_mode: what lies outside: "zeros", "border" (the nearest element), "reflection" (at centres or edges).
    Order: neighbours in ascending position. dtype: floating point, the same of both.
    """
    _check_sampling(input, grid, mode, padding_mode)
    count = input.dim() - 2
    batch, channels = input._array.shape[:2]
    shape = (batch, math.prod(grid._array.shape[1:-1]), count)
    if mode != "bicubic" and not grid.requires_grad:
        known = ops.grid_places(
            grid._array.reshape(shape), input._array.shape[2:], mode == "nearest", padding_mode, bool(align_corners)
        )
        if known is not None:
            flat = input.reshape(batch, channels, math.prod(input._array.shape[2:]))
            found = ops.weighted_points.call(flat, wrap(known[1], input._dev), known[0])
            return found.reshape(batch, channels, *grid._array.shape[1:-1])
    points = grid.reshape(shape)
    axes = [
        _Axis(length, padding_mode, bool(align_corners)).terms(points[..., count - 1 - d], mode)
        for d, length in enumerate(input._array.shape[2:])
    ]
    elements = math.prod(input._array.shape[2:])
    joined = [_joined(terms, input._array.shape[2:]) for terms in itertools.product(*axes)]
    places, weights = (stack(each) for each in zip(*joined, strict=True))
    flat = input.reshape(batch, channels, elements)
    out: Any = ops.weighted_points.call(flat, weights, places._array)
    if mode == "nearest" and grid.requires_grad:  # PyTorch's gradient of the grid is 0, not absent
        out = out + where(points.isfinite(), points, 0.0).sum(2).unsqueeze(1) * 0.0
    result: Tensor = out.reshape(batch, channels, *grid._array.shape[1:-1])
    return result


class _Term(NamedTuple):
    element: Tensor  # (N, P) its number along the dimension
    inside: Tensor  # (N, P) whether there is one
    weight: Tensor  # (N, P)


class _Axis(NamedTuple):
    """One spatial dimension of the input."""

    length: int
    padding_mode: str
    corners: bool

    def terms(self, coordinates: Tensor, mode: str) -> list[_Term]:
        """The neighbours of every point along this dimension."""
        n = self.length
        place = (coordinates + 1) / 2 * (n - 1) if self.corners else ((coordinates + 1) * n - 1) / 2
        if mode != "bicubic":
            place = self.moved_inside(place)
        if mode == "nearest":
            return [self.term(place.detach().round(), ones_like(place.detach()))]
        with no_grad():
            first = place.detach().floor()
        after = place - first
        if mode == "bilinear":
            return [self.term(first, 1 - after), self.term(first + 1, after)]
        weights = _cubic_weights(after)
        return [self.term(self.moved_inside(first + k - 1), weight) for k, weight in enumerate(weights)]

    def term(self, index: Tensor, weight: Tensor) -> _Term:
        """The element at the whole number `index`, a floating point tensor; NaN is outside."""
        inside = (index >= 0) & (index < self.length)
        return _Term(where(inside, index, 0.0).long(), inside, weight)

    def moved_inside(self, place: Tensor) -> Tensor:
        """`place` as the padding mode moves it; its gradient is 0 where it ends at the border."""
        if self.padding_mode == "zeros":
            return place
        if self.padding_mode == "reflection":
            place = self.reflected(place)
        last = float(self.length - 1)
        with no_grad():
            known = place.detach()
            border = where(known >= last, last, 0.0).to(known.dtype)  # NaN goes to 0
        return where((known > 0) & (known < last), place, border)

    def reflected(self, place: Tensor) -> Tensor:
        """`place` mirrored at the first and last centre or edge, as often as it takes."""
        low, span = (0.0, self.length - 1.0) if self.corners else (-0.5, float(self.length))
        if span == 0:
            return place * 0.0
        with no_grad():
            known = place.detach()
            away = (known - low).abs()
            rest, even = away.fmod(span), (away / span).floor().fmod(2.0) == 0
            value = where(even, rest, span - rest) + low
            sign = where(even == (known >= low), 1.0, -1.0).to(known.dtype)
            shift = value - sign * known
        return place * sign + shift


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """Of the elements 1 + t, t, 1 - t and 2 - t away: Keys' cubic with -0.75."""
    a = -0.75
    near = [((a + 2) * x - (a + 3)) * x * x + 1 for x in (t, 1 - t)]
    far = [((a * x - 5 * a) * x + 8 * a) * x - 4 * a for x in (t + 1, 2 - t)]
    return [far[0], near[0], near[1], far[1]]


def _joined(terms: Any, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """The flat places (N, P) that one neighbour per dimension names, -1 outside, and their weights."""
    places, inside, weight = terms[0]
    for term, length in zip(terms[1:], lengths[1:], strict=True):
        places, inside = places * length + term.element, inside & term.inside
        weight = weight * term.weight
    return where(inside, places, -1), weight


def _check_sampling(input: Tensor, grid: Tensor, mode: str, padding_mode: str) -> None:
    need_tensors("grid_sample", input=input, grid=grid)
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(f"grid_sample: expected mode to be 'bilinear', 'nearest' or 'bicubic', got {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            f"grid_sample: expected padding_mode to be 'zeros', 'border' or 'reflection', got {padding_mode!r}"
        )
    own, given = input._array.shape, grid._array.shape
    dim = len(own)
    if (
        dim in (4, 5) and len(given) == dim and own[0] == given[0] and given[-1] == dim - 2
        and 0 not in own[2:] and (mode != "bicubic" or dim == 4)
        and input._array.dtype is grid._array.dtype and input._array.dtype.kind == "f"
    ):  # fmt: skip
        return
    shapes = f"got input {tuple(input.shape)} and grid {tuple(grid.shape)}"
    if dim not in (4, 5) or grid.dim() != dim:
        raise RuntimeError(f"grid_sample: expected 4D or 5D input and a grid of as many dimensions, {shapes}")
    if input._array.shape[0] != grid._array.shape[0]:
        raise RuntimeError(f"grid_sample: expected grid and input to have the same batch size, {shapes}")
    if grid._array.shape[-1] != dim - 2:
        raise RuntimeError(f"grid_sample: expected grid to have size {dim - 2} in its last dimension, {shapes}")
    if 0 in input._array.shape[2:]:
        raise RuntimeError(f"grid_sample: expected input to have non-empty spatial dimensions, {shapes}")
    if mode == "bicubic" and dim != 4:
        raise NotImplementedError(f"grid_sample: bicubic interpolation only supports 4D input, {shapes}")
    if input.dtype != grid.dtype:
        raise RuntimeError(f"grid_sample: expected one dtype, got input {input.dtype} and grid {grid.dtype}")
    if not input.is_floating_point():
        raise NotImplementedError(f"grid_sample: expected floating point tensors, got {input.dtype}")
