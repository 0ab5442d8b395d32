"""Lazy modules learn their shapes from the first input, or from what is loaded before it."""

import copy
import pickle

import pytest

import resilin
from resilin import nn, optim
from resilin.errors import UsageError
from resilin.nn.modules.lazy import LazyModuleMixin
from resilin.nn.parameter import is_lazy

# lazy layer, the layer that it becomes, its input's shape, the options of both
CASES = [
    (nn.LazyLinear(3), nn.Linear(5, 3), (2, 5)),
    (nn.LazyLinear(3, bias=False), nn.Linear(5, 3, bias=False), (5,)),
    (nn.LazyConv1d(4, 3, stride=2), nn.Conv1d(6, 4, 3, stride=2), (2, 6, 7)),
    (nn.LazyConv2d(4, (3, 2), groups=2, bias=False), nn.Conv2d(6, 4, (3, 2), groups=2, bias=False), (6, 7, 5)),
    (nn.LazyConv3d(4, 2, padding_mode="circular", padding=1), nn.Conv3d(2, 4, 2, 1, 1, padding_mode="circular"), None),
    (nn.LazyConvTranspose1d(4, 3), nn.ConvTranspose1d(2, 4, 3), (2, 7)),
    (nn.LazyConvTranspose2d(4, 3, output_padding=1, stride=2), nn.ConvTranspose2d(2, 4, 3, 2, 0, 1), (1, 2, 3, 3)),
    (nn.LazyConvTranspose3d(4, 1, groups=2), nn.ConvTranspose3d(2, 4, 1, groups=2), (1, 2, 3, 3, 2)),
    (nn.LazyBatchNorm1d(), nn.BatchNorm1d(4), (3, 4)),
    (nn.LazyBatchNorm2d(eps=1e-3, bias=False), nn.BatchNorm2d(4, 1e-3, bias=False), (3, 4, 2, 2)),
    (nn.LazyBatchNorm3d(affine=False), nn.BatchNorm3d(4, affine=False), (3, 4, 2, 2, 1)),
    (nn.LazyInstanceNorm1d(), nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (4, 3)),
    (nn.LazyInstanceNorm2d(track_running_stats=False), nn.InstanceNorm2d(4, affine=True), (3, 4, 2, 2)),
    (nn.LazyInstanceNorm3d(affine=False, track_running_stats=False), nn.InstanceNorm3d(4), (3, 4, 2, 2, 2)),
]
IDS = [type(lazy).__name__ for lazy, _, _ in CASES]


def first_input(shape):
    return resilin.randn(shape or (2, 2, 3, 3, 3))


@pytest.mark.parametrize(("lazy", "plain", "shape"), CASES, ids=IDS)
def test_the_first_call_makes_the_layer_that_its_input_needs(lazy, plain, shape):
    layer = copy.deepcopy(lazy)
    x = first_input(shape)
    assert layer(x).shape == plain(x).shape
    assert type(layer) is type(plain)
    assert repr(layer) == repr(plain)
    got, expected = layer.state_dict(), plain.state_dict()
    assert list(got) == list(expected)
    assert [v.shape for v in got.values()] == [v.shape for v in expected.values()]
    assert not any(is_lazy(tensor) for tensor in (*layer.parameters(), *layer.buffers()))


@pytest.mark.parametrize(("lazy", "plain", "shape"), CASES, ids=IDS)
def test_a_state_that_is_loaded_first_gives_the_shapes(lazy, plain, shape):
    layer = copy.deepcopy(lazy)
    assert repr(layer.load_state_dict(plain.state_dict())) == "<All keys matched successfully>"
    x = first_input(shape)
    assert resilin.allclose(layer.eval()(x), plain.eval()(x))
    assert repr(layer) == repr(plain)


def test_the_start_values_are_those_of_the_layer_that_it_becomes():
    resilin.manual_seed(4)
    plain = nn.Linear(5, 3)
    resilin.manual_seed(4)
    lazy = nn.LazyLinear(3)
    lazy(resilin.zeros(5))
    assert resilin.equal(lazy.weight, plain.weight)
    assert resilin.equal(lazy.bias, plain.bias)


def test_a_lazy_layer_shows_what_it_knows():
    layer = nn.LazyConv2d(4, 3, padding=1)
    assert repr(layer) == "LazyConv2d(0, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))"
    assert repr(layer.weight) == str(layer.weight) == f"{layer.weight}" == "<UninitializedParameter>"
    assert layer.has_uninitialized_params()
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert repr(nn.LazyBatchNorm1d().running_mean) == "<UninitializedBuffer>"


