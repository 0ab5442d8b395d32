"""Functions of several steps on float16 and bfloat16: computed in float32, numbers beside them too, and rounded once.

What is expected are the values of PyTorch 2.13 on the CPU, and where it rounds in between (mse_loss of float16 even
overflows) those of float64, rounded once.
"""

import pytest

import resilin as torch
import resilin.nn.functional as F

X, A, B = [0.1, -1.7, 300.0], [2.3, 0.7, 250.0], [0.9, -3.1, 170.0]

CALLS = {
    "addcmul": (lambda x, a, b: torch.addcmul(x, a, b, value=0.1), (X, A, B)),
    "addcdiv": (lambda x, a, b: torch.addcdiv(x, a, b, value=0.3), (X, A, B)),
    "lerp": (lambda x, a: torch.lerp(x, a, 0.3), (X, A)),
    "lerp by a tensor": (lambda x, a, w: torch.lerp(x, a, w), (X, A, [0.3, 0.7, 0.1])),
    "addmv": (lambda x, a: torch.addmv(x, x.unsqueeze(1), a[:1], beta=0.3, alpha=0.7), (X, A)),
    "addr": (lambda x, a, b: torch.addr(x.reshape(1, 3), a[:1], b, beta=0.3, alpha=0.7), (X, A, B)),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.07), (X,)),
    "elu": (lambda x: F.elu(x, 1.3), (X,)),
    "celu": (lambda x: F.celu(x, 0.7), (X,)),
    "softplus": (lambda x: F.softplus(x, 0.3, 15.0), (X,)),
    "glu": (lambda x: F.glu(x, -1), ([0.1, -1.7, 300.0, 2.3],)),
    "tanhshrink": (lambda x: F.tanhshrink(x), (X,)),
    "mish": (lambda x: F.mish(x), (X,)),
    "gelu": (lambda x: F.gelu(x, approximate="tanh"), (X,)),
    "sinc": (lambda x: torch.sinc(x), ([0.0, 0.3, -1.7],)),
    "xlogy": (lambda x, a: torch.xlogy(x, a), (X, A)),
    "xlog1py": (lambda x, a: torch.special.xlog1py(x, a), (X, A)),
    "mse_loss": (lambda x, a: F.mse_loss(x, a), (X, [2.3, 0.7, -50.0])),
    "huber_loss": (lambda x, a: F.huber_loss(x, a, delta=0.3, reduction="none"), (X, A)),
    "smooth_l1_loss": (lambda x, a: F.smooth_l1_loss(x, a, beta=0.3, reduction="none"), (X, A)),
    "kl_div": (lambda x, a: F.kl_div(x, a, reduction="sum"), ([-0.3, -1.7], [0.3, 0.7])),
    "poisson_nll_loss": (lambda x, a: F.poisson_nll_loss(x, a), ([0.1, -1.7], [2.3, 0.7])),
    "gaussian_nll_loss": (lambda x, a, v: F.gaussian_nll_loss(x, a, v, full=True), (X, A, [0.9, 0.3, 2.1])),
    "cross_entropy": (
        lambda x: F.cross_entropy(x.unsqueeze(0), torch.tensor([1]), label_smoothing=0.1),
        ([0.1, -1.7, 3.3],),
    ),
    "triplet_margin_loss": (
        lambda a, b, c: F.triplet_margin_loss(a, b, c, margin=0.3),
        ([0.1, -1.7, 30.0], [2.3, 0.7, 25.0], [0.9, -3.1, 27.0]),
    ),
    "normalize": (lambda x: F.normalize(x, dim=0), (X,)),
    "interpolate": (lambda x: F.interpolate(x.reshape(1, 1, 1, 3), size=(1, 5), mode="bilinear"), (X,)),
    "pairwise_distance": (lambda x, a: F.pairwise_distance(x, a, p=3.0, eps=0.01), (X, A)),
    "dist": (lambda x, a: x.dist(a, 3), (X, A)),
    "trapezoid": (lambda x: torch.trapezoid(x, dx=0.3), (X,)),
    "logaddexp2": (lambda x, a: torch.logaddexp2(x, a), ([0.1, -1.7], [2.3, 0.7])),
    "renorm": (lambda x: torch.renorm(x.reshape(1, 3), 2, 0, 0.7), (X,)),
    "index_add": (lambda x, a: torch.index_add(x, 0, torch.tensor([0, 0, 1]), a, alpha=0.3), (X, A)),
}

