"""Gamma distributed numbers and functions of them: Gamma, Chi2, InverseGamma, FisherSnedecor, StudentT."""

from __future__ import annotations

import math
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import indexing
from resilin.core.api.mathematics import arithmetic, special
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.distribution import Distribution, Shape
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.sampling import StandardGamma
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.transforms import PowerTransform
from resilin.distributions.utils import _standard_normal, all_numbers, broadcast_all

__all__ = ["Chi2", "FisherSnedecor", "Gamma", "InverseGamma", "StudentT"]

_CONCENTRATION_AND_RATE = {"concentration": constraints.positive, "rate": constraints.positive}


def _standard_gamma(concentration: Tensor) -> Tensor:
    drawn: Tensor = StandardGamma.apply(concentration)
    return drawn


class Gamma(ExponentialFamily):
    """Gamma distributed numbers of shape `concentration` and mean `concentration` / `rate`."""

    arg_constraints: Any = _CONCENTRATION_AND_RATE
    support = constraints.nonnegative
    has_rsample = True
    _mean_carrier_measure = 0

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast_all(concentration, rate)
        batch = () if all_numbers(concentration, rate) else self.concentration.size()
        super().__init__(batch, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return self._new_expanded(Gamma, batch_shape, _instance, "concentration", "rate")

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return ((self.concentration - 1) / self.rate).clamp(min=0)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, never 0, through which gradients reach the parameters."""
        shape = tuple(self._extended_shape(sample_shape))
        value = _standard_gamma(self.concentration.expand(shape)) / self.rate.expand(shape)
        value.data.clamp_(min=dtypes.finfo(value.dtype).tiny)  # gradients are those of what was drawn
        return value

    def log_prob(self, value: Any) -> Tensor:
        """The logarithm of the density at `value`."""
        value = self._checked(creation.as_tensor(value, dtype=self.rate.dtype, device=self.rate.device))
        return (
            arithmetic.xlogy(self.concentration, self.rate)
            + arithmetic.xlogy(self.concentration - 1, value)
            - self.rate * value
            - self.concentration.lgamma()
        )

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a value up to `value`. It has no gradient by the concentration."""
        return special.igamma(self.concentration, self.rate * self._checked(value))

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1.0 - a) * a.digamma()

    @property
    def _natural_params(self) -> tuple[Tensor, Tensor]:
        return self.concentration - 1, -self.rate

    def _log_normalizer(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + 1).lgamma() + (x + 1) * (-y.reciprocal()).log()


