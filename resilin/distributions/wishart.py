"""Random covariances: Wishart, and LKJCholesky for correlations."""

from __future__ import annotations

import math
import warnings
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import indexing, joining, shaping
from resilin.core.api.mathematics import linear_algebra, special
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation, random
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.dirichlet import Beta
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.gamma import Chi2
from resilin.distributions.multivariate_normal import _MATRICES, Covariance, half_log_det
from resilin.distributions.utils import broadcast_all, is_number
from resilin.linalg import slogdet

__all__ = ["LKJCholesky", "Wishart"]

_LOG_2 = math.log(2)
_TRIES = 10  # to draw a matrix that is not singular within rounding


class Wishart(Covariance, ExponentialFamily):
    """Sums of squares of `df` normal vectors: positive definite matrices of mean `df` times the given covariance."""

    support = constraints.positive_definite
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(
        self,
        df: Any,
        covariance_matrix: Tensor | None = None,
        precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        name, matrix = self._chosen(
            covariance_matrix=covariance_matrix, precision_matrix=precision_matrix, scale_tril=scale_tril
        )
        if is_number(df):
            batch = matrix.shape[:-2]
            self.df = creation.tensor(df, dtype=matrix.dtype, device=matrix.device)
        else:
            batch = shaping.broadcast_shapes(matrix.shape[:-2], df.shape)
            self.df = df.expand(tuple(batch))
        size = matrix.shape[-1]
        if bool((self.df <= size - 1).any()):
            raise ValueError(f"Value of df={df} expected to be greater than ndim - 1 = {size - 1}.")
        if bool((self.df < size).any()):
            warnings.warn(
                "Low df values detected. Singular samples are highly likely to occur for ndim - 1 < df < ndim.",
                stacklevel=2,
            )
        setattr(self, name, matrix.expand((*batch, -1, -1)))
        super().__init__(batch, matrix.shape[-2:], validate_args=validate_args)
        self._factor(name, matrix)
        self._dist_chi2 = self._chi2_of(self.df)

    def _chi2_of(self, df: Tensor) -> Chi2:
        """Of the squared diagonal of Bartlett's factor."""
        steps = creation.arange(self._event_shape[-1], dtype=df.dtype, device=df.device)
        return Chi2(df.unsqueeze(-1) - steps)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(Wishart, _instance)
        names = {**dict.fromkeys(_MATRICES, 2), "_unbroadcasted_scale_tril": 2}
        self._filled(new, batch_shape, "df", **names)
        new._dist_chi2 = new._chi2_of(new.df)
        return new

    @property
    def arg_constraints(self) -> Any:
        """`df` is greater than the size of the matrices - 1."""
        return {**_MATRICES, "df": constraints.greater_than(self.event_shape[-1] - 1)}

    def _by_df(self, value: Tensor) -> Tensor:
        return value.reshape((*self._batch_shape, 1, 1)) * self.covariance_matrix

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self._by_df(self.df)

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN for few degrees of freedom."""
        factor = self.df - self._event_shape[-1] - 1
        return self._by_df(indexing.where(factor <= 0, math.nan, factor))

    @property
    def variance(self) -> Tensor:
        """The variance of each element."""
        V = self.covariance_matrix
        diagonal = V.diagonal(dim1=-2, dim2=-1)
        products = diagonal.unsqueeze(-1) * diagonal.unsqueeze(-2)
        return self.df.reshape((*self._batch_shape, 1, 1)) * (V.square() + products)

    def _bartlett_sampling(self, sample_shape: Shape = ()) -> Tensor:
        """L A A^T L^T, A having chi-squared numbers on its diagonal and normal ones below; they may be singular."""
        roots = self._dist_chi2.rsample(sample_shape).sqrt()
        diagonal = roots.clamp(min=dtypes.finfo(roots.dtype).eps)
        normal = random.randn((*diagonal.shape, diagonal.shape[-1]), dtype=diagonal.dtype, device=diagonal.device)
        factor = self._unbroadcasted_scale_tril @ (diagonal.diag_embed() + normal.tril(-1))
        return factor @ factor.mT

    def rsample(self, sample_shape: Shape = (), max_try_correction: int | None = None) -> Tensor:
        """Draw a sample through which gradients reach the parameters; singular ones are drawn anew, some times."""
        sample = self._bartlett_sampling(sample_shape)
        for attempt in range(_TRIES if max_try_correction is None else max_try_correction):
            singular = constraints.positive_definite.check(sample).logical_not()
            if not bool(singular.any()):
                break
            if attempt == 0:
                warnings.warn("Singular sample detected.", stacklevel=2)
            again = self._bartlett_sampling(sample_shape)
            sample = indexing.where(singular.unsqueeze(-1).unsqueeze(-1), again, sample)
        return sample

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        value, nu, p = self._checked(value), self.df, self._event_shape[-1]
        factor = self._unbroadcasted_scale_tril
        trace = linear_algebra.cholesky_solve(value, factor).diagonal(dim1=-2, dim2=-1).sum(-1)
        return (
            -nu * (p * _LOG_2 / 2 + half_log_det(factor))
            - special.mvlgamma(nu / 2, p)
            + (nu - p - 1) / 2 * slogdet(value).logabsdet
            - trace / 2
        )

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        nu, p = self.df, self._event_shape[-1]
        steps = creation.arange(p, dtype=nu.dtype, device=nu.device) / 2
        digammas = ((nu / 2).unsqueeze(-1) - steps).digamma().sum(-1)
        return (
            (p + 1) * (p * _LOG_2 / 2 + half_log_det(self._unbroadcasted_scale_tril))
            + special.mvlgamma(nu / 2, p)
            - (nu - p - 1) / 2 * digammas
            + nu * p / 2
        )

    @property
    def _natural_params(self) -> tuple[Tensor, Tensor]:
        return -self.precision_matrix / 2, (self.df - self._event_shape[-1] - 1) / 2

    def _log_normalizer(self, x: Tensor, y: Tensor) -> Tensor:
        p = self._event_shape[-1]
        half = y + (p + 1) / 2
        return half * (-slogdet(-2 * x).logabsdet + _LOG_2 * p) + special.mvlgamma(half, p)


class LKJCholesky(Distribution):
    """Cholesky factors of correlation matrices of `dim` variables, with a density as det ** (concentration - 1).

    D. Lewandowski, D. Kurowicka, H. Joe, "Generating random correlation matrices based on vines and extended onion
    method" (2009); drawn by the onion method. A concentration of 1 is uniform over correlations.
    """

    arg_constraints = {"concentration": constraints.positive}  # noqa: RUF012
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        rows = creation.arange(dim - 1, dtype=self.concentration.dtype, device=self.concentration.device)
        rows = joining.cat([rows.new_zeros((1,)), rows])
        marginal = self.concentration + 0.5 * (dim - 2)
        self._beta = Beta(0.5 * rows + 0.5, marginal.unsqueeze(-1) - 0.5 * rows)
        super().__init__(self.concentration.size(), Size((dim, dim)), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(LKJCholesky, _instance)
        new.dim = self.dim
        new._beta = self._beta.expand((*batch_shape, self.dim))
        return self._filled(new, batch_shape, "concentration")

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, outside of the graph."""
        with no_grad():
            y = self._beta.sample(sample_shape).unsqueeze(-1)
            shape = tuple(self._extended_shape(sample_shape))
            normal = random.randn(shape, dtype=y.dtype, device=y.device).tril(-1)
            length = normal.square().sum(-1, keepdim=True).sqrt()
            direction = normal / indexing.where(length == 0, 1.0, length)  # the first row is 0
            w = y.sqrt() * direction
            rest = (1 - w.square().sum(-1)).clamp(min=dtypes.finfo(w.dtype).tiny).sqrt()
            return w + rest.diag_embed()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        diagonal = self._checked(value).diagonal(dim1=-2, dim2=-1)[..., 1:]
        order = creation.arange(2, self.dim + 1, dtype=diagonal.dtype, device=diagonal.device)
        order = 2 * (self.concentration - 1).unsqueeze(-1) + self.dim - order
        free = self.dim - 1
        alpha = self.concentration + 0.5 * free
        constant = 0.5 * free * math.log(math.pi) + special.mvlgamma(alpha - 0.5, free) - alpha.lgamma() * free
        return (order * diagonal.log()).sum(-1) - constant
