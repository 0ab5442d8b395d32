"""Angles: VonMises."""

from __future__ import annotations

import math
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import indexing
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation, random
from resilin.core.ops import special as special_ops
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.utils import broadcast_all, lazy_property

__all__ = ["VonMises"]

_NEAR_UNIFORM = 1e-5  # below, the proposal's formula cancels and its series is used


class VonMises(Distribution):
    """Angles of [-pi, pi) around `loc`, the closer the higher the `concentration`. It has no `rsample`."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}  # noqa: RUF012
    support = constraints.real
    has_rsample = False

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(VonMises, batch_shape, _instance, "loc", "concentration")

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        kappa = self.concentration
        log_i0 = special_ops.i0e(kappa).log() + kappa
        return kappa * (self._checked(value) - self.loc).cos() - math.log(2 * math.pi) - log_i0

    @lazy_property
    def _proposal_r(self) -> Tensor:
        """The parameter of the wrapped Cauchy distribution under whose density that of the angles lies."""
        kappa = self.concentration.to(dtypes.float64)
        tau = 1 + (1 + 4 * kappa.square()).sqrt()
        rho = (tau - (2 * tau).sqrt()) / (2 * kappa)
        return indexing.where(kappa < _NEAR_UNIFORM, 1 / kappa + kappa, (1 + rho.square()) / (2 * rho))

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph, in float64.

        D. J. Best, N. I. Fisher, "Efficient simulation of the von Mises distribution" (1979).
        """
        shape = tuple(self._extended_shape(sample_shape))
        with no_grad():
            kappa, r = self.concentration.to(dtypes.float64), self._proposal_r
            angle = creation.zeros(shape, dtype=dtypes.float64, device=self.loc.device)
            done = creation.zeros(shape, dtype=dtypes.bool_, device=self.loc.device)
            while not bool(done.all()):
                u = random.rand((3, *shape), dtype=dtypes.float64, device=self.loc.device)
                z = (math.pi * u[0]).cos()
                f = (1 + r * z) / (r + z)
                c = kappa * (r - f)
                kept = (c * (2 - c) - u[1] > 0) | ((c / u[1]).log() + 1 - c >= 0)
                angle = indexing.where(kept, (u[2] - 0.5).sign() * f.acos(), angle)
                done = done | kept
            turned = (angle + math.pi + self.loc) % (2 * math.pi) - math.pi
            return turned.to(self.loc.dtype)

    @property
    def mean(self) -> Tensor:
        """The circular mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @lazy_property
    def variance(self) -> Tensor:
        """The circular variance."""
        return 1 - special_ops.i1e(self.concentration) / special_ops.i0e(self.concentration)
