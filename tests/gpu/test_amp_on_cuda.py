"""Mixed precision on a device: autocast beside the CPU's, and a loss scaler that looks at all gradients at once."""

from __future__ import annotations

import numpy as np
import pytest
from device_work import WORK

import resilin as torch
from resilin import nn
from resilin.amp import GradScaler
from resilin.core.kernels.cuda import unscale

DTYPES = ["float32", "float64", "bfloat16", "float16"]


@pytest.mark.parametrize("name", DTYPES)
def test_all_gradients_of_a_dtype_are_divided_and_looked_at_in_one_launch(cuda, name):
    kind = getattr(torch, name).np
    values = [np.linspace(-9, 9, n).astype(kind).reshape(shape) for n, shape in ((6, (2, 3)), (1, ()), (5000, (5000,)))]
    arrays = [cuda.xp.array(value, copy=True) for value in (*values, np.zeros(0, kind))]
    arrays[0] = arrays[0].T  # in another order, without gaps
    assert all(map(unscale.is_taken, arrays))
    assert not unscale.is_taken(cuda.xp.asarray(np.zeros((4, 4), kind))[:, ::2])
    cuda.xp.faults.word.fill(0)
    WORK.clear()
    assert unscale.unscale(cuda.xp, arrays, 0.3) is False
    if hasattr(cuda.cupy, "API"):
        assert WORK.launches[f"unscale<{', '.join(unscale.sources.FLOATS[name])}>"] == 1
        assert WORK.waits.total() == 1
    wide = np.float64 if name == "float64" else np.float32
    for array, value in zip(arrays, values, strict=False):
        expected = (value.astype(wide) * wide(0.3)).astype(kind)
        np.testing.assert_array_equal(
            array.get().astype(wide), (expected.T if array.ndim == 2 else expected).astype(wide)
        )


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_one_element_that_is_not_finite_is_found(cuda, name, wrong):
    value = np.ones(3000, np.float64)
    value[2999] = wrong
    array = cuda.xp.asarray(value.astype(getattr(torch, name).np))
    assert unscale.unscale(cuda.xp, [cuda.xp.ones(4, array.dtype), array], 1.0) is True


def test_a_step_with_a_scaler_waits_once_and_is_that_of_the_cpu(cuda):
    found = {}
    for where in ("cpu", "cuda"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 2)).to(where)
        optimizer, scaler = torch.optim.AdamW(model.parameters(), lr=0.1), GradScaler(where, init_scale=1024.0)
        x = torch.randn(5, 6).to(where)
        for _ in range(3):
            optimizer.zero_grad()
            WORK.clear()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        waits = WORK.waits.total()
        found[where] = [p.detach().cpu().numpy() for p in model.parameters()]
    assert not hasattr(cuda.cupy, "API") or waits == 1
    for there, here in zip(found["cuda"], found["cpu"], strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-4, atol=1e-5)


def test_a_step_that_overflows_is_left_out(cuda):
    weight = nn.Parameter(torch.ones(3, device="cuda"))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), GradScaler()
    scaler.scale((weight * float("inf")).sum()).backward()
    version = weight.grad._version
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert scaler.get_scale() == 2.0**15
    assert weight.grad._version > version


def build():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.LayerNorm(8),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_network_trains_inside_autocast_as_on_the_cpu(cuda, dtype):
    found = {}
    for where in ("cpu", "cuda"):
        model, x = build().to(where), torch.linspace(-1, 1, 3 * 64).reshape(3, 1, 8, 8).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            with torch.amp.autocast(where, dtype=dtype):
                hidden = model[:6](x)
                out = model[6:](hidden)
                loss = nn.functional.cross_entropy(out, torch.tensor([0, 1, 2], device=where))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert hidden.dtype == dtype
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
        found[where] = losses
    np.testing.assert_allclose(found["cuda"], found["cpu"], rtol=0.02)
    assert found["cuda"][2] < found["cuda"][0]


def test_what_is_cast_on_a_device_is_cast_back_outside(cuda):
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda"):
        assert (x @ x).dtype == torch.float16
        assert x.exp().dtype == (x + x).dtype == torch.float32
        assert torch.cat([x.half(), x]).dtype == torch.float32
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype == torch.float32
    assert (x @ x).dtype == torch.float32
