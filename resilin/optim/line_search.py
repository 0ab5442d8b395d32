"""A line search for the strong Wolfe conditions: bracket, then zoom by cubic interpolation (Nocedal and Wright, 3.5).

Bounds and decisions are PyTorch's, so that LBFGS takes the same steps with the same number of evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from resilin.core.kernels.common import Array

ARMIJO = 1e-4  # share of the promised decrease that must be there
CURVATURE = 0.9  # share of the slope that may be left


class Point(NamedTuple):
    """A place on the line: the step's length, the loss there, the gradient, and the slope along the line."""

    t: float
    loss: float
    grad: Array
    slope: float = math.nan


def strong_wolfe(
    at: Callable[[float], Point], start: Point, t: float, size: float, tolerance: float, limit: int
) -> tuple[Point, int]:
    """A point with less loss and less slope, as far as `limit` more evaluations after the first find one.

    start: the point at 0 with its slope; t: the first guess. size: the largest element of the direction: brackets
    shorter than `tolerance` in every element end the search. Returns the point and the number of evaluations.
    """
    bracket, rounds, found = _bracket(at, start, t, limit)
    evaluations = rounds + 1
    low = _lowest(bracket)
    stuck = False
    while not found and rounds < limit and abs(bracket[1].t - bracket[0].t) * size >= tolerance:
        t, stuck = _inside(bracket, stuck)
        new = at(t)
        evaluations += 1
        rounds += 1
        if _too_high(new, start) or new.loss >= bracket[low].loss:
            bracket[1 - low] = new
            low = _lowest(bracket)
            continue
        found = abs(new.slope) <= -CURVATURE * start.slope
        if not found and new.slope * (bracket[1 - low].t - bracket[low].t) >= 0:
            bracket[1 - low] = bracket[low]
        bracket[low] = new
    return bracket[low], evaluations


def _bracket(at: Callable[[float], Point], start: Point, t: float, limit: int) -> tuple[list[Point], int, bool]:
    """Two points with a good one between them (or one good point), the rounds it took, whether the point is good."""
    before, new = start, at(t)
    for rounds in range(limit):
        if _too_high(new, start) or (rounds > 1 and new.loss >= before.loss):
            return [before, new], rounds, False
        if abs(new.slope) <= -CURVATURE * start.slope:
            return [new], rounds, True
        if new.slope >= 0:
            return [before, new], rounds, False
        reach = (new.t + 0.01 * (new.t - before.t), new.t * 10)
        before, new = new, at(_cubic_minimum(before, new, *reach))
    return [start, new], limit, False


def _too_high(new: Point, start: Point) -> bool:
    return new.loss > start.loss + ARMIJO * new.t * start.slope


def _lowest(bracket: list[Point]) -> int:
    """0 or 1: which end has the smaller loss (0 when there is only one)."""
    return 0 if len(bracket) == 1 or bracket[0].loss <= bracket[1].loss else 1


def _inside(bracket: list[Point], stuck: bool) -> tuple[float, bool]:
    """The next guess in a bracket, and whether it is close to an end.

    A guess at an end, or the second one in a row close to an end, is moved a tenth of the bracket inside.
    """
    least, most = sorted((bracket[0].t, bracket[1].t))
    t = _cubic_minimum(bracket[0], bracket[1], least, most)
    margin = 0.1 * (most - least)
    if min(most - t, t - least) >= margin:
        return t, False
    if stuck or t >= most or t <= least:
        return (most - margin if abs(t - most) < abs(t - least) else least + margin), False
    return t, True


def _cubic_minimum(a: Point, b: Point, least: float, most: float) -> float:
    """The minimum of the cubic through two points with their slopes, within bounds; their middle if it has none."""
    left, right = (a, b) if a.t <= b.t else (b, a)
    middle = (least + most) / 2
    if a.t == b.t:
        return middle
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return middle
    d2 = math.sqrt(square)
    bottom = right.slope - left.slope + 2 * d2
    if bottom == 0:
        return middle
    place = right.t - (right.t - left.t) * ((right.slope + d2 - d1) / bottom)
    return min(max(place, least), most)