# Of each: the result, then the gradient of its sum for every input.
# PyTorch rounds in between in: float16 addcdiv, addmv, addr, glu, tanhshrink, sinc, xlogy, mse_loss, kl_div,
# gaussian_nll_loss, cross_entropy, triplet_margin_loss, normalize, pairwise_distance, dist, trapezoid, logaddexp2,
# renorm, index_add; bfloat16 addcdiv, addr, glu, tanhshrink, sinc, xlogy, xlog1py, mse_loss, huber_loss, kl_div,
# poisson_nll_loss, gaussian_nll_loss, cross_entropy, triplet_margin_loss, normalize, dist, logaddexp2. There, these
# are the values of float64, rounded once; all others are its own.
EXPECTED = {
    torch.float16: {
        "addcmul": [[0.3071, -1.917, 4550.0], [1.0, 1.0, 1.0], [0.08997, -0.31, 17.0], [0.2301, 0.07, 25.0]],
        "addcdiv": [
            [0.867, -1.768, 300.5],
            [1.0, 1.0, 1.0],
            [0.3333, -0.0968, 0.001764],
            [-0.8525, -0.02187, -0.002596],
        ],
        "lerp": [[0.7603, -0.98, 285.0], [0.7, 0.7, 0.7], [0.3, 0.3, 0.3]],
        "lerp by a tensor": [[0.7603, -0.01945, 295.0], [0.7, 0.2998, 0.9], [0.3, 0.7, 0.1], [2.201, 2.4, -50.0]],
        "addmv": [[0.191, -3.248, 573.0], [1.91, 1.91, 1.91], [208.9, 0.0, 0.0]],
        "addr": [[1.4795, -5.504, 363.8], [0.3, 0.3, 0.3], [117.44, 0.0, 0.0], [1.61, 1.61, 1.61]],
        "leaky_relu": [[0.1, -0.119, 300.0], [1.0, 0.07, 1.0]],
        "elu": [[0.1, -1.0625, 300.0], [1.0, 0.2374, 1.0]],
        "celu": [[0.1, -0.638, 300.0], [1.0, 0.08813, 1.0]],
        "softplus": [[2.361, 1.567, 300.0], [0.5073, 0.3752, 1.0]],
        "glu": [[0.1, -1.545], [1.0, 0.909, 0.0, -0.1407]],
        "tanhshrink": [[0.0003319, -0.7646, 299.0], [0.009926, 0.875, 1.0]],
        "mish": [[0.0632, -0.2825, 300.0], [0.663, -0.0891, 1.0]],
        "gelu": [[0.05396, -0.07587, 300.0], [0.5796, -0.1159, 1.0]],
        "sinc": [[1.0, 0.8584, -0.1514], [0.0, -0.9023, -0.435]],
        "xlogy": [[0.0833, 0.606, 1656.0], [0.833, -0.3564, 5.52], [0.04346, -2.428, 1.2]],
        "xlog1py": [[0.1194, -0.9023, 1658.0], [1.194, 0.531, 5.527], [0.03029, -1.0, 1.195]],
        "mse_loss": [[40830.0], [-1.467, -1.601, 233.4], [1.467, 1.601, -233.4]],
        "huber_loss": [[0.615, 0.6753, 14.95], [-0.3, -0.3, 0.3], [0.3, 0.3, -0.3]],
        "smooth_l1_loss": [[2.05, 2.25, 49.84], [-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]],
        "kl_div": [[0.67], [-0.3, -0.7], [0.09625, 2.344]],
        "poisson_nll_loss": [[1.124], [-0.5977, -0.2588], [-0.05, 0.85]],
        "gaussian_nll_loss": [[203.4], [-0.8154, -2.666, 7.938], [0.8154, 2.666, -7.938], [-0.8115, -10.11, -94.44]],
        "cross_entropy": [[4.82], [0.00555, -0.927, 0.9214]],
        "triplet_margin_loss": [[2.861], [-0.1339, -0.813, -0.04297], [0.369, 0.4023, -0.838], [-0.2349, 0.411, 0.881]],
        "normalize": [[0.0003333, -0.00567, 1.0], [0.003332, 0.003351, 1.79e-05]],
        "interpolate": [[0.1, -0.62, -1.7, 179.4, 300.0], [1.6, 1.8, 1.6]],
        "pairwise_distance": [[50.0], [-0.001919, -0.002285, 1.0], [0.001919, 0.002285, -1.0]],
        "dist": [[50.0], [-0.001937, -0.002304, 1.0], [0.001937, 0.002304, -1.0]],
        "trapezoid": [[44.5], [0.15, 0.3, 0.15]],
        "logaddexp2": [[2.584, 0.9507], [0.1787, 0.1593], [0.8213, 0.841]],
        "renorm": [[0.0002333, -0.003967, 0.7], [0.002333, 0.002346, 1.25e-05]],
        "index_add": [[1.0, 73.3, 300.0], [1.0, 1.0, 1.0], [0.3, 0.3, 0.3]],
    },
    torch.bfloat16: {
        "addcmul": [[0.307, -1.92, 4540.0], [1.0, 1.0, 1.0], [0.09, -0.309, 17.0], [0.2295, 0.07, 25.0]],
        "addcdiv": [[0.867, -1.77, 300.0], [1.0, 1.0, 1.0], [0.334, -0.097, 0.00176], [-0.855, -0.022, -0.0026]],
        "lerp": [[0.758, -0.984, 284.0], [0.7, 0.7, 0.7], [0.3, 0.3, 0.3]],
        "lerp by a tensor": [[0.76, -0.0233, 294.0], [0.7, 0.3, 0.9], [0.3, 0.7, 0.1], [2.2, 2.4, -50.0]],
        "addmv": [[0.191, -3.25, 572.0], [1.91, 1.91, 1.91], [209.0, 0.0, 0.0]],
        "addr": [[1.48, -5.5, 364.0], [0.3, 0.3, 0.3], [117.5, 0.0, 0.0], [1.61, 1.61, 1.61]],
        "leaky_relu": [[0.1, -0.119, 300.0], [1.0, 0.07, 1.0]],
        "elu": [[0.1, -1.06, 300.0], [1.0, 0.236, 1.0]],
        "celu": [[0.1, -0.637, 300.0], [1.0, 0.088, 1.0]],
        "softplus": [[2.36, 1.57, 300.0], [0.508, 0.375, 1.0]],
        "glu": [[0.1, -1.55], [1.0, 0.91, 0.0, -0.142]],
        "tanhshrink": [[0.000334, -0.766, 300.0], [0.00995, 0.875, 1.0]],
        "mish": [[0.0635, -0.283, 300.0], [0.664, -0.0894, 1.0]],
        "gelu": [[0.054, -0.0757, 300.0], [0.58, -0.1157, 1.0]],
        "sinc": [[1.0, 0.86, -0.15], [0.0, -0.902, -0.438]],
        "xlogy": [[0.083, 0.61, 1656.0], [0.832, -0.357, 5.53], [0.0437, -2.44, 1.2]],
        "xlog1py": [[0.1196, -0.902, 1656.0], [1.195, 0.53, 5.53], [0.0304, -1.0, 1.195]],
        "mse_loss": [[41000.0], [-1.46, -1.6, 233.0], [1.46, 1.6, -233.0]],
        "huber_loss": [[0.613, 0.676, 14.94], [-0.3, -0.3, 0.3], [0.3, 0.3, -0.3]],
        "smooth_l1_loss": [[2.05, 2.25, 49.8], [-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]],
        "kl_div": [[0.668], [-0.3, -0.7], [0.0996, 2.34]],
        "poisson_nll_loss": [[1.125], [-0.598, -0.258], [-0.05, 0.85]],
        "gaussian_nll_loss": [[204.0], [-0.816, -2.66, 7.97], [0.816, 2.66, -7.97], [-0.812, -10.06, -95.0]],
        "cross_entropy": [[4.8], [0.0057, -0.926, 0.92]],
        "triplet_margin_loss": [[2.86], [-0.134, -0.812, -0.044], [0.37, 0.402, -0.84], [-0.234, 0.408, 0.883]],
        "normalize": [[0.000334, -0.00568, 1.0], [0.00333, 0.00336, 1.79e-05]],
        "interpolate": [[0.1, -0.62, -1.7, 179.0, 300.0], [1.6, 1.8, 1.6]],
        "pairwise_distance": [[50.0], [-0.001915, -0.00229, 1.0], [0.001915, 0.00229, -1.0]],
        "dist": [[50.0], [-0.00193, -0.0023, 1.0], [0.00193, 0.0023, -1.0]],
        "trapezoid": [[44.5], [0.15, 0.3, 0.15]],
        "logaddexp2": [[2.58, 0.95], [0.179, 0.159], [0.82, 0.84]],
        "renorm": [[0.000234, -0.00397, 0.7], [0.00233, 0.00235, 1.25e-05]],
        "index_add": [[1.0, 73.5, 300.0], [1.0, 1.0, 1.0], [0.3, 0.3, 0.3]],
    },
}


