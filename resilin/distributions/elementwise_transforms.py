"""Transforms of each number by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import shaping
from resilin.core.api.nn import neural
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.transform import Transform
from resilin.distributions.utils import _sum_rightmost, broadcast_all, is_number, lazy_property

Shape = Sequence[int]


def _same_kind(self: Transform, other: object) -> bool:
    return type(other) is type(self)


def clipped_sigmoid(x: Tensor) -> Tensor:
    """The logistic function, within (0, 1)."""
    limits = dtypes.finfo(x.dtype)
    return x.sigmoid().clamp(min=limits.tiny, max=1.0 - limits.eps)


class ExpTransform(Transform):
    """y = exp(x)."""

    domain = constraints.real
    codomain = constraints.positive
    bijective = True
    sign = +1
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """x itself."""
        return x


class PowerTransform(Transform):
    """y = x ** exponent."""

    domain = constraints.positive
    codomain = constraints.positive
    bijective = True

    def __init__(self, exponent: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        (self.exponent,) = broadcast_all(exponent)

    def _arguments(self) -> tuple[Any, ...]:
        return (self.exponent,)

    @lazy_property
    def sign(self) -> Any:
        """That of the exponent."""
        return self.exponent.sign()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PowerTransform) and bool((self.exponent == other.exponent).all())

    def _call(self, x: Tensor) -> Tensor:
        return x.pow(self.exponent)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.pow(1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |exponent y / x|."""
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        return shaping.broadcast_shapes(shape, self.exponent.shape)

    inverse_shape = forward_shape


class SigmoidTransform(Transform):
    """y = 1 / (1 + exp(-x))."""

    domain = constraints.real
    codomain = constraints.unit_interval
    bijective = True
    sign = +1
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        return clipped_sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        limits = dtypes.finfo(y.dtype)
        y = y.clamp(min=limits.tiny, max=1.0 - limits.eps)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log(y (1 - y)), of x."""
        return -neural.softplus(-x) - neural.softplus(x)


class SoftplusTransform(Transform):
    """y = log(1 + exp(x))."""

    domain = constraints.real
    codomain = constraints.positive
    bijective = True
    sign = +1
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        return neural.softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-y).expm1().neg().log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """The log of the logistic function of x."""
        return -neural.softplus(-x)


class TanhTransform(Transform):
    """y = tanh(x). With `cache_size=1` an x comes back exactly where y has rounded to -1 or 1."""

    domain = constraints.real
    codomain = constraints.interval(-1.0, 1.0)
    bijective = True
    sign = +1
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log(1 - y ** 2), of x, which loses no digits."""
        return 2.0 * (math.log(2.0) - x - neural.softplus(-2.0 * x))


class AbsTransform(Transform):
    """y = |x|; its inverse gives y."""

    domain = constraints.real
    codomain = constraints.positive
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class AffineTransform(Transform):
    """y = loc + scale * x, of numbers or (`event_dim`) of vectors and matrices."""

    bijective = True

    def __init__(self, loc: Any, scale: Any, event_dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.loc, self.scale = loc, scale
        self._event_dim = event_dim

    def _arguments(self) -> tuple[Any, ...]:
        return self.loc, self.scale, self.event_dim

    @property
    def event_dim(self) -> int:
        """How many of the last dimensions make one event."""
        return self._event_dim

    def _real(self) -> Any:
        return constraints.independent(constraints.real, self.event_dim) if self.event_dim else constraints.real

    domain = constraints.dependent_property(is_discrete=False)(_real)
    codomain = constraints.dependent_property(is_discrete=False)(_real)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AffineTransform) and _equal(self.loc, other.loc) and _equal(self.scale, other.scale)

    @property
    def sign(self) -> Any:
        """That of the scale."""
        if is_number(self.scale):
            return (self.scale > 0) - (self.scale < 0)
        return self.scale.sign()

    def _call(self, x: Tensor) -> Any:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Any:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        """log |scale|."""
        if is_number(self.scale):
            result = creation.full_like(x, math.log(abs(self.scale)))
        else:
            result = self.scale.abs().log()
        shape = x.shape
        if self.event_dim:
            result = _sum_rightmost(result, self.event_dim)
            shape = shape[: -self.event_dim]
        return result.expand(tuple(shape))

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        return shaping.broadcast_shapes(shape, getattr(self.loc, "shape", ()), getattr(self.scale, "shape", ()))

    inverse_shape = forward_shape


def _equal(one: Any, other: Any) -> bool:
    same = one == other
    return bool(same.all()) if isinstance(same, Tensor) else bool(same)


class CumulativeDistributionTransform(Transform):
    """y is the probability of a value up to x, under a distribution of numbers that has `cdf` and `icdf`."""

    bijective = True
    codomain = constraints.unit_interval
    sign = +1

    def __init__(self, distribution: Any, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.distribution = distribution

    def _arguments(self) -> tuple[Any, ...]:
        return (self.distribution,)

    @property
    def domain(self) -> Any:
        """The distribution's support."""
        return self.distribution.support

    def _call(self, x: Tensor) -> Any:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Any:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Any:
        """The distribution's `log_prob`."""
        return self.distribution.log_prob(x)
