"""Whole modules in PyTorch's own files are read with weights_only=False. The files were made with PyTorch 2.13."""

import io
from pathlib import Path

import pytest

import resilin
from resilin import nn
from resilin.errors import UnsafePickle, UsageError

FILES = Path(__file__).parent.parent / "fixtures" / "torch_files"


def test_layers_come_with_their_values_and_compute():
    read = resilin.load(FILES / "layers.pt", weights_only=False)
    net, saved = read["net"], read["out"]
    assert [type(layer) for layer in net] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Flatten, nn.Linear]
    assert not net.training
    resilin.testing.assert_close(net(read["x"]), saved, rtol=1e-5, atol=1e-6)
    net(read["x"]).sum().backward()
    assert net[0].weight.grad is not None
    resilin.testing.assert_close(read["recurrent"](read["row"])[0], read["recurrent_out"], rtol=1e-5, atol=1e-6)
    resilin.testing.assert_close(read["encoder"](read["row"]), read["encoder_out"], rtol=1e-5, atol=1e-5)
    net[0].register_forward_hook(lambda module, args, out: out * 0)
    assert float(net[0](read["x"]).abs().sum()) == 0
    assert read["device"] == resilin.device("cpu")


def test_a_file_from_before_1_6_is_read():
    read = resilin.load(FILES / "linear.old.pt", weights_only=False)
    resilin.testing.assert_close(read["linear"](resilin.ones(1, 2)), read["out"])


def test_nothing_of_them_is_read_without_trust():
    with pytest.raises(UnsafePickle, match=r"torch\.nn\.modules\.container\.Sequential"):
        resilin.load(FILES / "layers.pt")
    with open(FILES / "layers.pt", "rb") as file:
        assert type(resilin.load(file, weights_only=False)["net"]) is nn.Sequential


def test_what_resilin_has_nothing_of_is_named():
    with pytest.raises(UsageError, match=r"asks for torch\.fx\.\w+.*resilin does not have"):
        resilin.load(FILES / "traced_graph.pt", weights_only=False)
    with pytest.raises(UsageError, match="saved by PyTorch with hooks, in _forward_hooks"):
        resilin.load(FILES / "hooked_module.pt", weights_only=False)
    with pytest.raises(UsageError, match=r"asks for torch\._utils\._rebuild_sparse_tensor, a sparse tensor"):
        resilin.load(FILES / "sparse.pt", weights_only=False)


def test_several_saves_in_one_stream_are_loaded_in_their_order():
    stream = io.BytesIO(b"head")
    stream.seek(4)
    net = nn.Linear(2, 1)
    for value in ({"a": resilin.ones(3)}, net, [], resilin.zeros(0)):
        resilin.save(value, stream)
    stream.seek(4)
    assert resilin.load(stream)["a"].tolist() == [1, 1, 1]
    assert resilin.equal(resilin.load(stream, weights_only=False).weight, net.weight)
    assert resilin.load(stream) == []
    assert resilin.load(stream).shape == (0,)
    assert stream.read() == b""
    stream.write(b"foot")
    stream.seek(4)
    resilin.load(stream)
    resilin.load(stream, weights_only=False)
    resilin.load(stream)
    with pytest.raises(UsageError, match="belong to no tensor"):
        resilin.load(stream)
