"""Base classes and helpers of layers lie where programs for PyTorch look for them, and know the same layers."""

import logging

import pytest

import resilin as torch
from resilin import nn
from resilin.nn import common_types
from resilin.nn.modules import batchnorm, conv, loss, module, padding, pooling, utils
from resilin.optim import optimizer

# what PyTorch 2.13's classes inherit from, by the base
BASES = {
    pooling._MaxPoolNd: (nn.MaxPool1d(2), nn.MaxPool2d(2), nn.MaxPool3d(2)),
    pooling._AvgPoolNd: (nn.AvgPool1d(2), nn.AvgPool2d(2), nn.AvgPool3d(2)),
    pooling._AdaptiveAvgPoolNd: (nn.AdaptiveAvgPool1d(2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveAvgPool3d(2)),
    pooling._AdaptiveMaxPoolNd: (nn.AdaptiveMaxPool1d(2), nn.AdaptiveMaxPool2d(2), nn.AdaptiveMaxPool3d(2)),
    pooling._MaxUnpoolNd: (nn.MaxUnpool1d(2), nn.MaxUnpool2d(2), nn.MaxUnpool3d(2)),
    pooling._LPPoolNd: (nn.LPPool1d(2, 2), nn.LPPool2d(2, 2), nn.LPPool3d(2, 2)),
    padding._ConstantPadNd: (nn.ConstantPad1d(1, 0), nn.ZeroPad2d(1), nn.ZeroPad3d(1)),
    padding._ReflectionPadNd: (nn.ReflectionPad1d(1), nn.ReflectionPad2d(1), nn.ReflectionPad3d(1)),
    padding._ReplicationPadNd: (nn.ReplicationPad1d(1), nn.ReplicationPad2d(1), nn.ReplicationPad3d(1)),
    padding._CircularPadNd: (nn.CircularPad1d(1), nn.CircularPad2d(1), nn.CircularPad3d(1)),
    loss._WeightedLoss: (
        nn.CrossEntropyLoss(),
        nn.NLLLoss(),
        nn.BCELoss(),
        nn.MultiMarginLoss(),
        nn.MultiLabelSoftMarginLoss(),
    ),
    batchnorm._LazyNormBase: (nn.LazyBatchNorm2d(), nn.LazyInstanceNorm1d()),
    conv._ConvNd: (nn.Conv1d(1, 1, 1), nn.ConvTranspose2d(1, 1, 1), nn.LazyConv3d(1, 1)),
}


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_a_base_knows_its_layers_and_no_others(base):
    for other, layers in BASES.items():
        for layer in layers:
            assert isinstance(layer, base) is (other is base), (layer, base)
    assert not isinstance(nn.BCEWithLogitsLoss(), loss._WeightedLoss)
    assert isinstance(nn.BCEWithLogitsLoss(), loss._Loss)


def test_a_program_makes_a_loss_of_its_own():
    class Smoothed(loss._WeightedLoss):
        def __init__(self, weight=None, reduction="mean"):
            super().__init__(weight=weight, reduction=reduction)

        def forward(self, x, y):
            return nn.functional.cross_entropy(x, y, weight=self.weight, reduction=self.reduction)

    made = Smoothed(torch.ones(2), reduction="sum")
    assert (list(made.state_dict()), made.reduction) == (["weight"], "sum")
    assert made(torch.zeros(1, 2), torch.tensor([1])).item() == pytest.approx(0.6931472)
    assert nn.CrossEntropyLoss(torch.ones(3), label_smoothing=0.1).weight.tolist() == [1.0, 1.0, 1.0]


def test_helpers_of_layers():
    assert (utils._single(3), utils._pair(3), utils._triple((1, 2, 3))) == ((3,), (3, 3), (1, 2, 3))
    assert utils._ntuple(5)(0) == (0,) * 5
    assert utils._reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)
    assert utils._list_with_default((None, 5), [7, 8, 9]) == [8, 5]
    assert utils._list_with_default(4, [1, 2]) == 4
    with pytest.raises(ValueError, match="at least 3"):
        utils._list_with_default((1, 2), [1, 2])
    assert module._addindent("a\nb\nc", 2) == "a\n  b\n  c"
    assert common_types._size_2_t == int | tuple[int, int]


def test_what_loading_returns_is_of_a_class_that_programs_name():
    found = nn.Linear(1, 1).load_state_dict({}, strict=False)
    assert isinstance(found, module._IncompatibleKeys)
    assert found.missing_keys == ["weight", "bias"]
    assert module._IncompatibleKeys([], []) == ([], [])


def test_an_optimizer_of_a_program_names_what_is_required():
    class Mine(optimizer.Optimizer):
        def __init__(self, params: optimizer.ParamsT, lr=optimizer.required):
            if lr is not optimizer.required and lr < 0:
                raise ValueError(lr)
            super().__init__(params, {"lr": lr})

    net = nn.Linear(1, 1)
    assert Mine(net.parameters(), lr=0.1).param_groups[0]["lr"] == 0.1
    assert repr(optimizer.required) == "<required parameter>"
    with pytest.raises(ValueError, match="didn't specify a value of required optimization parameter lr"):
        Mine(net.parameters())


def test_several_devices_are_one_and_it_is_said_once(monkeypatch, caplog):
    monkeypatch.setattr("resilin._base.said_once._said", set())
    caplog.set_level(logging.WARNING, "resilin.nn")
    net = nn.Linear(2, 1)
    x = torch.ones(1, 2)
    for _ in range(2):
        assert torch.equal(nn.DataParallel(net, device_ids=[0, 1])(x), net(x))
    assert torch.equal(nn.parallel.data_parallel(net, x, [0, 1]), net(x))
    assert len([one for one in caplog.records if "one device" in one.getMessage()]) == 1


def test_inputs_of_a_data_parallel_module_come_to_its_device():
    net = nn.DataParallel(nn.Linear(2, 1).to("sim"))
    assert net(torch.ones(1, 2)).device.type == "sim"