def _values(call, inputs, dtype):
    leaves = [torch.tensor(values, dtype=dtype, requires_grad=True) for values in inputs]
    result = call(*leaves)
    assert result.dtype is dtype
    result.sum().backward()
    return [result.detach().flatten().tolist(), *(leaf.grad.flatten().tolist() for leaf in leaves)]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", EXPECTED, ids=str)
def test_a_function_of_several_steps_and_its_gradients_round_once(name, dtype):
    expected = [torch.tensor(values, dtype=dtype).tolist() for values in EXPECTED[dtype][name]]
    assert _values(*CALLS[name], dtype) == expected


def test_what_is_too_large_in_between_is_no_infinity():
    zero, large = torch.zeros(1).half(), torch.full((1,), 256.0).half()
    assert torch.addcmul(zero, large, large, value=0.1).item() == 6552  # PyTorch's
    assert zero.clone().addcmul_(large, large, value=0.1).item() == 6552
    assert torch.addcdiv(zero, large * 200, torch.full((1,), 0.5).half(), value=0.1).item() == 10240
    assert torch.addmm(zero.reshape(1, 1), large.reshape(1, 1), large.reshape(1, 1), alpha=0.1).item() == 6552
    assert torch.baddbmm(zero.reshape(1, 1, 1), *[large.reshape(1, 1, 1)] * 2, alpha=0.1).item() == 6552
    assert torch.addbmm(zero.reshape(1, 1), *[large.reshape(1, 1, 1)] * 2, alpha=0.1).item() == 6552


