"""Random numbers that a device draws by itself: the CPU's, bit for bit, and nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest
from device_work import WORK

import resilin as torch
from resilin.core.kernels import philox as on_cpu
from resilin.core.kernels.cuda import philox
from resilin.core.kernels.loader import native
from resilin.nn import functional as F

SIZES = [(1,), (3, 7), (2048,), (5, 1031)]
SEED, STREAM, OFFSET = 0xDEADBEEF12345678, 0xFFFFFFFFFFFFFFF3, (1 << 32) - 3  # carries into the second word


def take(count, dtype=np.float32):
    return SEED, STREAM, OFFSET


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_uniform_numbers_are_the_cpus(cuda, shape, dtype):
    kind = getattr(torch, dtype).np
    found = philox.uniform(cuda.xp, take, shape, kind).get()
    expected = on_cpu.uniform(SEED, STREAM, OFFSET, shape, kind)
    assert found.dtype == expected.dtype
    assert found.tobytes() == expected.tobytes()


@pytest.mark.skipif(native is None, reason="without native code the CPU draws other normal numbers, and so do devices")
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_normal_numbers_are_the_cpus(cuda, shape):
    found = philox.normal(cuda.xp, take, shape, np.dtype(np.float32)).get()
    assert found.tobytes() == on_cpu.normal(SEED, STREAM, OFFSET, shape).tobytes()


@pytest.mark.parametrize("p", [0.1, 0.5, 1.0])
def test_factors_of_a_dropout_are_the_cpus(cuda, p):
    found = philox.dropout_mask(cuda.xp, take, (3, 333), np.dtype(np.float32), p).get()
    assert found.tobytes() == on_cpu.dropout_mask(SEED, STREAM, OFFSET, (3, 333), p).tobytes()


DRAWS = {
    "rand": lambda d: torch.rand(5, 3, device=d),
    "rand double": lambda d: torch.rand(7, device=d, dtype=torch.float64),
    "rand half": lambda d: torch.rand(7, device=d, dtype=torch.float16),
    "randn": lambda d: torch.randn(5, 3, device=d),
    "rand_like": lambda d: torch.rand_like(torch.zeros(3, device=d, dtype=torch.bfloat16)),
    "uniform_": lambda d: torch.empty(11, device=d).uniform_(-3, 2),
    "normal_": lambda d: torch.empty(11, device=d).normal_(1, 3),
    "bernoulli": lambda d: torch.linspace(0, 1, 40, device=d).bernoulli(),
    "bernoulli of p": lambda d: torch.zeros(40, device=d).bernoulli(0.3),
    "bernoulli_": lambda d: torch.zeros(40, device=d, dtype=torch.float64).bernoulli_(0.3),
    "dropout": lambda d: F.dropout(torch.ones(9, 9, device=d), 0.4),
    "dropout of bfloat16": lambda d: F.dropout(torch.full((9, 9), 1.7, device=d, dtype=torch.bfloat16), 0.4),
    "dropout of doubles": lambda d: F.dropout(torch.full((9, 9), 1.7, device=d, dtype=torch.float64), 0.4),
    "dropout2d": lambda d: F.dropout2d(torch.ones(4, 5, 3, 3, device=d), 0.4),
    "alpha_dropout": lambda d: F.alpha_dropout(torch.ones(4, 5, device=d), 0.4),
    "attention": lambda d: F.scaled_dot_product_attention(
        *[torch.ones(2, 4, 8, device=d)] * 3, dropout_p=0.25, is_causal=True
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_functions_draw_the_same_on_both_and_go_on_alike(cuda, name):
    found = {}
    for where in ("cpu", "cuda"):
        torch.manual_seed(7)
        made = DRAWS[name](where)
        found[where] = (made.cpu(), torch.rand(3), made.device.type)
    assert found["cuda"][2] == "cuda"
    exact = name != "attention"
    for there, here in zip(found["cuda"][:2], found["cpu"][:2], strict=True):
        assert there.dtype == here.dtype
        if exact:
            assert there._array.tobytes() == here._array.tobytes()
        else:
            np.testing.assert_allclose(there.numpy(), here.numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["rand", "rand double", "rand half", "rand_like", "bernoulli", "dropout", "dropout2d"])
def test_nothing_is_copied_to_draw(cuda, name):
    if not hasattr(cuda.cupy, "API"):
        pytest.skip("counts what the stand-in is asked to do, and this is a device")
    F.embedding(torch.zeros(1, dtype=torch.int64, device="cuda"), torch.zeros(1, 1, device="cuda"))  # makes its word
    DRAWS[name]("cuda")
    made = (torch.zeros(3, device="cuda", dtype=torch.bfloat16), torch.linspace(0, 1, 40, device="cuda"))
    ones = torch.ones(4, 5, 3, 3, device="cuda")
    WORK.clear()
    {
        "bernoulli": made[1].bernoulli,
        "rand_like": lambda: torch.rand_like(made[0]),
        "dropout": lambda: F.dropout(ones, 0.4),
        "dropout2d": lambda: F.dropout2d(ones, 0.4),
    }.get(name, lambda: DRAWS[name]("cuda"))()
    assert WORK.copies.total() == WORK.waits.total() == 0, (WORK.copies, WORK.waits)
    assert WORK.launches.total() <= 2, WORK.launches


def test_the_gradient_of_a_dropout_is_that_of_what_was_kept(cuda):
    grads = {}
    for where in ("cpu", "cuda"):
        torch.manual_seed(3)
        x = torch.ones(30, device=where, requires_grad=True)
        F.dropout(x, 0.3).sum().backward()
        grads[where] = x.grad.cpu().numpy()
    assert grads["cuda"].tobytes() == grads["cpu"].tobytes()
    assert 0 < (grads["cpu"] == 0).sum() < 30


def test_what_is_no_probability_is_said_where_the_host_waits(cuda):
    found = torch.tensor([0.5, 1.5], device="cuda").bernoulli()
    with pytest.raises(RuntimeError, match="bernoulli: expected probabilities between 0 and 1"):
        found.cpu()
    torch.cuda.synchronize()


def test_samples_of_a_vmap_draw_what_they_draw_on_the_cpu(cuda):
    found = {}
    for where in ("cpu", "cuda"):
        torch.manual_seed(3)
        x = torch.ones(4, 6, device=where)
        found[where] = torch.func.vmap(lambda row: F.dropout(row, 0.5), randomness="different")(x).cpu().numpy()
    assert found["cuda"].tobytes() == found["cpu"].tobytes()
