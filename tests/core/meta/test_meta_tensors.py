"""Meta tensors are made by every factory without memory, go through modules and files, and show no elements."""

from __future__ import annotations

import copy
import io
import pickle
import resource
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.core.backends.meta.array import MetaArray, fresh
from resilin.errors import NoElements
from resilin.nn import functional as F

HUGE = (1 << 20, 1 << 20)  # 4 TiB of float32

FACTORIES: dict[str, Any] = {
    "zeros": lambda d: resilin.zeros(HUGE, device=d),
    "ones": lambda d: resilin.ones(HUGE, device=d),
    "empty": lambda d: resilin.empty(HUGE, device=d, dtype=resilin.int8),
    "full": lambda d: resilin.full(HUGE, 2, device=d),
    "eye": lambda d: resilin.eye(1 << 20, device=d),
    "arange": lambda d: resilin.arange(1 << 40, device=d),
    "arange of floats": lambda d: resilin.arange(0, 1 << 35, 0.5, device=d),
    "rand": lambda d: resilin.rand(HUGE, device=d),
    "randn": lambda d: resilin.randn(HUGE, device=d, dtype=resilin.complex64),
    "randint": lambda d: resilin.randint(0, 9, HUGE, device=d),
    "randperm": lambda d: resilin.randperm(1 << 40, device=d),
    "zeros_like": lambda d: resilin.zeros_like(resilin.empty(HUGE, device="meta"), device=d),
    "new_ones": lambda d: resilin.empty(1, device=d).new_ones(HUGE),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_a_factory_takes_neither_time_nor_memory(name):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = FACTORIES[name]("meta")
    assert made.is_meta
    assert made.device == resilin.device("meta")
    assert made.numel() >= 1 << 36
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_factories_that_take_data_or_small_numbers_give_what_they_give_on_the_cpu():
    for make in (
        lambda d: resilin.tensor([[1, 2], [3, 4]], device=d),
        lambda d: resilin.as_tensor(np.ones((2, 3), np.float16), device=d),
        lambda d: resilin.arange(3, 17, 4, device=d),
        lambda d: resilin.arange(5, 1, -2, dtype=resilin.int32, device=d),
        lambda d: resilin.arange(0.0, 1.0, 0.3, device=d),
        lambda d: resilin.linspace(0, 1, 7, device=d),
        lambda d: resilin.logspace(0, 1, 3, dtype=resilin.float64, device=d),
        lambda d: resilin.full((2, 2), True, device=d),
        lambda d: resilin.empty(2, 3, 4, 5, device=d, memory_format=resilin.channels_last),
        lambda d: resilin.scalar_tensor(3, device=d),
        lambda d: resilin.tril_indices(3, 4, device=d),
    ):
        here, there = make("cpu"), make("meta")
        assert there.is_meta
        assert (there.shape, there.dtype, there.stride()) == (here.shape, here.dtype, here.stride())


def test_no_random_numbers_are_drawn_for_them():
    resilin.manual_seed(1)
    expected = resilin.rand(3)
    resilin.manual_seed(1)
    with resilin.device("meta"):
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.LSTM(8, 8), nn.Dropout())
        F.dropout(resilin.rand(4, 4), 0.5).bernoulli_().normal_().random_(3).exponential_()
        (
            nn.init.orthogonal_(resilin.empty(4, 4)),
            nn.init.trunc_normal_(resilin.empty(4)),
            nn.init.sparse_(resilin.eye(4), 0.5),
        )
    assert resilin.equal(resilin.rand(3), expected)


def test_a_model_larger_than_any_machine_is_made_and_called():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with resilin.device("meta"):
        layer = nn.TransformerEncoderLayer(16384, 128, 65536, batch_first=True)
        model = nn.TransformerEncoder(layer, 8)
        out = model(resilin.empty(8, 4096, 16384))
        out.sum().backward()
    assert sum(p.numel() for p in model.parameters()) > 25e9
    assert all(p.is_meta and p.grad.shape == p.shape and p.grad.is_meta for p in model.parameters())
    assert out.shape == (8, 4096, 16384)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_strides_and_views_are_those_of_real_tensors():
    for change in (
        lambda x: x.t(),
        lambda x: x[::2, 1:],
        lambda x: x.t().reshape(3, 8),
        lambda x: x.t().reshape(-1),
        lambda x: x.expand(5, 4, 6)[:, 1].reshape(5, 2, 3),
        lambda x: x.unfold(1, 2, 2),
        lambda x: x.as_strided((2, 2), (6, 1)),
        lambda x: x.t() + x.t(),
        lambda x: x.t().contiguous(),
        lambda x: x.diagonal(),
        lambda x: x.t().double(),
        lambda x: x[None, ..., 2],
        lambda x: x[resilin.tensor([0, 1], device=x.device), 2:],
    ):
        here, there = change(resilin.zeros(4, 6)), change(resilin.zeros(4, 6, device="meta"))
        assert (there.shape, there.stride(), there.is_contiguous()) == (here.shape, here.stride(), here.is_contiguous())
    x = resilin.zeros(4, 6, device="meta")
    assert x[:, None, resilin.tensor([[0, 1]], device="meta")].shape == (4, 1, 1, 2)
    assert x[resilin.tensor([0, 1]), None, resilin.tensor([[0], [1]])].shape == (2, 2, 1)
    assert x.view(24)._base is x
    assert x.view(resilin.int16).shape == (4, 12)
    with pytest.raises(RuntimeError, match="view"):
        x.t().view(24)


