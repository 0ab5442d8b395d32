"""Probability distributions: the names of torch.distributions."""

from typing import TYPE_CHECKING

from resilin.distributions import constraint_registry as constraint_registry
from resilin.distributions import constraints as constraints
from resilin.distributions import distribution as distribution
from resilin.distributions import kl as kl
from resilin.distributions import kl_between_families as _kl_between_families  # noqa: F401  registers
from resilin.distributions import kl_of_one_family as _kl_of_one_family  # noqa: F401  registers
from resilin.distributions import transforms as transforms
from resilin.distributions import utils as utils
from resilin.distributions.bernoulli import Bernoulli, Binomial, Geometric, NegativeBinomial
from resilin.distributions.categorical import (
    Categorical,
    Multinomial,
    OneHotCategorical,
    OneHotCategoricalStraightThrough,
)
from resilin.distributions.cauchy import Cauchy, HalfCauchy, Laplace
from resilin.distributions.constraint_registry import biject_to, transform_to
from resilin.distributions.continuous_bernoulli import ContinuousBernoulli
from resilin.distributions.dirichlet import Beta, Dirichlet, Kumaraswamy
from resilin.distributions.distribution import Distribution
from resilin.distributions.exp_family import ExponentialFamily
from resilin.distributions.exponential import Exponential, GeneralizedPareto, Pareto, Weibull
from resilin.distributions.gamma import Chi2, FisherSnedecor, Gamma, InverseGamma, StudentT
from resilin.distributions.independent import Independent
from resilin.distributions.kl import kl_divergence, register_kl
from resilin.distributions.lowrank_multivariate_normal import LowRankMultivariateNormal
from resilin.distributions.mixture_same_family import MixtureSameFamily
from resilin.distributions.multivariate_normal import MultivariateNormal
from resilin.distributions.normal import HalfNormal, LogisticNormal, LogNormal, Normal
from resilin.distributions.poisson import Poisson
from resilin.distributions.relaxed import RelaxedBernoulli, RelaxedOneHotCategorical
from resilin.distributions.transformed_distribution import TransformedDistribution
from resilin.distributions.transforms import (
    AbsTransform,
    AffineTransform,
    CatTransform,
    ComposeTransform,
    CorrCholeskyTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    IndependentTransform,
    LowerCholeskyTransform,
    PositiveDefiniteTransform,
    PowerTransform,
    ReshapeTransform,
    SigmoidTransform,
    SoftmaxTransform,
    SoftplusTransform,
    StackTransform,
    StickBreakingTransform,
    TanhTransform,
    Transform,
    identity_transform,
)
from resilin.distributions.uniform import Gumbel, Uniform
from resilin.distributions.von_mises import VonMises
from resilin.distributions.wishart import LKJCholesky, Wishart

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.distributions import beta as beta
    from resilin.distributions import binomial as binomial
    from resilin.distributions import chi2 as chi2
    from resilin.distributions import fishersnedecor as fishersnedecor
    from resilin.distributions import generalized_pareto as generalized_pareto
    from resilin.distributions import geometric as geometric
    from resilin.distributions import gumbel as gumbel
    from resilin.distributions import half_cauchy as half_cauchy
    from resilin.distributions import half_normal as half_normal
    from resilin.distributions import inverse_gamma as inverse_gamma
    from resilin.distributions import kumaraswamy as kumaraswamy
    from resilin.distributions import laplace as laplace
    from resilin.distributions import lkj_cholesky as lkj_cholesky
    from resilin.distributions import log_normal as log_normal
    from resilin.distributions import logistic_normal as logistic_normal
    from resilin.distributions import multinomial as multinomial
    from resilin.distributions import negative_binomial as negative_binomial
    from resilin.distributions import one_hot_categorical as one_hot_categorical
    from resilin.distributions import pareto as pareto
    from resilin.distributions import relaxed_bernoulli as relaxed_bernoulli
    from resilin.distributions import relaxed_categorical as relaxed_categorical
    from resilin.distributions import studentT as studentT
    from resilin.distributions import weibull as weibull

__all__ = [
    "AbsTransform",
    "AffineTransform",
    "Bernoulli",
    "Beta",
    "Binomial",
    "CatTransform",
    "Categorical",
    "Cauchy",
    "Chi2",
    "ComposeTransform",
    "ContinuousBernoulli",
    "CorrCholeskyTransform",
    "CumulativeDistributionTransform",
    "Dirichlet",
    "Distribution",
    "ExpTransform",
    "Exponential",
    "ExponentialFamily",
    "FisherSnedecor",
    "Gamma",
    "GeneralizedPareto",
    "Geometric",
    "Gumbel",
    "HalfCauchy",
    "HalfNormal",
    "Independent",
    "IndependentTransform",
    "InverseGamma",
    "Kumaraswamy",
    "LKJCholesky",
    "Laplace",
    "LogNormal",
    "LogisticNormal",
    "LowRankMultivariateNormal",
    "LowerCholeskyTransform",
    "MixtureSameFamily",
    "Multinomial",
    "MultivariateNormal",
    "NegativeBinomial",
    "Normal",
    "OneHotCategorical",
    "OneHotCategoricalStraightThrough",
    "Pareto",
    "Poisson",
    "PositiveDefiniteTransform",
    "PowerTransform",
    "RelaxedBernoulli",
    "RelaxedOneHotCategorical",
    "ReshapeTransform",
    "SigmoidTransform",
    "SoftmaxTransform",
    "SoftplusTransform",
    "StackTransform",
    "StickBreakingTransform",
    "StudentT",
    "TanhTransform",
    "Transform",
    "TransformedDistribution",
    "Uniform",
    "VonMises",
    "Weibull",
    "Wishart",
    "biject_to",
    "identity_transform",
    "kl_divergence",
    "register_kl",
    "transform_to",
]