IMAGES = torch.linspace(-2, 3, 2 * 4 * 5 * 6).reshape(2, 4, 5, 6)
ROWS = IMAGES[0, 0]
FOUR = torch.tensor([0.125, 0.3125, 0.75, 1.25])
OF_ONE = {  # whose gradients do not depend on a result that was rounded
    "hardsigmoid": (F.hardsigmoid, ROWS),
    "hardswish": (F.hardswish, ROWS),
    "silu": (F.silu, ROWS),
    "softsign": (F.softsign, ROWS),
    "logsigmoid": (F.logsigmoid, ROWS),
    "selu": (F.selu, ROWS),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), ROWS),
    "gelu": (F.gelu, ROWS),
    "logit": (lambda x: torch.logit(x.abs() / 4, 0.01), ROWS),
    "cumprod": (lambda x: x.cumprod(0), ROWS[:, :2].abs() + 0.5),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 0), ROWS),
    "corrcoef": (torch.corrcoef, ROWS * ROWS),
    "cov": (torch.cov, ROWS * ROWS),
    "cumulative_trapezoid": (lambda x: torch.cumulative_trapezoid(x, dx=0.3), ROWS),
    "mvlgamma": (lambda x: torch.mvlgamma(x, 2), ROWS * ROWS + 1),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), ROWS),
    "rms_norm": (lambda x: F.rms_norm(x, (6,)), ROWS),
    "group_norm": (lambda x: F.group_norm(x, 2, FOUR.to(x.dtype), FOUR.to(x.dtype)), IMAGES),
    "instance_norm": (lambda x: F.instance_norm(x, weight=FOUR.to(x.dtype)), IMAGES),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, FOUR.to(x.dtype), training=True), IMAGES),
    "batch_norm of running statistics": (lambda x: F.batch_norm(x, FOUR.to(x.dtype), FOUR.to(x.dtype)), IMAGES),
    "local_response_norm": (lambda x: F.local_response_norm(x, 3, 0.3, 0.7, 1.1), IMAGES),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGES),
    "lp_pool2d": (lambda x: F.lp_pool2d(x.abs(), 3.0, 2), IMAGES),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), IMAGES),
    "interpolate": (lambda x: F.interpolate(x, size=(7, 9), mode="bicubic"), IMAGES),
    "pad": (lambda x: F.pad(x, (1, 2, 1, 1), mode="reflect"), IMAGES),
    "grid_sample": (lambda x: F.grid_sample(x, torch.ones(2, 3, 3, 2).to(x.dtype) / 3, align_corners=True), IMAGES),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, x[:, :, :3, :3].repeat(2, 1, 1, 1), FOUR.to(x.dtype)), IMAGES),
    "scaled_dot_product_attention": (lambda x: F.scaled_dot_product_attention(x, x, x, scale=0.3), IMAGES),
    "a row picked several times": (lambda x: x[[0, 0, 1, 0]], ROWS),
    "scatter_add": (lambda x: x.scatter_add(0, torch.zeros(4, 6, dtype=torch.int64), x), ROWS),
    "index_put": (lambda x: x.index_put((torch.tensor([0, 0, 1]),), x[:3], accumulate=True), ROWS),
    "bce": (lambda x: F.binary_cross_entropy(x.sigmoid().detach() + 0 * x, x.detach().abs() / 4), ROWS),
    "bce_with_logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, x.detach().abs() / 4, pos_weight=x.abs()),
        ROWS,
    ),
    "cosine_embedding_loss": (lambda x: F.cosine_embedding_loss(x, x * x, torch.ones(5), margin=0.1), ROWS),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2, 3, 0]), p=2, margin=0.7), ROWS),
    "soft_margin_loss": (lambda x: F.soft_margin_loss(x, x.detach().sign()), ROWS),
    "nll_loss": (lambda x: F.nll_loss(x, torch.tensor([0, 1, 2, 3, 0]), ROWS[0].abs().to(x.dtype)), ROWS),
}


