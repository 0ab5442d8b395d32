"""Maximum pooling and the steps of a GRU by kernels of ours: what the CPU gives, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
from device_work import WORK

import resilin as torch
from resilin import nn
from resilin.nn import functional as F

WINDOWS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 1, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)},
    {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
]


def counted(cuda):
    """Whether work is counted here: not on a real device."""
    return hasattr(cuda.cupy, "API")


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (1, 1, 5, 5), (3, 2, 33, 31)], ids=str)
def test_maxima_their_places_and_gradients_are_the_cpus(cuda, window, dtype, shape):
    torch.manual_seed(1)
    host = torch.randn(shape).to(dtype)
    found = {}
    for where in ("cpu", "cuda"):
        x = host.clone().to(where).requires_grad_()
        y, index = F.max_pool2d(x, **window, return_indices=True)
        WORK.clear()
        F.max_pool2d(x, **window).backward(torch.arange(y.numel(), device=where).reshape(y.shape).to(dtype) % 7)
        waits = WORK.waits.total()
        found[where] = [part.detach().cpu() for part in (y, index, x.grad)]
    assert not counted(cuda) or waits == 0
    for there, here in zip(found["cuda"], found["cpu"], strict=True):
        assert there.dtype == here.dtype
        np.testing.assert_array_equal(there.double().numpy(), here.double().numpy())


def test_a_window_of_what_is_no_number_and_of_padding_alone(cuda):
    x = torch.tensor([[[[1.0, float("nan"), 3.0], [-float("inf")] * 3, [4.0, 4.0, float("nan")]]]])
    for window in ({"kernel_size": 2, "stride": 1}, {"kernel_size": 1, "stride": 2, "padding": 0}):
        here, there = (F.max_pool2d(a, **window, return_indices=True) for a in (x, x.cuda()))
        for a, b in zip(there, here, strict=True):
            np.testing.assert_array_equal(a.cpu().numpy(), b.numpy())


def test_whole_numbers_are_pooled_too(cuda):
    x = torch.arange(32).reshape(1, 2, 4, 4)
    assert F.max_pool2d(x.cuda(), 2).tolist() == F.max_pool2d(x, 2).tolist()


def test_second_derivatives_of_pooling_do_not_wait_either(cuda):
    found = {}
    for where in ("cpu", "cuda"):
        x = torch.arange(16.0, device=where).sin().reshape(1, 1, 4, 4).requires_grad_()
        (g,) = torch.autograd.grad((F.max_pool2d(x, 3, 1) ** 3).sum(), x, create_graph=True)
        WORK.clear()
        (g**2).sum().backward()
        waits = WORK.waits.total()
        found[where] = x.grad.cpu().numpy()
    assert not counted(cuda) or waits == 0
    np.testing.assert_allclose(found["cuda"], found["cpu"], rtol=1e-5)


def test_batches_are_counted_in_one_launch_and_the_number_stays_where_it_is(cuda):
    norm = nn.BatchNorm1d(3).cuda()
    counter = norm.num_batches_tracked
    at, version = counter._array.data.ptr, counter._version
    norm(torch.ones(4, 3, device="cuda") * torch.arange(4.0, device="cuda").reshape(4, 1))
    assert counter.item() == 1
    assert (counter._array.data.ptr, counter._version > version) == (at, True)


RNNS = {
    "plain": {},
    "without bias": {"bias": False},
    "two layers in both directions": {"num_layers": 2, "bidirectional": True},
}


@pytest.mark.parametrize("options", RNNS.values(), ids=RNNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_steps_and_gradients_are_the_cpus(cuda, kind, options, dtype):
    found = {}
    for where in ("cpu", "cuda"):
        torch.manual_seed(5)
        model = getattr(nn, kind)(3, 5, **options).to(dtype).to(where)
        x = torch.randn(6, 4, 3, dtype=dtype).to(where).requires_grad_()
        y, last = model(x)
        ends = last if isinstance(last, tuple) else (last,)
        (y.square().sum() + sum((end * end).sum() for end in ends)).backward()
        parts = [y, *ends, x.grad, *[p.grad for p in model.parameters()]]
        found[where] = [part.detach().cpu().numpy() for part in parts]
    tolerance = 1e-12 if dtype is torch.float64 else 2e-5
    for there, here in zip(found["cuda"], found["cpu"], strict=True):
        np.testing.assert_allclose(there, here, rtol=tolerance, atol=tolerance)


def test_a_gru_of_states_alone_and_of_outputs_alone_has_gradients(cuda):
    for pick in (0, 1):
        found = {}
        for where in ("cpu", "cuda"):
            torch.manual_seed(5)
            model = nn.GRU(3, 4).to(where)
            h0 = torch.randn(1, 2, 4).to(where).requires_grad_()
            model(torch.randn(5, 2, 3).to(where), h0)[pick].sum().backward()
            found[where] = [h0.grad.cpu().numpy(), *[p.grad.cpu().numpy() for p in model.parameters()]]
        for there, here in zip(found["cuda"], found["cpu"], strict=True):
            np.testing.assert_allclose(there, here, rtol=2e-5, atol=2e-5)


def test_a_step_of_a_gru_is_a_product_and_a_kernel(cuda):
    if not counted(cuda):
        pytest.skip("counts what the stand-in is asked to do, and this is a device")
    model, work = nn.GRU(3, 4).cuda(), {}
    for steps in (4, 8):
        x = torch.ones(steps, 2, 3, device="cuda", requires_grad=True)
        model(x)[0].sum().backward()  # makes its kernels
        WORK.clear()
        model(x)[0].sum().backward()
        work[steps] = WORK.totals()["launches"]
    assert work[8] - work[4] == 4 * 4  # both ways
