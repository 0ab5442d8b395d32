"""Functions of layers in the root of the namespace: torch.nn.functional's, or with other arguments and orders."""

import pytest

import resilin
from resilin.nn import functional as F

X = resilin.arange(48.0).reshape(2, 3, 8).sin()


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("conv1d", (X, resilin.ones(2, 3, 3), None, 2, 1)),
        ("conv_transpose1d", (X, resilin.ones(3, 2, 3))),
        ("max_pool1d", (X, 2)),
        ("avg_pool1d", (X, 3, 1)),
        ("adaptive_avg_pool1d", (X, 3)),
        ("channel_shuffle", (X, 3)),
        ("layer_norm", (X, (8,))),
        ("rms_norm", (X, (8,))),
        ("group_norm", (X, 3)),
    ],
)
def test_they_are_those_of_functional(name, args):
    assert resilin.equal(getattr(resilin, name)(*args), getattr(F, name)(*args))


def test_convolution_serves_all_dimensions_both_ways():
    images, kernel = X.reshape(2, 3, 4, 2), resilin.ones(3, 2, 2, 2)
    got = resilin.convolution(images, kernel, None, (2, 1), (0, 1), (1, 1), True, (1, 0), 1)
    assert resilin.equal(got, F.conv_transpose2d(images, kernel, None, (2, 1), (0, 1), (1, 0)))
    got = resilin.convolution(X, resilin.ones(3, 1, 2), None, 1, 0, 1, False, 0, 3)
    assert resilin.equal(got, F.conv1d(X, resilin.ones(3, 1, 2), groups=3))
    with pytest.raises(RuntimeError, match="3 to 5 dimensions"):
        resilin.convolution(X[0], X[0], None, 1, 0, 1, False, 0, 1)


def test_normalizations_take_parameters_before_statistics():
    w, b, mean, var = resilin.full((3,), 2.0), resilin.ones(3), resilin.zeros(3), resilin.ones(3)
    expected = F.batch_norm(X, mean, var, w, b, False, 0.1, 1e-5)
    assert resilin.equal(resilin.batch_norm(X, w, b, mean, var, False, 0.1, 1e-5, True), expected)
    expected = F.instance_norm(X, None, None, w, b)
    assert resilin.equal(resilin.instance_norm(X, w, b, None, None, True, 0.1, 1e-5, True), expected)


def test_an_embedding_takes_its_weight_first_and_no_padding_by_default():
    weight = resilin.eye(3).requires_grad_()
    resilin.embedding(weight, resilin.tensor([2, 0])).sum().backward()
    assert weight.grad.sum(1).tolist() == [3, 0, 3]
    resilin.embedding(weight, resilin.tensor([0]), 0).sum().backward()
    assert weight.grad.sum(1).tolist() == [3, 0, 3]


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"])
def test_dropout_has_a_form_in_place(name):
    plain, in_place = getattr(resilin, name), getattr(resilin, name + "_")
    resilin.manual_seed(2)
    expected = plain(X, 0.5, True)
    resilin.manual_seed(2)
    x = X.clone()
    assert in_place(x, 0.5, True) is x
    assert resilin.equal(x, expected)
    assert not resilin.equal(x, X)
    assert resilin.equal(plain(X, 0.5, False), X)
    assert in_place(x, 0.5, False) is x


def test_pooling_with_indices_gives_both():
    for found, expected in (
        (resilin.adaptive_max_pool1d(X, 3), F.adaptive_max_pool1d(X, 3, True)),
        (resilin.max_pool1d_with_indices(X, 2), F.max_pool1d(X, 2, return_indices=True)),
        (F.max_pool2d_with_indices(X, 2), F.max_pool2d(X, 2, return_indices=True)),
        (F.max_pool3d_with_indices(X[None], 2), F.max_pool3d(X[None], 2, return_indices=True)),
        (F.adaptive_max_pool2d_with_indices(X, 2), F.adaptive_max_pool2d(X, 2, True)),
        (F.adaptive_max_pool3d_with_indices(X[None], 2), F.adaptive_max_pool3d(X[None], 2, True)),
    ):
        assert resilin.equal(found[0], expected[0])
        assert resilin.equal(found[1], expected[1])
    half = {"output_size": 1, "_random_samples": resilin.full((1, 2, 2), 0.5)}
    assert F.fractional_max_pool2d_with_indices(X, 2, **half)[1].dtype is resilin.int64


def test_reductions_and_modes_go_by_number():
    t = X.sigmoid()
    assert resilin.equal(resilin.kl_div(X, t, 2), F.kl_div(X, t, reduction="sum"))
    losses = resilin.binary_cross_entropy_with_logits(X, t, None, None, 0)
    assert resilin.equal(losses, F.binary_cross_entropy_with_logits(X, t, reduction="none"))
    grid = resilin.affine_grid_generator(resilin.eye(2, 3)[None], (1, 1, 2, 2), True)
    found = resilin.grid_sampler(X[:1, None], grid, 1, 1, True)
    assert resilin.equal(found, F.grid_sample(X[:1, None], grid, "nearest", "border", True))
    with pytest.raises(ValueError, match="1 for 'mean'"):
        resilin.kl_div(X, t, 3)


def test_constant_padding_has_a_name_of_its_own():
    assert resilin.constant_pad_nd(resilin.ones(2), (1, 2), 5).tolist() == [5, 1, 1, 5, 5]
