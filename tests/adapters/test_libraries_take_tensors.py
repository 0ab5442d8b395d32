"""Libraries that know nothing of resilin take its tensors as they are, whichever is imported first."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import resilin
from resilin._base import library_finder


def test_einops_rearranges_reduces_and_packs_with_gradients():
    einops = pytest.importorskip("einops")
    x = resilin.arange(24.0).reshape(2, 3, 4).requires_grad_()
    array = x.detach().numpy()
    for pattern, axes in [("a b c -> c (a b)", {}), ("a (b d) c -> d a b c", {"d": 3}), ("a b c -> (a b c)", {})]:
        np.testing.assert_array_equal(
            einops.rearrange(x, pattern, **axes).detach().numpy(), einops.rearrange(array, pattern, **axes)
        )
    for how in ("min", "max", "sum", "mean", "prod"):
        found = einops.reduce(x, "a b c -> c", how)
        np.testing.assert_allclose(found.detach().numpy(), einops.reduce(array, "a b c -> c", how), rtol=1e-6)
    np.testing.assert_array_equal(einops.repeat(x, "a b c -> a b c k", k=2).detach().numpy()[..., 1], array)
    packed, shapes = einops.pack([x, x[0]], "* c")
    assert packed.shape == (9, 4)
    assert resilin.equal(einops.unpack(packed, shapes, "* c")[0], x)
    assert einops.einsum(x, x, "a b c, a d c -> b d").shape == (3, 3)
    assert einops.parse_shape(x, "a _ c") == {"a": 2, "c": 4}
    assert einops.rearrange([x, x], "k a b c -> a (k b) c").shape == (2, 6, 4)
    einops.reduce(x, "a b c -> a", "sum").sum().backward()
    assert resilin.equal(x.grad, resilin.ones(2, 3, 4))


def test_einx_computes_by_the_array_api():
    einx = pytest.importorskip("einx")
    x = resilin.arange(6.0).reshape(2, 3).requires_grad_()
    assert einx.id("a b -> (b a)", x).shape == (6,)
    assert einx.dot("a b, b c -> a c", x, resilin.ones(3, 5)).shape == (2, 5)
    assert einx.add("a b, b -> a b", x, resilin.ones(3)).shape == (2, 3)
    einx.sum("a [b]", x).sum().backward()
    assert resilin.equal(x.grad, resilin.ones(2, 3))


def test_safetensors_saves_tensors_as_the_arrays_they_are():
    safetensors = pytest.importorskip("safetensors.numpy")
    x = resilin.arange(6.0).reshape(2, 3)
    given = {"x": x, "turned": x.t(), "array": np.ones(2)}
    assert safetensors.save(given) == safetensors.save(
        {"x": x.numpy(), "turned": np.ascontiguousarray(x.t().numpy()), "array": np.ones(2)}
    )
    assert safetensors.load(safetensors.save(given))["turned"].tolist() == x.t().tolist()


@pytest.mark.slow
def test_a_summary_writer_takes_tensors(tmp_path):
    pytest.importorskip("tensorboardX")
    from resilin.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", resilin.tensor(0.5, requires_grad=True), 1)
        writer.add_scalars("both", {"a": resilin.tensor(1.0), "b": 2.0}, 1)
        writer.add_histogram("weights", resilin.randn(5, 5), 1)
        writer.add_image("image", resilin.rand(3, 8, 8), 1)
        writer.add_text("text", "words", 1)
        writer.add_scalar("half", resilin.tensor(0.25, dtype=resilin.bfloat16), 2)
    (file,) = tmp_path.glob("events*")
    data = file.read_bytes()
    for tag in (b"loss", b"weights", b"image", b"text", b"half"):
        assert tag in data


def test_the_order_of_imports_does_not_matter():
    pytest.importorskip("einops")
    code = "import {}, {}\nprint(einops.rearrange(resilin.zeros(2, 3), 'a b -> b a').shape)"
    for order in (("einops", "resilin"), ("resilin", "einops")):
        done = subprocess.run(
            [sys.executable, "-c", code.format(*order)], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout == "resilin.Size([3, 2])\n", done.stderr


def test_without_the_library_the_place_says_what_to_install():
    code = """
import sys
sys.modules["tensorboardX"] = None
try:
    from resilin.utils.tensorboard import SummaryWriter
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'resilin[tensorboard]'" in done.stdout, done.stderr


def test_every_adapter_is_there():
    for name in library_finder.ADAPTERS.values():
        adapter: Any = __import__(name, fromlist=["adapt"])
        assert callable(adapter.adapt)


def test_safetensors_torch_reads_and_writes_tensors_under_as_torch(tmp_path):
    pytest.importorskip("safetensors")
    code = """
import sys, torch
from safetensors import safe_open
from safetensors.torch import load, load_file, load_model, save, save_file, save_model
given = {"a": torch.randn(3, 4), "b": torch.arange(3), "c": torch.ones(2, dtype=torch.bfloat16)}
save_file(given, sys.argv[1], metadata={"format": "pt"})
for read in (load_file(sys.argv[1]), load(save(given))):
    assert all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in given.items())
with safe_open(sys.argv[1], "pt") as file:
    assert torch.equal(file.get_tensor("a"), given["a"]) and file.metadata() == {"format": "pt"}
    assert torch.equal(file.get_slice("a")[1:, :2], given["a"][1:, :2])
net = torch.nn.Linear(2, 2)
save_model(net, sys.argv[1])
assert load_model(net, sys.argv[1]) == (set(), [])
print("done")
"""
    file = str(tmp_path / "x.safetensors")
    command = [sys.executable, "-m", "resilin.as_torch", "-c", code, file]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
