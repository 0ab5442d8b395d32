"""Normal vectors: MultivariateNormal."""

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.manipulation import shaping
from resilin.core.api.mathematics import linear_algebra
from resilin.core.ops import creation
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.utils import _standard_normal, lazy_property
from resilin.linalg import cholesky, solve_triangular

__all__ = ["MultivariateNormal"]

_ONE_OF_THREE = "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
_MATRICES = {
    "covariance_matrix": constraints.positive_definite,
    "precision_matrix": constraints.positive_definite,
    "scale_tril": constraints.lower_cholesky,
}


def _batch_mv(bmat: Tensor, bvec: Tensor) -> Tensor:
    """Matrices times vectors."""
    return (bmat @ bvec.unsqueeze(-1)).squeeze(-1)


def _batch_mahalanobis(bL: Tensor, bx: Tensor) -> Tensor:
    """x^T (L L^T)^-1 x of vectors x, for lower triangular L."""
    n = bx.size(-1)
    if bL.dim() == 2:  # one matrix: all vectors at once
        columns = solve_triangular(bL, bx.reshape(-1, n).t(), upper=False)
        return columns.square().sum(0).reshape(bx.shape[:-1])
    return solve_triangular(bL, bx.unsqueeze(-1), upper=False).square().sum((-2, -1))


def _precision_to_scale_tril(precision: Tensor) -> Tensor:
    """The Cholesky factor of a matrix's inverse, from that of the matrix turned around."""
    upper = cholesky(shaping.flip(precision, (-2, -1)))
    inverse = shaping.flip(upper, (-2, -1)).mT
    eye = creation.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return solve_triangular(inverse, eye.expand(precision.shape), upper=False)


def half_log_det(scale_tril: Tensor) -> Tensor:
    """log |det L|."""
    return scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class Covariance(Distribution):
    """A distribution with a positive definite matrix, given as itself, as its inverse, or as its Cholesky factor."""

    _unbroadcasted_scale_tril: Tensor

    @staticmethod
    def _chosen(**matrices: Any) -> tuple[str, Tensor]:
        """The name of the matrix that was given, and it. ValueError where not exactly one was, or it is no matrix."""
        given = [(name, matrix) for name, matrix in matrices.items() if matrix is not None]
        if len(given) != 1:
            raise ValueError(_ONE_OF_THREE)
        name, matrix = given[0]
        if matrix.dim() < 2:
            raise ValueError(f"{name} must be at least two-dimensional, with optional leading batch dimensions")
        return name, matrix

    def _factor(self, name: str, matrix: Tensor) -> None:
        if name == "scale_tril":
            self._unbroadcasted_scale_tril = matrix
        elif name == "covariance_matrix":
            self._unbroadcasted_scale_tril = cholesky(matrix)
        else:
            self._unbroadcasted_scale_tril = _precision_to_scale_tril(matrix)

    def _square_shape(self) -> tuple[int, ...]:
        return (*self._batch_shape, self._event_shape[-1], self._event_shape[-1])

    @lazy_property
    def scale_tril(self) -> Tensor:
        """The Cholesky factor."""
        return self._unbroadcasted_scale_tril.expand(self._square_shape())

    @lazy_property
    def covariance_matrix(self) -> Tensor:
        """The matrix."""
        factor = self._unbroadcasted_scale_tril
        return (factor @ factor.mT).expand(self._square_shape())

    @lazy_property
    def precision_matrix(self) -> Tensor:
        """The matrix's inverse."""
        return linear_algebra.cholesky_inverse(self._unbroadcasted_scale_tril).expand(self._square_shape())


class MultivariateNormal(Covariance):
    """Normal vectors of mean `loc` and of one of: covariance, its inverse, its Cholesky factor."""

    arg_constraints = {"loc": constraints.real_vector, **_MATRICES}  # noqa: RUF012
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        loc: Tensor,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        if loc.dim() < 1:
            raise ValueError("loc must be at least one-dimensional.")
        name, matrix = self._chosen(
            covariance_matrix=covariance_matrix, precision_matrix=precision_matrix, scale_tril=scale_tril
        )
        batch = shaping.broadcast_shapes(matrix.shape[:-2], loc.shape[:-1])
        setattr(self, name, matrix.expand((*batch, -1, -1)))
        self.loc = loc.expand((*batch, -1))
        super().__init__(batch, self.loc.shape[-1:], validate_args=validate_args)
        self._factor(name, matrix)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(MultivariateNormal, _instance)
        new._unbroadcasted_scale_tril = self._unbroadcasted_scale_tril
        return self._filled(new, batch_shape, loc=1, **dict.fromkeys(_MATRICES, 2))

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance of each part."""
        shape = (*self._batch_shape, *self._event_shape)
        return self._unbroadcasted_scale_tril.square().sum(-1).expand(shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        noise = _standard_normal(self._extended_shape(sample_shape), self.loc.dtype, self.loc.device)
        return self.loc + _batch_mv(self._unbroadcasted_scale_tril, noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        distance = _batch_mahalanobis(self._unbroadcasted_scale_tril, self._checked(value) - self.loc)
        constant = self._event_shape[0] * math.log(2 * math.pi)
        return -0.5 * (constant + distance) - half_log_det(self._unbroadcasted_scale_tril)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        own = 0.5 * self._event_shape[0] * (1.0 + math.log(2 * math.pi))
        return (own + half_log_det(self._unbroadcasted_scale_tril)).expand(Size(self._batch_shape))
