"""Transforms, constraints and what leads to them, against PyTorch's recorded numbers."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from distribution_cases import close, recorded, tensors

import resilin
from resilin import distributions
from resilin.autograd.functional import jacobian
from resilin.distributions import (
    AffineTransform,
    CatTransform,
    ComposeTransform,
    CorrCholeskyTransform,
    CumulativeDistributionTransform,
    ExpTransform,
    IndependentTransform,
    Normal,
    SigmoidTransform,
    StackTransform,
    StickBreakingTransform,
    TanhTransform,
    TransformedDistribution,
    constraints,
    transforms,
    utils,
)


def test_transforms_are_pytorchs():
    for case in recorded("transforms"):
        t = getattr(transforms, case["name"])(*tensors(case["args"]))
        x = tensors(case["x"])
        y = t(x)
        close(y, case["y"], case["name"])
        close(t.inv(y), case["back"], case["name"])
        assert [list(t.forward_shape(x.shape)), list(t.inverse_shape(y.shape))] == case["shapes"]
        assert [t.domain.event_dim, t.codomain.event_dim] == case["dims"]
        assert (t.bijective, repr(t)) == (case["bijective"], case["text"])
        assert t.inv.inv is t
        assert bool(t.codomain.check(y).all())
        if case["jacobian"] is None:
            with pytest.raises(NotImplementedError, match=f"{case['name']} does not implement log_abs_det"):
                t.log_abs_det_jacobian(x, y)
        else:
            close(t.log_abs_det_jacobian(x, y), case["jacobian"], case["name"])
            close(t.inv.log_abs_det_jacobian(y, x), -case["jacobian"], case["name"])


@pytest.mark.parametrize("t", [CorrCholeskyTransform(), StickBreakingTransform()], ids=repr)
def test_determinants_are_those_of_the_jacobian(t):
    x = resilin.tensor([0.3, -0.7, 1.1])

    def free(x):  # as many elements of y as x has
        y = t(x)
        return y[:-1] if y.dim() == 1 else utils.tril_matrix_to_vec(y, -1)

    expected = np.linalg.slogdet(jacobian(free, x).numpy()).logabsdet
    close(t.log_abs_det_jacobian(x, t(x)), np.asarray(expected), t)


def test_constraints_are_led_to_as_in_pytorch():
    for case in recorded("constraints"):
        constraint = getattr(constraints, case["name"])
        constraint = constraint if case["args"] is None else constraint(*case["args"])
        assert repr(constraint) == case["text"]
        for name in ("biject_to", "transform_to"):
            registry = getattr(distributions, name)
            if case[name] is None:
                with pytest.raises(NotImplementedError, match="Cannot transform"):
                    registry(constraint)
                continue
            made = registry(constraint)(tensors(case["x"]))
            close(made, case[name], (name, case["name"]))
            assert bool(constraint.check(made).all())


def test_parts_have_transforms_and_constraints_of_their_own():
    parts = [constraints.positive, constraints.interval(-1.0, 2.0)]
    x = resilin.tensor([[0.5, 1.0, -3.0], [2.0, -1.0, 0.0]])
    joined = distributions.biject_to(constraints.cat(parts, -1, [1, 2]))
    stacked = distributions.biject_to(constraints.stack(parts, 0))
    assert isinstance(joined, CatTransform)
    assert isinstance(stacked, StackTransform)
    for t, cut in ((joined, (slice(None), slice(1))), (stacked, (0, slice(None)))):
        y = t(x)
        assert bool(t.codomain.check(y).all())
        assert bool(t.bijective)
        close(t.inv(y), x.numpy(), t)
        close(y[cut], x[cut].exp().numpy(), t)
        close(t.log_abs_det_jacobian(x, y)[cut], x[cut].numpy(), t)
    with pytest.raises(AssertionError, match="must equal length 3"):
        joined(x[:, :2])


def test_a_cache_brings_back_the_very_x():
    t = TanhTransform(cache_size=1)
    x = resilin.tensor([50.0])
    assert t.inv(t(x)) is x
    assert TanhTransform().inv(TanhTransform()(x)).isinf().all()
    several = ComposeTransform([ExpTransform(), AffineTransform(1.0, 2.0)]).with_cache()
    assert several.inv(several(x)) is x
    again = pickle.loads(pickle.dumps(several))
    assert again == several
    close(again(x), several(x).numpy(), "pickled")
    with pytest.raises(ValueError, match="cache_size must be 0 or 1"):
        ExpTransform(cache_size=2)


def test_transforms_compare_by_what_they_do():
    assert AffineTransform(0.0, resilin.tensor(2.0)) == AffineTransform(0, 2)
    assert AffineTransform(0.0, 2.0) != AffineTransform(0.0, 3.0)
    assert ExpTransform().inv == ExpTransform().inv
    assert ExpTransform() != SigmoidTransform()
    assert AffineTransform(0.0, -2.0).sign == -1
    assert ComposeTransform([AffineTransform(0.0, -2.0), ExpTransform()]).sign == -1
    assert IndependentTransform(ExpTransform(), 1).domain.event_dim == 1


def test_transformed_distributions_have_the_density_and_the_probabilities_of_their_transforms():
    d = TransformedDistribution(Normal(0.3, 1.2), [AffineTransform(0.5, -2.0), ExpTransform()])
    same = distributions.LogNormal(0.5 - 0.6, 2.4)
    x = resilin.tensor([0.2, 1.0, 4.0])
    close(d.log_prob(x), same.log_prob(x).numpy(), "log_prob")
    close(d.cdf(x), same.cdf(x).numpy(), "cdf")
    close(d.icdf(d.cdf(x)), x.numpy(), "icdf")
    uniform = TransformedDistribution(Normal(0.0, 1.0), CumulativeDistributionTransform(Normal(0.0, 1.0)))
    close(uniform.log_prob(resilin.tensor([0.1, 0.8])), np.zeros(2), "uniform")
    with pytest.raises(ValueError, match="needs to have shape with size at least 1"):
        TransformedDistribution(Normal(0.0, 1.0), StickBreakingTransform())
    with pytest.raises(ValueError, match="must be a Transform or list"):
        TransformedDistribution(Normal(0.0, 1.0), 3)


def test_triangles_are_vectors_and_back():
    for diag in (-2, -1, 0, 1):
        mat = resilin.arange(1.0, 17.0).reshape(1, 4, 4).tril(diag)
        vec = utils.tril_matrix_to_vec(mat, diag)
        close(utils.vec_to_tril_matrix(vec, diag), mat.numpy(), diag)
    with pytest.raises(ValueError, match="size of last dimension is 5"):
        utils.vec_to_tril_matrix(resilin.ones(5), -1)


def test_lazy_properties_are_computed_once_with_gradients():
    d = distributions.Bernoulli(resilin.tensor([0.3], requires_grad=True))
    with resilin.no_grad():
        logits = d.logits
    assert logits.requires_grad
    assert d.logits is logits
    assert isinstance(distributions.Bernoulli.logits, utils.lazy_property)
    assert copy.copy(d).logits is logits
