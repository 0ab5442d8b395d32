"""Calls with other parameters leave a module as it was; a fused layer gives what the two gave."""

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.core.autograd.checkpoint import checkpoint
from resilin.nn import utils
from resilin.nn.utils.stateless import functional_call


def test_a_functional_call_uses_the_given_tensors_and_leaves_the_module_alone():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    weight = resilin.ones(3, 2, requires_grad=True)
    given = {"0.weight": weight, "1.running_mean": resilin.zeros(3)}
    y = functional_call(net, given, resilin.randn(4, 2))
    (grad,) = resilin.autograd.grad(y.square().sum(), [weight])
    assert grad.shape == (3, 2)
    assert net[0].weight.grad is None
    assert given["1.running_mean"].any()  # the call wrote the buffer it was given
    assert bool((net[1].running_mean == before["1.running_mean"]).all())
    assert net[0].weight is not weight


def test_a_tied_tensor_is_replaced_under_all_its_names():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    net[1].weight = net[0].weight
    given = {"0.weight": 2 * resilin.eye(2)}
    assert functional_call(net, given, (resilin.ones(1, 2),)).tolist() == [[4, 4]]
    untied = functional_call(net, given, resilin.ones(1, 2), tie_weights=False)
    np.testing.assert_allclose(untied.detach(), net[1](2 * resilin.ones(1, 2)).detach(), rtol=1e-6)


def test_a_functional_call_says_which_names_are_wrong():
    net = nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="missing names: bias; unexpected names: none"):
        functional_call(net, {"weight": net.weight}, resilin.ones(2), strict=True)
    with pytest.raises(AttributeError, match="no module 'wait'"):
        functional_call(net, {"wait.bias": net.weight}, resilin.ones(2))
    with pytest.raises(ValueError, match="bias appear in several"):
        functional_call(net, [{"bias": net.bias}, {"bias": net.bias}], resilin.ones(2))


def norm(cls, **options):
    bn = cls(3, **options).eval()
    bn.running_mean.normal_()
    bn.running_var.uniform_(0.5, 2)
    for parameter in bn.parameters():
        nn.init.normal_(parameter)
    return bn


@pytest.mark.parametrize("options", [{}, {"affine": False}])
@pytest.mark.parametrize(
    ("layer", "cls", "shape"),
    [
        (nn.Conv2d(2, 3, 2), nn.BatchNorm2d, (2, 2, 4, 4)),
        (nn.Conv1d(2, 3, 2, bias=False), nn.BatchNorm1d, (2, 2, 4)),
        (nn.ConvTranspose2d(2, 3, 2), nn.BatchNorm2d, (2, 2, 4, 4)),
        (nn.Linear(2, 3), nn.BatchNorm1d, (4, 2)),
    ],
    ids=["conv2d", "conv1d", "transposed", "linear"],
)
def test_a_fused_layer_gives_what_layer_and_batch_norm_give(layer, cls, shape, options):
    bn, x = norm(cls, **options), resilin.randn(shape)
    layer.eval()
    if isinstance(layer, nn.Linear):
        fused = utils.fuse_linear_bn_eval(layer, bn)
    else:
        fused = utils.fuse_conv_bn_eval(layer, bn, transpose=isinstance(layer, nn.ConvTranspose2d))
    np.testing.assert_allclose(fused(x).detach(), bn(layer(x)).detach(), rtol=1e-4, atol=1e-5)


def test_fusing_in_training_is_refused():
    with pytest.raises(ValueError, match="call eval"):
        utils.fuse_linear_bn_eval(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="no running statistics"):
        utils.fuse_linear_bn_eval(nn.Linear(2, 3).eval(), nn.BatchNorm1d(3, track_running_stats=False).eval())


def test_gradients_are_clipped_with_a_norm_known_from_elsewhere():
    w = nn.Parameter(resilin.zeros(2))
    w.grad = resilin.tensor([3.0, 4.0])
    total = utils.get_total_norm(w.grad, foreach=True)
    assert float(total) == 5
    utils.clip_grads_with_norm_(w, 1.0, total)
    np.testing.assert_allclose(w.grad.numpy(), [0.6, 0.8], rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_inside_runs_again_with_the_tensors_that_were_given(reentrant):
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return checkpoint(lambda y: self.layer(y).tanh(), x, use_reentrant=reentrant)

    module, x = Inner(), resilin.ones(2, 3, requires_grad=True)
    given = {name: (value.detach() * 3).requires_grad_() for name, value in module.named_parameters()}
    functional_call(module, given, x).sum().backward()
    expected = resilin.autograd.grad(
        nn.functional.linear(x, given["layer.weight"], given["layer.bias"]).tanh().sum(), list(given.values())
    )
    for value, gradient in zip(given.values(), expected, strict=True):
        assert value.grad.tolist() == gradient.tolist()
    assert all(param.grad is None for param in module.parameters())
