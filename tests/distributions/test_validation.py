"""Parameters and values are checked, and errors name the parameter, its constraint and what was found."""

from __future__ import annotations

import math

import pytest

import resilin
from resilin import distributions as dist
from resilin.distributions import constraints


def test_wrong_parameters_are_refused_unless_validation_is_off():
    with pytest.raises(
        ValueError, match=r"Expected parameter scale .* of distribution Normal\(loc: 0.0, scale: -1.0\)"
    ):
        dist.Normal(0.0, -1.0)
    assert float(dist.Normal(0.0, -1.0, validate_args=False).scale) == -1
    for make in (
        lambda: dist.Bernoulli(1.5),
        lambda: dist.Categorical(resilin.tensor([0.5, -0.5])),
        lambda: dist.Dirichlet(resilin.tensor([1.0, 0.0])),
        lambda: dist.Geometric(0.0),
        lambda: dist.MultivariateNormal(resilin.zeros(2), resilin.tensor([[1.0, 2.0], [2.0, 1.0]])),
        lambda: dist.MultivariateNormal(resilin.zeros(2), resilin.tensor([[1.0, 0.5], [0.2, 1.0]])),
        lambda: dist.Uniform(2.0, 1.0),
        lambda: dist.Wishart(resilin.tensor(0.5), resilin.eye(2)),
        lambda: dist.Normal(math.nan, 1.0),
    ):
        with pytest.raises(ValueError, match=r"Expected parameter|expected to be greater"):
            make()
    for make in (
        lambda: dist.Bernoulli(),
        lambda: dist.Categorical(resilin.ones(2), resilin.ones(2)),
        lambda: dist.MultivariateNormal(resilin.zeros(2)),
        lambda: dist.Normal("zero", 1.0),
        lambda: dist.LKJCholesky(1),
        lambda: dist.Categorical(resilin.tensor(1.0)),
    ):
        with pytest.raises(ValueError, match=r"specified|Number|dim to be|one-dimensional"):
            make()


def test_wrong_values_are_refused():
    d = dist.Gamma(resilin.tensor([1.0, 2.0]), 1.0)
    with pytest.raises(
        ValueError, match=r"within the support \(GreaterThanEq\(lower_bound=0.0\)\) of the distribution"
    ):
        d.log_prob(resilin.tensor([-1.0, 1.0]))
    with pytest.raises(ValueError, match="not broadcastable with batch_shape"):
        d.log_prob(resilin.ones(3))
    with pytest.raises(ValueError, match="right-most size of value must match event_shape"):
        dist.Dirichlet(resilin.ones(3)).log_prob(resilin.ones(2))
    with pytest.raises(ValueError, match="must be a Tensor, got float"):
        dist.Normal(0.0, 1.0).log_prob(0.5)
    with pytest.raises(ValueError, match="IntegerInterval"):
        dist.Categorical(resilin.ones(3)).log_prob(resilin.tensor(3))


def test_the_default_of_validation_is_set_for_all():
    with pytest.raises(ValueError, match="expected True or False"):
        dist.Distribution.set_default_validate_args(3)
    dist.Distribution.set_default_validate_args(False)
    try:
        dist.Normal(0.0, -1.0)
    finally:
        dist.Distribution.set_default_validate_args(True)


def test_subclasses_are_expanded_as_themselves_or_must_say_how():
    class Plain(dist.Normal):
        pass

    class Own(dist.Normal):
        def __init__(self, scale):
            super().__init__(0.0, scale)

    assert type(Plain(0.0, 1.0).expand((2,))) is Plain
    with pytest.raises(NotImplementedError, match=r"must also define a custom .expand\(\)"):
        Own(1.0).expand((2,))


def test_own_distributions_without_constraints_are_told_to_have_some():
    class Bare(dist.Distribution):
        def log_prob(self, value):
            return self._checked(value)

    with pytest.warns(UserWarning, match="does not define `arg_constraints`"):
        bare = Bare()
    with pytest.warns(UserWarning, match="does not define `support`"):
        bare.log_prob(resilin.tensor(1.0))
    with pytest.raises(NotImplementedError, match="Bare'> does not implement mean"):
        _ = bare.mean


def test_dependent_constraints_say_what_they_know():
    assert constraints.is_dependent(dist.Uniform.support)
    assert dist.Uniform.support.event_dim == 0
    assert not dist.Uniform.support.is_discrete
    assert not constraints.is_dependent(dist.Uniform(0.0, 1.0).support)
    with pytest.raises(NotImplementedError, match="cannot be determined statically"):
        _ = constraints.dependent.event_dim
    assert constraints.dependent(event_dim=2).event_dim == 2
    with pytest.raises(ValueError, match="Cannot determine validity"):
        constraints.dependent.check(resilin.ones(1))


def test_constraints_of_matrices_and_vectors():
    eye, skew = resilin.eye(2), resilin.tensor([[1.0, 2.0], [0.0, -1.0]])
    expected = {
        "square": (True, True),
        "symmetric": (True, False),
        "positive_definite": (True, False),
        "positive_semidefinite": (True, False),
        "lower_triangular": (True, False),
        "lower_cholesky": (True, False),
        "corr_cholesky": (True, False),
    }
    for name, found in expected.items():
        assert tuple(bool(getattr(constraints, name).check(m)) for m in (eye, skew)) == found, name
    assert constraints.square.check(resilin.ones(3, 2, 1)).tolist() == [False] * 3
    assert bool(constraints.one_hot.check(eye).all())
    assert constraints.simplex.check(resilin.tensor([[0.5, 0.5], [0.5, 0.6]])).tolist() == [True, False]
    assert constraints.multinomial(2).check(resilin.tensor([[1.0, 1.0], [2.0, 1.0]])).tolist() == [True, False]


def test_sample_n_is_deprecated_and_perplexity_is_of_the_entropy():
    with pytest.warns(FutureWarning, match="sample_n"):
        assert tuple(dist.Normal(0.0, 1.0).sample_n(3).shape) == (3,)
    assert abs(float(dist.Categorical(resilin.ones(4)).perplexity()) - 4) < 1e-9