def test_writes_do_nothing_but_are_checked_and_counted():
    x = resilin.zeros(4, 6, device="meta")
    x.add_(1).mul_(x).copy_(resilin.ones(4, 6)).fill_(3)
    x[1] = 2
    x[x > 1] = 0.0
    assert x._version == 6
    with pytest.raises(RuntimeError, match="broadcast"):
        x[1] = resilin.zeros(5, device="meta")
    with pytest.raises(RuntimeError, match="broadcast"):
        x.copy_(resilin.ones(5))
    with pytest.raises(RuntimeError, match="same device"):
        x + resilin.ones(4, 6)
    assert (x + resilin.tensor(1.0)).is_meta


REFUSED: dict[str, Any] = {
    "item": lambda x: x[0, 0].item(),
    "tolist": lambda x: x.tolist(),
    "bool": lambda x: bool(x[0, 0]),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "getitem": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "equal": lambda x: resilin.equal(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(resilin.tensor([1, 2, 3], device="meta"), 0),
    "bincount": lambda x: x.int().flatten().bincount(),
    "copy_": lambda x: resilin.zeros(3, 4).copy_(x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_looks_at_elements_is_refused_by_name(name):
    with pytest.raises(NotImplementedError, match=r"meta|elements") as error:
        REFUSED[name](resilin.zeros(3, 4, device="meta"))
    assert isinstance(error.value, NoElements)
    assert name in str(error.value) or name in ("copy_",)


def test_numpy_is_refused_with_pytorchs_type():
    with pytest.raises(TypeError, match="can't convert meta device type tensor to numpy"):
        resilin.zeros(3, device="meta").numpy()


def test_it_is_printed_as_pytorch_prints_it():
    assert repr(resilin.empty(3, 4, device="meta")) == "tensor(..., device='meta', size=(3, 4))"
    assert repr(resilin.empty(0, device="meta", dtype=resilin.int64)) == (
        "tensor(..., device='meta', size=(0,), dtype=resilin.int64)"
    )
    assert "requires_grad=True" in repr(nn.Parameter(resilin.empty(2, device="meta")))


def test_a_module_moves_to_meta_and_gets_memory_again():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to("meta")
    assert all(t.is_meta for t in model.state_dict().values())
    with pytest.raises(NotImplementedError, match="to_empty"):
        model.to("cpu")
    model.to_empty(device="cpu")
    assert model(resilin.ones(2, 3)).device.type == "cpu"


def test_a_state_is_assigned_to_a_module_without_memory():
    saved = nn.Linear(3, 4).state_dict()
    model = nn.Linear(3, 4, device="meta")
    with pytest.warns(UserWarning, match="which is a no-op"):
        model.load_state_dict(saved)
    assert model.weight.is_meta
    model.load_state_dict(saved, assign=True)
    assert resilin.equal(model.weight, saved["weight"])
    assert isinstance(model.weight, nn.Parameter)
    assert model.weight.requires_grad
    with pytest.raises(RuntimeError, match="Cannot copy out of meta tensor"):
        nn.Linear(3, 4).load_state_dict(nn.Linear(3, 4, device="meta").state_dict())


def test_an_optimizer_steps_over_them():
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Adafactor"):
        model = nn.Linear(3, 4, device="meta")
        model(resilin.ones(2, 3, device="meta")).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        getattr(resilin.optim, name)(model.parameters(), lr=0.1).step()
        assert model.weight.is_meta


def test_files_and_copies_hold_shapes():
    x = resilin.empty(HUGE, dtype=resilin.bfloat16, device="meta")
    file = io.BytesIO()
    resilin.save({"x": x, "p": nn.Parameter(x)}, file)
    assert file.tell() < 2000
    file.seek(0)
    read = resilin.load(file, map_location="cpu")
    for back in (read["x"], read["p"], pickle.loads(pickle.dumps(x)), copy.deepcopy(x), x.clone()):
        assert back.is_meta
        assert (back.shape, back.dtype) == (x.shape, x.dtype)


def test_one_too_large_for_the_address_space_says_so():
    with pytest.raises(RuntimeError, match="address space"):
        fresh((1 << 58,), np.float64)
    assert isinstance(fresh((0, 1 << 58), np.float64), MetaArray)


def test_losses_and_indices_need_no_elements():
    x = resilin.randn(4, 5, device="meta", requires_grad=True)
    target = resilin.zeros(4, dtype=resilin.int64, device="meta")
    for made in (
        F.cross_entropy(x, target),
        F.nll_loss(x.log_softmax(1), target),
        F.embedding(target, x).sum(),
        x.gather(1, target[:, None]).sum(),
        F.max_pool2d(x[None], 2).sum(),
        F.scaled_dot_product_attention(x, x, x, is_causal=True, dropout_p=0.1).sum(),
    ):
        (gradient,) = resilin.autograd.grad(made, x)
        assert (made.shape, gradient.shape) == ((), (4, 5))
    assert F.one_hot(target, 7).shape == (4, 7)
