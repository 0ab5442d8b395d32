"""weight_norm and spectral_norm of the older form: values, state, removal and mistakes."""

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.nn import utils


def layer():
    made = nn.Linear(3, 2)
    with resilin.no_grad():
        made.weight.copy_(resilin.tensor([[3.0, 0, 4], [0, 5, 12]]))
        made.bias.zero_()
    return made


def test_weight_norm_has_lengths_and_directions_as_parameters():
    net = utils.weight_norm(layer())
    assert list(net.state_dict()) == ["bias", "weight_g", "weight_v"]
    assert net.weight_g.tolist() == [[5], [13]]
    x = resilin.ones(1, 3)
    assert resilin.allclose(net(x), resilin.tensor([[7.0, 17]]))
    with resilin.no_grad():
        net.weight_g.mul_(2)
    assert resilin.allclose(net(x), resilin.tensor([[14.0, 34]]))
    net(x).sum().backward()
    np.testing.assert_allclose(net.weight_g.grad.numpy(), [[1.4], [17 / 13]], rtol=1e-6)


def test_weight_norm_of_the_whole_has_one_length():
    net = utils.weight_norm(layer(), dim=None)
    assert net.weight_g.shape == ()
    assert net.weight_g.item() == pytest.approx(np.sqrt(25 + 169))


def test_removing_weight_norm_keeps_the_weight():
    net = utils.weight_norm(layer())
    before = net.weight.detach().clone()
    assert utils.remove_weight_norm(net) is net
    assert [name for name, _ in net.named_parameters()] == ["bias", "weight"]
    assert resilin.allclose(net.weight, before)
    with pytest.raises(ValueError, match="weight_norm of 'weight' not found"):
        utils.remove_weight_norm(net)


def test_spectral_norm_tends_to_a_largest_singular_value_of_one():
    net = utils.spectral_norm(layer(), n_power_iterations=5)
    assert list(net.state_dict()) == ["bias", "weight_orig", "weight_u", "weight_v"]
    for _ in range(10):
        net(resilin.ones(1, 3)).sum().backward()
    assert np.linalg.norm(net.weight.detach().numpy(), 2) == pytest.approx(1, abs=1e-5)
    assert net.weight_orig.grad is not None
    u = net.weight_u.clone()
    net.eval()(resilin.ones(1, 3))
    assert resilin.equal(net.weight_u, u)
    utils.remove_spectral_norm(net)
    assert np.linalg.norm(net.weight.detach().numpy(), 2) == pytest.approx(1, abs=1e-5)
    assert list(net.state_dict()) == ["bias", "weight"]


def test_two_forwards_before_one_backward_are_possible():
    net = utils.spectral_norm(nn.ConvTranspose2d(2, 3, 2))
    assert net.weight_u.shape == (3,)
    x = resilin.ones(1, 2, 2, 2)
    (net(x) - net(2 * x)).sum().backward()


def test_mistakes_are_refused_and_change_nothing():
    net = utils.weight_norm(layer())
    with pytest.raises(RuntimeError, match="two weight_norm hooks"):
        utils.weight_norm(net)
    with pytest.raises(ValueError, match="no parameter 'other'"):
        utils.spectral_norm(layer(), "other")
    with pytest.raises(ValueError, match="uninitialized"):
        utils.weight_norm(nn.LazyLinear(2))
    plain = layer()
    with pytest.raises(ValueError, match="2 dimensions"):
        utils.spectral_norm(plain, "bias")
    assert set(plain.state_dict()) == {"weight", "bias"}
    with pytest.raises(ValueError, match="positive"):
        utils.spectral_norm(plain, n_power_iterations=0)
