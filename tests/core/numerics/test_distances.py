"""Distances and similarities: values, gradients where rows are equal, ways to compute, mistakes."""

import math

import numpy as np
import pytest

import resilin
import resilin.nn.functional as F
from resilin.core.autograd.gradcheck import gradcheck, gradgradcheck


def rand(*shape, seed=0):
    return resilin.tensor(np.random.default_rng(seed).standard_normal(shape), requires_grad=True)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_cdist_is_the_norm_of_every_difference(p):
    a, b = rand(2, 1, 3, 4), rand(5, 4, seed=1)
    differences = a.detach().numpy()[..., :, None, :] - b.detach().numpy()[..., None, :, :]
    expected = np.linalg.norm(differences, p, axis=-1)
    np.testing.assert_allclose(resilin.cdist(a, b, p).detach().numpy(), expected)
    if p:
        assert gradcheck(lambda x, y: resilin.cdist(x, y, p), (a, b))


def test_cdist_through_products_agrees_with_differences_and_is_the_way_for_many_rows():
    a, b = rand(30, 4), rand(5, 4, seed=1)
    exact = resilin.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    fast = resilin.cdist(a, b, compute_mode="use_mm_for_euclid_dist")
    np.testing.assert_allclose(fast.detach().numpy(), exact.detach().numpy(), rtol=1e-9)
    np.testing.assert_array_equal(resilin.cdist(a, b).detach().numpy(), fast.detach().numpy())
    assert gradgradcheck(lambda x, y: resilin.cdist(x, y), (a[:26].detach().requires_grad_(), b))


def test_the_gradient_of_a_distance_zero_is_zero():
    x = resilin.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    y = resilin.tensor([[1.0, 1.0], [1.0, 2.0]])
    (g,) = resilin.autograd.grad(resilin.cdist(x, y).sum(), x)
    np.testing.assert_allclose(g.numpy(), [[-1.15432036, -1.60153389], [0.0, 1.0]], rtol=1e-6)  # PyTorch's


@pytest.mark.parametrize("p", [1.0, 2.0, 2.5, math.inf])
def test_pdist_is_the_upper_triangle_of_cdist(p):
    x = rand(5, 3)
    full = resilin.cdist(x, x, p).detach().numpy()
    np.testing.assert_allclose(F.pdist(x, p).detach().numpy(), full[np.triu_indices(5, 1)], rtol=1e-9)
    assert gradcheck(lambda v: F.pdist(v, p), (x,))
    assert F.pdist(rand(1, 3)).shape == (0,)


def test_pairwise_distance_adds_eps_to_the_difference():
    x, y = rand(3, 4), rand(4, seed=2)
    expected = np.linalg.norm(x.detach().numpy() - y.detach().numpy() + 1e-3, 3, axis=-1)
    found = F.pairwise_distance(x, y, 3.0, 1e-3, keepdim=True)
    np.testing.assert_allclose(found.detach().numpy(), expected[:, None])
    assert F.pairwise_distance(x[0], y).shape == ()


def test_cosine_similarity_broadcasts_and_guards_short_vectors():
    x, y = rand(2, 3), rand(4, 1, 3, seed=2)
    a, b = x.detach().numpy(), y.detach().numpy()
    expected = (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
    np.testing.assert_allclose(F.cosine_similarity(x, y, dim=-1).detach().numpy(), expected)
    assert gradgradcheck(lambda u, v: F.cosine_similarity(u, v, dim=-1), (x, y))
    zero = resilin.zeros(1, 3, requires_grad=True)
    similar = F.cosine_similarity(zero, resilin.ones(1, 3))
    assert similar.item() == 0
    (g,) = resilin.autograd.grad(similar.sum(), zero)
    assert bool(g.isfinite().all())


def test_normalize_divides_by_the_norm_and_writes_into_out():
    x = rand(2, 3)
    expected = x.detach().numpy() / np.linalg.norm(x.detach().numpy(), 3, axis=1, keepdims=True)
    np.testing.assert_allclose(F.normalize(x, 3.0).detach().numpy(), expected)
    out = resilin.zeros(2, 3, dtype=resilin.float64)
    assert F.normalize(x.detach(), 3.0, out=out) is out
    np.testing.assert_allclose(out.numpy(), expected)
    assert F.normalize(resilin.zeros(1, 3)).tolist() == [[0.0] * 3]


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_distances_of_nothing_are_empty_or_zero(shape):
    other = resilin.ones(4, shape[1])
    for p in (1.0, 2.0, math.inf):
        found = resilin.cdist(resilin.ones(shape), other, p)
        assert found.shape == (shape[0], 4)
        assert not found.any()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.cosine_similarity(rand(3), rand(4)), RuntimeError, r"cosine_similarity: the shapes \(3,\) and"),
        (lambda: F.cosine_similarity(resilin.tensor([1]), resilin.tensor([2]), 0), RuntimeError, "floating point"),
        (lambda: F.pairwise_distance(rand(3), rand(4)), RuntimeError, "pairwise_distance: the shapes"),
        (lambda: F.pairwise_distance([1.0], rand(4)), TypeError, "'x1' must be a Tensor"),
        (lambda: resilin.cdist(rand(3), rand(3)), RuntimeError, "at least 2 dimensions"),
        (lambda: resilin.cdist(rand(3, 2), rand(3, 3)), RuntimeError, "same number of columns"),
        (lambda: resilin.cdist(rand(3, 2), rand(3, 2), -1.0), RuntimeError, "non-negative"),
        (lambda: resilin.cdist(rand(3, 2), rand(3, 2), 2.0, "x"), ValueError, "compute_mode"),
        (lambda: F.pdist(rand(3)), RuntimeError, r"got resilin.float64 \(3,\)"),
        (lambda: F.pdist(rand(3, 2), -1.0), RuntimeError, "non-negative"),
    ],
)
def test_mistakes_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(("shape", "dim"), [((100, 64), 1), ((7, 3), -1), ((5, 1), 1), ((3000,), 0), ((4, 5, 6), 2)])
@pytest.mark.parametrize("dtype", [resilin.float32, resilin.float64])
def test_cosines_in_one_pass_have_the_bits_of_the_steps(shape, dim, dtype):
    x, y = resilin.randn(shape).to(dtype), resilin.randn(shape).to(dtype)
    x.view(-1)[0] = 1e20
    steps = resilin.cosine_similarity(x.clone().requires_grad_(), y, dim).detach()
    assert resilin.cosine_similarity(x, y, dim).equal(steps)
    assert resilin.cosine_similarity(x, 0 * y, dim).count_nonzero() == 0
    far = resilin.cosine_similarity(x, y, dim, eps=1e30)
    assert far.equal(resilin.cosine_similarity(x, y.clone().requires_grad_(), dim, eps=1e30).detach())