def test_dtype_and_freezing_last_until_the_shapes_are_known():
    layer = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).double().requires_grad_(False)
    assert layer[0].weight.dtype is resilin.float64
    assert layer(resilin.ones(2, 4, dtype=resilin.float64)).dtype is resilin.float64
    assert not layer[0].weight.requires_grad
    assert layer[1].running_mean.dtype is resilin.float64
    assert nn.LazyLinear(2, dtype=resilin.float16).weight.dtype is resilin.float16


def test_the_gradient_reaches_parameters_that_an_optimizer_took_before():
    layer = nn.LazyLinear(1)
    optimizer = optim.SGD(layer.parameters(), lr=0.5)
    layer.zero_grad()
    layer(resilin.ones(2, 3)).sum().backward()
    before = layer.bias.item()
    optimizer.step()
    assert layer.bias.item() == before - 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_as_lazy(copied):
    layer = nn.LazyBatchNorm1d(dtype=resilin.float64)
    other = copied(layer)
    other(resilin.ones(2, 3, dtype=resilin.float64))
    assert other.weight.shape == (3,)
    assert other.running_var.dtype is resilin.float64
    assert layer.has_uninitialized_params()


def test_a_lazy_state_fits_a_lazy_module_only():
    state = nn.LazyLinear(3).state_dict()
    assert all(is_lazy(value) for value in state.values())
    nn.LazyLinear(3).load_state_dict(state)
    with pytest.raises(UsageError, match="weight: the state_dict's parameter is uninitialized"):
        nn.Linear(4, 3).load_state_dict(state)


def test_uninitialized_parameters_say_what_to_do():
    weight = nn.LazyLinear(3).weight
    for use in (lambda: weight + 1, lambda: weight.numel(), lambda: resilin.sum(weight), lambda: nn.init.ones_(weight)):
        with pytest.raises(ValueError, match=r"uninitialized parameter.*forward"):
            use()
    with pytest.raises(RuntimeError, match="has no shape yet"):
        weight.shape  # noqa: B018
    weight.materialize((2, 3))
    assert type(weight) is nn.Parameter
    assert nn.init.constant_(weight, 0.5).sum().item() == 3


INPUTS = [
    (RuntimeError, "3D .* or 4D", nn.LazyConv2d(3, 2), (2, 4)),
    (ValueError, "divisible by groups", nn.LazyConv2d(4, 2, groups=2), (2, 3, 4, 4)),
    (ValueError, "expected 4D input", nn.LazyBatchNorm2d(), (2, 3)),
    (ValueError, "expected 2D or 3D input", nn.LazyInstanceNorm1d(), (2, 3, 4, 5)),
]


@pytest.mark.parametrize(("error", "words", "layer", "shape"), INPUTS)
def test_an_input_that_cannot_be_leaves_the_layer_lazy(error, words, layer, shape):
    with pytest.raises(error, match=words):
        layer(resilin.ones(shape))
    assert layer.has_uninitialized_params()


def test_mistakes_of_the_options_are_found_before_the_first_input():
    with pytest.raises(UsageError, match="groups=2"):
        nn.LazyConv1d(3, 2, groups=2)
    with pytest.raises(UsageError, match="padding_mode"):
        nn.LazyConv1d(3, 2, padding_mode="mirror")


class Scale(LazyModuleMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.UninitializedParameter()
        self.calls = 0

    def initialize_parameters(self, x):
        self.calls += 1
        self.factor.materialize(x.shape[-1:])
        nn.init.constant_(self.factor, 2)

    def forward(self, x):
        return x * self.factor


def test_a_lazy_module_of_ones_own_is_initialized_once():
    scale = Scale()
    scale(resilin.ones(2, 3))
    assert scale(resilin.ones(2, 3)).sum() == 12
    assert scale.calls == 1
    assert type(scale) is Scale


def test_a_module_that_forgets_a_parameter_is_told():
    class Forgetful(Scale):
        def initialize_parameters(self, x):
            pass

    with pytest.raises(RuntimeError, match="not been fully initialized"):
        Forgetful()(resilin.ones(2))


def test_synchronized_statistics_wait_for_the_first_input():
    layer = nn.Sequential(nn.LazyBatchNorm2d())
    with pytest.raises(UsageError, match=r"LazyBatchNorm2d.* is uninitialized"):
        nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    layer(resilin.ones(2, 3, 2, 2))
    assert nn.SyncBatchNorm.convert_sync_batchnorm(layer)[0].num_features == 3
