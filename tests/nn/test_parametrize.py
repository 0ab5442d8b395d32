"""Parametrized tensors are computed when read, keep PyTorch's names, and can be assigned, copied and removed."""

import copy
import pickle

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.nn.utils import parametrizations, parametrize


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x

    def right_inverse(self, y):
        return y / 2


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).t()


def test_a_parametrized_weight_is_computed_from_its_original_and_trains():
    layer = nn.Linear(3, 3)
    before, original = layer.weight.detach().clone(), layer.weight
    assert parametrize.register_parametrization(layer, "weight", Doubled()) is layer
    assert list(layer.state_dict()) == ["bias", "parametrizations.weight.original"]
    assert layer.parametrizations.weight.original is original  # an optimizer made before still holds it
    np.testing.assert_allclose(layer.weight.detach(), before, rtol=1e-6)
    layer(resilin.ones(1, 3)).sum().backward()
    np.testing.assert_array_equal(original.grad.numpy(), np.full((3, 3), 2))
    assert type(layer).__name__ == "ParametrizedLinear"


def test_parametrizations_are_applied_in_the_order_of_registration():
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "weight", Doubled())
    w = layer.weight
    assert bool((w == w.t()).all())
    np.testing.assert_allclose(w.diagonal().detach(), 2 * layer.parametrizations.weight.original.diagonal().detach())
    with pytest.raises(RuntimeError, match="Symmetric does not implement right_inverse"):
        layer.weight = resilin.ones(3, 3)


def test_assigning_goes_through_the_inverse():
    layer = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Doubled())
    layer.weight = resilin.full((2, 2), 6.0)
    assert bool((layer.parametrizations.weight.original == 3).all())


def test_within_cached_a_tensor_is_computed_once():
    layer = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Doubled())
    assert layer.weight is not layer.weight
    with parametrize.cached():
        assert layer.weight is layer.weight
    assert layer.weight is not layer.weight


@pytest.mark.parametrize("leave", [True, False])
def test_removing_leaves_a_plain_parameter(leave):
    layer = nn.Linear(2, 2)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    value, original = layer.weight.detach().clone(), layer.parametrizations.weight.original.detach().clone()
    parametrize.remove_parametrizations(layer, "weight", leave_parametrized=leave)
    assert type(layer) is nn.Linear
    assert not parametrize.is_parametrized(layer)
    assert sorted(layer.state_dict()) == ["bias", "weight"]
    assert isinstance(layer.weight, nn.Parameter)
    assert bool((layer.weight == (value if leave else original)).all())


def test_copies_do_not_share_and_pickling_is_refused():
    layer = parametrize.register_parametrization(nn.Linear(2, 2), "weight", Doubled())
    other = copy.deepcopy(layer)
    parametrize.remove_parametrizations(other, "weight")
    assert parametrize.is_parametrized(layer, "weight")
    assert bool((layer.weight == other.weight).all())
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(layer)


def test_unknown_names_and_changed_shapes_are_refused():
    class Row(nn.Module):
        def forward(self, x):
            return x[0]

    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="with name 'weights'"):
        parametrize.register_parametrization(layer, "weights", Doubled())
    with pytest.raises(ValueError, match="may not change the shape"):
        parametrize.register_parametrization(layer, "weight", Row())
    assert not parametrize.is_parametrized(layer)
    with pytest.raises(ValueError, match="does not have a parametrization on weight"):
        parametrize.remove_parametrizations(layer, "weight")


def test_weight_norm_splits_length_and_direction():
    layer = nn.Linear(4, 3)
    before = layer.weight.detach().numpy().copy()
    parametrizations.weight_norm(layer)
    assert {k: tuple(v.shape) for k, v in layer.state_dict().items()} == {
        "bias": (3,),
        "parametrizations.weight.original0": (3, 1),
        "parametrizations.weight.original1": (3, 4),
    }
    np.testing.assert_allclose(layer.weight.detach().numpy(), before, rtol=1e-6)
    layer.weight = resilin.ones(3, 4)
    np.testing.assert_allclose(layer.parametrizations.weight.original0.detach().numpy(), np.full((3, 1), 2))


def test_spectral_norm_divides_by_the_largest_singular_value():
    resilin.manual_seed(0)
    layer = parametrizations.spectral_norm(nn.Linear(4, 3, dtype=resilin.float64), n_power_iterations=50)
    assert [*layer.state_dict()][1:] == [
        "parametrizations.weight.original",
        "parametrizations.weight.0._u",
        "parametrizations.weight.0._v",
    ]
    assert np.linalg.svd(layer.weight.detach().numpy())[1][0] == pytest.approx(1)
    u = layer.eval().parametrizations.weight[0]._u.clone()
    layer(resilin.ones(1, 4, dtype=resilin.float64))
    assert bool((layer.parametrizations.weight[0]._u == u).all())


@pytest.mark.parametrize("kind", [None, "matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (5, 3)])
def test_orthogonal_weights_stay_orthogonal_and_can_be_assigned(kind, shape):
    resilin.manual_seed(0)
    layer = parametrizations.orthogonal(nn.Linear(*shape, dtype=resilin.float64), orthogonal_map=kind)

    def check():
        w = layer.weight.detach().numpy()
        w = w if w.shape[0] >= w.shape[1] else w.T
        np.testing.assert_allclose(w.T @ w, np.eye(w.shape[1]), atol=1e-12)

    check()
    optimizer = resilin.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(resilin.ones(2, shape[0], dtype=resilin.float64)).square().sum().backward()
        optimizer.step()
    check()
    target = nn.init.orthogonal_(resilin.empty(shape[1], shape[0], dtype=resilin.float64))
    layer.weight = target
    np.testing.assert_allclose(layer.weight.detach().numpy(), target.numpy(), atol=1e-12)


def test_orthogonal_init_gives_orthogonal_rows_or_columns():
    for shape in ((6, 4), (4, 6), (4, 3, 2)):
        w = nn.init.orthogonal_(resilin.empty(shape), gain=2).numpy().reshape(shape[0], -1)
        w = w if w.shape[0] >= w.shape[1] else w.T
        np.testing.assert_allclose(w.T @ w, 4 * np.eye(w.shape[1]), atol=1e-5)


def test_dirac_init_passes_channels_on():
    x = resilin.randn(1, 4, 5, 5)
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
    nn.init.dirac_(conv.weight, groups=2)
    np.testing.assert_array_equal(conv(x).detach().numpy(), x.numpy())
    with pytest.raises(ValueError, match="divisible by groups=3"):
        nn.init.dirac_(conv.weight, groups=3)


def test_sparse_init_zeroes_a_share_of_each_column():
    w = nn.init.sparse_(resilin.empty(10, 50), 0.25, std=0.5).numpy()
    assert ((w == 0).sum(0) == 3).all()
    assert w[w != 0].std() == pytest.approx(0.5, rel=0.15)
