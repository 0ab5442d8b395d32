"""bfloat16 and float16 through the public functions: nothing widens a dtype but a wider tensor."""

import pytest

import resilin as torch
import resilin.nn.functional as F

B = torch.ones(2, 4, 4).bfloat16()

CALLS = {
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "kl_div": lambda x: F.kl_div(x, x, reduction="sum"),
    "softplus": lambda x: F.softplus(x),
    "normalize": lambda x: F.normalize(x),
    "clamp": lambda x: x.clamp(0.5, 2),
    "clamp_min": lambda x: x.clamp_min(0.5),
    "clamp_max": lambda x: x.clamp_max(0.5),
    "logit": lambda x: x.logit(0.1),
    "norm": lambda x: x.norm(3),
    "inner": lambda x: torch.inner(x, x),
    "tensordot": lambda x: torch.tensordot(x, x[0], 1),
    "einsum of two": lambda x: torch.einsum("abc,acd->abd", x, x),
    "einsum of one": lambda x: torch.einsum("abc->cb", x),
    "einsum to a number": lambda x: torch.einsum("abc,abc->", x, x),
    "einsum of three": lambda x: torch.einsum("abc,acd,ade->abe", x, x, x),
    "elu": lambda x: F.elu(x),
    "leaky_relu": lambda x: F.leaky_relu(x),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "bce with pos_weight": lambda x: F.binary_cross_entropy_with_logits(x, x, pos_weight=x[0]),
    "bce": lambda x: F.binary_cross_entropy(x, x),
    "layer_norm": lambda x: F.layer_norm(x, 4),
    "rms_norm": lambda x: F.rms_norm(x, (4,)),
    "arithmetic": lambda x: (2 * x + 0.1) / 3 - x**2.5,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_function_of_sixteen_bit_floats_and_its_gradient_keep_the_dtype(call, dtype):
    x = torch.ones(2, 4, 4, dtype=dtype, requires_grad=True)
    y = call(x)
    assert y.dtype is dtype
    y.sum().backward()
    assert x.grad.dtype is dtype


def test_bfloat16_beside_float32_gives_float32():
    assert torch.einsum("ab,bc->ac", B[0], torch.ones(4, 3)).dtype is torch.float32
    assert torch.maximum(B, torch.ones(4)).dtype is torch.float32


def test_functions_of_bfloat16_round_once():
    x = torch.tensor([0.3, 1.7, -2.2, 5.0]).bfloat16()
    expected = F.softplus(x.float()).bfloat16()
    assert F.softplus(x).tolist() == expected.tolist()
    assert torch.sigmoid(x).tolist() == torch.sigmoid(x.float()).bfloat16().tolist()


# PyTorch's
NEXT = {
    torch.float16: [2**-24, -(2**-24), 1 + 2**-10, -1 + 2**-11, 65504.0, 3.0],
    torch.bfloat16: [2**-133, -(2**-133), 1 + 2**-7, -1 + 2**-8, 255 * 2.0**120, 3.0],
}


@pytest.mark.parametrize("dtype", NEXT, ids=str)
def test_nextafter_of_sixteen_bit_floats_steps_in_their_dtype(dtype):
    x = torch.tensor([0.0, 0.0, 1.0, -1.0, float("inf"), 3.0], dtype=dtype)
    y = torch.tensor([1.0, -1.0, 2.0, 0.0, 0.0, 3.0], dtype=dtype)
    found = torch.nextafter(x, y)
    assert found.dtype is dtype
    assert found.tolist() == NEXT[dtype]
    assert torch.nextafter(x, torch.full_like(y, float("nan"))).isnan().all()


@pytest.mark.parametrize("dtype", NEXT, ids=str)
def test_dist_of_sixteen_bit_floats_subtracts_in_float32(dtype):
    x, y = torch.tensor([300.0, 0.0], dtype=dtype), torch.tensor([0.0, 400.0], dtype=dtype)
    assert x.dist(y).item() == 500
    assert x.dist(y, 0).item() == 2
    assert x.dist(y, float("inf")).item() == 400
    assert x.dist(y, 3).item() == {torch.float16: 449.75, torch.bfloat16: 450}[dtype]  # PyTorch's
    assert (x * 200).dist(x * -200).item() == {torch.float16: float("inf"), torch.bfloat16: 119808}[dtype]


def test_a_single_number_overflows_without_a_warning():
    large = torch.tensor(60000.0).half()
    assert (large / torch.tensor(0.1).half()).item() == float("inf")
    assert F.softplus(large, 0.5).item() == 60000
    assert torch.addcmul(large, large, large, value=0.1).item() == float("inf")
