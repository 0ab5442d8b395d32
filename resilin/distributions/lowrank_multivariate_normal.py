"""Normal vectors whose covariance is a low rank and a diagonal: LowRankMultivariateNormal.

With W the factor and D the diagonal, all is computed by the small matrix C = I + W^T D^-1 W.
"""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import rearranging
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.multivariate_normal import _batch_mahalanobis, _batch_mv, half_log_det
from resilin.distributions.utils import _standard_normal, lazy_property
from resilin.linalg import cholesky, solve_triangular

__all__ = ["LowRankMultivariateNormal"]


def _plus_identity(matrix: Tensor) -> Tensor:
    return matrix + creation.eye(matrix.size(-1), dtype=matrix.dtype, device=matrix.device)


def _batch_capacitance_tril(W: Tensor, D: Tensor) -> Tensor:
    """The Cholesky factor of C."""
    return cholesky(_plus_identity((W.mT / D.unsqueeze(-2)) @ W))


def _batch_lowrank_logdet(W: Tensor, D: Tensor, capacitance_tril: Tensor) -> Tensor:
    """log det(W W^T + D)."""
    return 2 * half_log_det(capacitance_tril) + D.log().sum(-1)


def _batch_lowrank_mahalanobis(W: Tensor, D: Tensor, x: Tensor, capacitance_tril: Tensor) -> Tensor:
    """x^T (W W^T + D)^-1 x, by Woodbury's identity."""
    projected = _batch_mv(W.mT / D.unsqueeze(-2), x)
    return (x.square() / D).sum(-1) - _batch_mahalanobis(capacitance_tril, projected)


class LowRankMultivariateNormal(Distribution):
    """Normal vectors of mean `loc` and covariance `cov_factor` `cov_factor`^T + diag(`cov_diag`)."""

    arg_constraints = {  # noqa: RUF012
        "loc": constraints.real_vector,
        "cov_factor": constraints.independent(constraints.real, 2),
        "cov_diag": constraints.independent(constraints.positive, 1),
    }
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, cov_factor: Tensor, cov_diag: Tensor, validate_args: bool | None = None) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        event = loc.shape[-1:]
        if cov_factor.dim() < 2:
            raise ValueError("cov_factor must be at least two-dimensional, with optional leading batch dimensions")
        if cov_factor.shape[-2:-1] != event:
            raise ValueError(f"cov_factor must be a batch of matrices with shape {event[0]} x m")
        if cov_diag.shape[-1:] != event:
            raise ValueError(f"cov_diag must be a batch of vectors with shape {event}")
        try:
            loc_, self.cov_factor, diag_ = rearranging.broadcast_tensors(
                loc.unsqueeze(-1), cov_factor, cov_diag.unsqueeze(-1)
            )
        except RuntimeError as error:
            raise ValueError(
                f"Incompatible batch shapes: loc {loc.shape}, cov_factor {cov_factor.shape}, cov_diag {cov_diag.shape}"
            ) from error
        self.loc, self.cov_diag = loc_[..., 0], diag_[..., 0]
        self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag = cov_factor, cov_diag
        self._capacitance_tril = _batch_capacitance_tril(cov_factor, cov_diag)
        super().__init__(self.loc.shape[:-1], event, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(LowRankMultivariateNormal, _instance)
        new._unbroadcasted_cov_factor = self._unbroadcasted_cov_factor
        new._unbroadcasted_cov_diag = self._unbroadcasted_cov_diag
        new._capacitance_tril = self._capacitance_tril
        return self._filled(new, batch_shape, loc=1, cov_diag=1, cov_factor=2)

    @property
    def _parts(self) -> tuple[Tensor, Tensor]:
        return self._unbroadcasted_cov_factor, self._unbroadcasted_cov_diag

    def _square(self, matrix: Tensor) -> Tensor:
        return matrix.expand((*self._batch_shape, *self._event_shape, *self._event_shape))

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @lazy_property
    def variance(self) -> Tensor:
        """The variance of each part."""
        W, D = self._parts
        return (W.square().sum(-1) + D).expand((*self._batch_shape, *self._event_shape))

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        W, D = self._parts
        root = D.sqrt().unsqueeze(-1)
        scaled = W / root
        return self._square(root * cholesky(_plus_identity(scaled @ scaled.mT)))

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The covariance."""
        W, D = self._parts
        return self._square(W @ W.mT + D.diag_embed())

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The covariance's inverse."""
        W, D = self._parts
        A = solve_triangular(self._capacitance_tril, W.mT / D.unsqueeze(-2), upper=False)
        return self._square(D.reciprocal().diag_embed() - A.mT @ A)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        shape = self._extended_shape(sample_shape)
        W, D = self._parts
        low = _standard_normal((*shape[:-1], W.size(-1)), self.loc.dtype, self.loc.device)
        rest = _standard_normal(shape, self.loc.dtype, self.loc.device)
        return self.loc + _batch_mv(W, low) + D.sqrt() * rest

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        away = self._checked(value) - self.loc
        distance = _batch_lowrank_mahalanobis(*self._parts, away, self._capacitance_tril)
        log_det = _batch_lowrank_logdet(*self._parts, self._capacitance_tril)
        return -0.5 * (self._event_shape[0] * math.log(2 * math.pi) + log_det + distance)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        log_det = _batch_lowrank_logdet(*self._parts, self._capacitance_tril)
        own = 0.5 * (self._event_shape[0] * (1.0 + math.log(2 * math.pi)) + log_det)
        return own.expand(tuple(self._batch_shape))
