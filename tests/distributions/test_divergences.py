"""The table of `kl_divergence` gives PyTorch's recorded numbers, and is extended by `register_kl`."""

from __future__ import annotations

import pytest
from distribution_cases import close, recorded, tensors

import resilin
from resilin import distributions
from resilin.distributions import Independent, Normal, kl, kl_divergence, register_kl

CASES = recorded("divergences")


def test_all_divergences_and_their_gradients_are_pytorchs():
    for case in CASES:
        p, q = (getattr(distributions, name) for name in case["names"])
        parameters = tensors(case["p"], grad=())
        parameters.pop("total_count", None)
        given = {"total_count": case["p"]["total_count"]} if "total_count" in case["p"] else {}
        found = kl_divergence(p(**parameters, **given), q(**tensors(case["q"])))
        if case["names"] == ["ContinuousBernoulli", "Uniform"]:  # PyTorch's is infinite where both begin at 0
            close(found[1:], case["kl"][1:], case["names"])
            continue
        close(found, case["kl"], case["names"])
        if case["grads"]:
            found.sum().backward()
        for name, grad in case["grads"].items():
            close(parameters[name].grad, grad, (*case["names"], name))


def test_the_table_has_every_pair_that_pytorchs_has():
    general = {"ExponentialFamily", "Independent", "TransformedDistribution"}
    ours = {(p.__name__, q.__name__) for p, q in kl._KL_REGISTRY}
    assert {pair for pair in ours if not general & {*pair}} == {tuple(case["names"]) for case in CASES}
    assert {pair for pair in ours if general & {*pair}} == {(name, name) for name in general}


def test_divergences_of_batches_as_events_and_of_transforms_are_those_of_what_they_are_made_of():
    p, q = Normal(resilin.zeros(2, 3), 1.0), Normal(resilin.ones(2, 3), 2.0)
    plain = kl_divergence(p, q)
    close(kl_divergence(Independent(p, 1), Independent(q, 1)), plain.sum(-1).numpy(), "independent")
    logs = distributions.LogNormal(p.loc, p.scale), distributions.LogNormal(q.loc, q.scale)
    close(kl_divergence(*logs), plain.numpy(), "transformed")
    with pytest.raises(NotImplementedError, match="as many reinterpreted_batch_ndims"):
        kl_divergence(Independent(p, 1), Independent(q, 2))
    chi = distributions.Chi2(resilin.tensor([3.0])), distributions.Gamma(resilin.tensor([1.5]), 0.5)
    close(kl_divergence(*chi), resilin.zeros(1).numpy(), "a subclass has its base's rule")


def test_own_families_are_registered_and_what_is_not_or_is_ambiguous_is_said():
    class First(Normal):
        pass

    class Second(Normal):
        pass

    before = dict(kl._KL_REGISTRY)
    try:
        register_kl(First, Normal)(lambda p, q: resilin.tensor(1.0))
        assert float(kl_divergence(First(0.0, 1.0), Second(0.0, 1.0))) == 1
        register_kl(Normal, Second)(lambda p, q: resilin.tensor(2.0))
        with pytest.warns(RuntimeWarning, match=r"Please register_kl\(First, Second\)"):
            kl_divergence(First(0.0, 1.0), Second(0.0, 1.0))
    finally:
        kl._KL_REGISTRY.clear()
        kl._KL_REGISTRY.update(before)
        kl._KL_MEMOIZE.clear()
    with pytest.raises(NotImplementedError, match="p type VonMises and q type Normal"):
        kl_divergence(distributions.VonMises(0.0, 1.0), Normal(0.0, 1.0))
    with pytest.raises(NotImplementedError, match="different exponential families"):
        kl_divergence(distributions.Poisson(1.0), Normal(0.0, 1.0))
    with pytest.raises(TypeError, match="Expected type_p to be a Distribution subclass"):
        register_kl(int, Normal)


def test_entropies_and_divergences_of_exponential_families_follow_from_their_log_normalizers():
    family = distributions.ExponentialFamily
    rule = kl._KL_REGISTRY[family, family]
    a, b = resilin.tensor([0.4, 2.0]), resilin.tensor([1.5, 0.7])
    for kind, ours, theirs in (
        (Normal, (a, b), (b, a)),
        (distributions.Bernoulli, (a / 4,), (b / 4,)),
        (distributions.Beta, (a, b), (b, a)),
        (distributions.ContinuousBernoulli, (a / 4,), (b / 4,)),
        (distributions.Dirichlet, (a,), (b,)),
        (distributions.Exponential, (a,), (b,)),
        (distributions.Gamma, (a, b), (b, a)),
        (distributions.Poisson, (a,), (b,)),
    ):
        p, q = kind(*ours), kind(*theirs)
        close(rule(p, q), kl_divergence(p, q).numpy(), kind, 1e-7)
        if kind in (distributions.Bernoulli, distributions.ContinuousBernoulli, distributions.Exponential):
            close(family.entropy(p), p.entropy().numpy(), kind, 1e-7)  # whose carrier measure has the mean 0
    eye = resilin.eye(2)
    p, q = (distributions.Wishart(resilin.tensor(df), scale_tril=scale * eye) for df, scale in ((4.0, 1.0), (5.0, 2.0)))
    resilin.manual_seed(8)
    drawn = p.sample((3000,))
    assert abs(float(kl_divergence(p, q) - (p.log_prob(drawn) - q.log_prob(drawn)).mean())) < 0.1