@pytest.mark.parametrize("name", OF_ONE)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_give_what_float32_gives_rounded_once(name, dtype):
    call, values = OF_ONE[name]
    narrow = values.to(dtype).requires_grad_()
    wide = narrow.detach().float().requires_grad_()
    found, expected = call(narrow), call(wide)
    assert found.dtype is dtype
    assert found.tolist() == expected.to(dtype).tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_second_derivatives_and_batches_of_functions_round_once_too(dtype):
    def slope(x):
        (first,) = torch.autograd.grad(F.silu(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first, second

    x = ROWS.to(dtype)
    for found, expected in zip(slope(x.clone().requires_grad_()), slope(x.float().requires_grad_()), strict=True):
        assert found.dtype is dtype
        assert (found - expected).abs().max() <= 2 ** (-8 if dtype is torch.bfloat16 else -11) * expected.abs().max()
    each = torch.vmap(lambda row: torch.lerp(row, row * row, 0.3))(x)
    assert each.tolist() == torch.lerp(x, x * x, 0.3).tolist()


def test_tensors_of_several_dtypes_promote_as_before():
    half, wide = torch.ones(2).half(), torch.ones(2)
    assert torch.addcmul(wide, half, half, value=0.1).dtype is torch.float32
    assert torch.lerp(half, half, torch.tensor(0.3)).dtype is torch.float16  # a number, though a tensor
    assert F.mse_loss(half, wide).dtype is torch.float32
    assert F.batch_norm(torch.ones(2, 2).half(), wide, wide).dtype is torch.float16
    with pytest.raises(RuntimeError, match="same dtype"):
        torch.addmm(torch.ones(1, 1), torch.ones(1, 2).half(), torch.ones(2, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_gradients_through_numbers_and_paddings_round_once(dtype):
    x = ROWS.to(dtype).requires_grad_()
    (x * 0.1).sum().backward()
    assert x.grad.flatten().tolist() == [torch.tensor(0.1).to(dtype).item()] * 30
    x.grad = None
    (x / 0.3).backward(torch.full_like(x.detach(), 3.0))
    assert set(x.grad.flatten().tolist()) == {torch.tensor(10.0).to(dtype).item()}
    wide = x.detach().float().requires_grad_()
    for leaf in (x, wide):
        leaf.grad = None
        padded = F.pad(leaf.unsqueeze(0), (2, 3, 1, 2), mode="reflect")
        padded.backward(torch.arange(padded.numel()).reshape(padded.shape).to(leaf.dtype))
    assert x.grad.tolist() == wide.grad.to(dtype).tolist()