class Chi2(Gamma):
    """Chi-squared numbers of `df` degrees of freedom."""

    arg_constraints = {"df": constraints.positive}  # noqa: RUF012

    def __init__(self, df: Any, validate_args: bool | None = None) -> None:
        super().__init__(0.5 * df, 0.5, validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return super().expand(batch_shape, self._get_checked_instance(Chi2, _instance))

    @property
    def df(self) -> Tensor:
        """The degrees of freedom."""
        return self.concentration * 2


class InverseGamma(TransformedDistribution):
    """One over gamma distributed numbers."""

    arg_constraints = _CONCENTRATION_AND_RATE
    support = constraints.positive
    has_rsample = True

    def __init__(self, concentration: Any, rate: Any, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args=validate_args)
        super().__init__(base, PowerTransform(-base.rate.new_ones(())), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        return super().expand(batch_shape, self._get_checked_instance(InverseGamma, _instance))

    @property
    def concentration(self) -> Tensor:
        """The shape of the gamma distributed numbers."""
        return self.base_dist.concentration

    @property
    def rate(self) -> Tensor:
        """The rate of the gamma distributed numbers."""
        return self.base_dist.rate

    @property
    def mean(self) -> Tensor:
        """The mean; infinite for a concentration up to 1."""
        return indexing.where(self.concentration > 1, self.rate / (self.concentration - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        """The variance; infinite for a concentration up to 2."""
        a = self.concentration
        found = self.rate.square() / ((a - 1).square() * (a - 2))
        return indexing.where(a > 2, found, math.inf)

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class FisherSnedecor(Distribution):
    """F distributed numbers: the ratio of two chi-squared ones, each over its degrees of freedom."""

    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}  # noqa: RUF012
    support = constraints.positive
    has_rsample = True

    def __init__(self, df1: Any, df2: Any, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast_all(df1, df2)
        self._gamma1 = Gamma(self.df1 * 0.5, self.df1)
        self._gamma2 = Gamma(self.df2 * 0.5, self.df2)
        super().__init__(() if all_numbers(df1, df2) else self.df1.size(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(FisherSnedecor, _instance)
        new._gamma1, new._gamma2 = self._gamma1.expand(batch_shape), self._gamma2.expand(batch_shape)
        return self._filled(new, batch_shape, "df1", "df2")

    @property
    def mean(self) -> Tensor:
        """The mean; NaN for `df2` up to 2."""
        df2 = indexing.where(self.df2 <= 2, math.nan, self.df2)
        return df2 / (df2 - 2)

    @property
    def mode(self) -> Tensor:
        """The most probable value; NaN for `df1` up to 2."""
        mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return indexing.where(self.df1 <= 2, math.nan, mode)

    @property
    def variance(self) -> Tensor:
        """The variance; NaN for `df2` up to 4."""
        df1, df2 = self.df1, indexing.where(self.df2 <= 4, math.nan, self.df2)
        return 2 * df2.square() * (df1 + df2 - 2) / (df1 * (df2 - 2).square() * (df2 - 4))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample, never 0, through which gradients reach the parameters."""
        top, bottom = self._gamma1.rsample(sample_shape), self._gamma2.rsample(sample_shape)
        tiny = dtypes.finfo(top.dtype).tiny
        return (top / bottom.clamp(min=tiny)).clamp(min=tiny)

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        value = self._checked(value)
        half1, half2, ratio = self.df1 * 0.5, self.df2 * 0.5, self.df1 / self.df2
        constant = (half1 + half2).lgamma() - half1.lgamma() - half2.lgamma()
        powers = half1 * ratio.log() + (half1 - 1) * value.log()
        return constant + powers - (half1 + half2) * (ratio * value).log1p()


class StudentT(Distribution):
    """Student's t distributed numbers of `df` degrees of freedom, times `scale`, around `loc`."""

    arg_constraints = {  # noqa: RUF012
        "df": constraints.positive,
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(self, df: Any, loc: Any = 0.0, scale: Any = 1.0, validate_args: bool | None = None) -> None:
        self.df, self.loc, self.scale = broadcast_all(df, loc, scale)
        self._chi2 = Chi2(self.df)
        super().__init__(self.df.size(), validate_args=validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The distribution with its batch expanded."""
        new = self._get_checked_instance(StudentT, _instance)
        new._chi2 = self._chi2.expand(batch_shape)
        return self._filled(new, batch_shape, "df", "loc", "scale")

    @property
    def mean(self) -> Tensor:
        """The mean; NaN for `df` up to 1."""
        return indexing.where(self.df <= 1, math.nan, self.loc)

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        return self.loc

    @property
    def variance(self) -> Tensor:
        """The variance; infinite for `df` up to 2, NaN up to 1."""
        many = self.df > 2
        found = self.scale.square() * self.df / (indexing.where(many, self.df, 3.0) - 2)
        return indexing.where(many, found, indexing.where(self.df > 1, creation.full_like(self.df, math.inf), math.nan))

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """Draw a sample through which gradients reach the parameters."""
        normal = _standard_normal(self._extended_shape(sample_shape), self.df.dtype, self.df.device)
        return self.loc + self.scale * normal * (self._chi2.rsample(sample_shape) / self.df).rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        z = (self._checked(value) - self.loc) / self.scale
        half, more = 0.5 * self.df, 0.5 * (self.df + 1.0)
        constant = self.scale.log() + 0.5 * (math.pi * self.df).log() + half.lgamma() - more.lgamma()
        return -more * (z.square() / self.df).log1p() - constant

    def entropy(self) -> Tensor:
        """The entropy in nats."""
        half, more = 0.5 * self.df, 0.5 * (self.df + 1)
        log_beta = half.lgamma() + math.lgamma(0.5) - more.lgamma()
        return self.scale.log() + more * (more.digamma() - half.digamma()) + 0.5 * self.df.log() + log_beta
