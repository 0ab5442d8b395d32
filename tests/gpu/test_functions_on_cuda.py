"""Functions, layers, losses and optimizers give on CUDA what they give on the CPU, values and gradients."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import resilin as torch
from resilin import nn
from resilin.nn import functional as F


def tensors_in(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in value for t in tensors_in(part)] if isinstance(value, tuple | list) else []


def same(run: Any) -> None:
    """`run(device)` gives equal tensors on both devices, and those of "cuda" are there."""
    found = []
    for where in ("cpu", "cuda"):
        torch.manual_seed(0)
        found.append(tensors_in(run(where)))
    assert len(found[0]) == len(found[1]) > 0
    for on_cpu, on_cuda in zip(*found, strict=True):
        assert on_cuda.is_cuda
        expected, given = on_cpu.detach().numpy(), on_cuda.detach().cpu().numpy()
        assert given.dtype == expected.dtype
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-4)


def i(where: str, *values: Any) -> Any:
    return torch.tensor(values, device=where)


def written(x: Any) -> Any:
    x[0] = 1.0
    x[:, 1] = x[:, 2] * 2
    x[x > 1] = 0.5
    x[1:].mul_(2)
    return x


# x (4, 5) requires a gradient, d is the device
FUNCTIONS: dict[str, Any] = {
    "index": lambda x, d: (x[i(d, 2, 0, 1)], x[:, i(d, 2, 0)], x[i(d, 1, 1), i(d, 0, 0)], x[[0, 2]], x[1, 2], x[x > 0]),
    "gather": lambda x, d: x.gather(1, i(d, [0, 1], [2, 2], [3, 0], [1, 1])),
    "scatter": lambda x, d: torch.zeros(4, 5, device=d).scatter(1, i(d, [0], [2], [3], [1]), x[:, :1]),
    "scatter_add": lambda x, d: torch.zeros(4, 5, device=d).scatter_add(1, i(d, [0, 0], [2, 2], [3, 1]), x[:3, :2]),
    "scatter_reduce": lambda x, d: [
        torch.ones(4, 5, device=d).scatter_reduce(1, i(d, [0, 0], [2, 2], [3, 1]), x[:3, :2], how)
        for how in ("amax", "amin", "mean", "prod", "sum")
    ],
    "index_add": lambda x, d: x.index_add(0, i(d, 2, 0, 2), torch.ones(3, 5, device=d)),
    "index_fill": lambda x, d: (
        x.index_fill(0, i(d, 2, 0), 1.0),
        x.index_select(1, i(d, 0, 0, 1)),
        x.take(i(d, -1, 3)),
    ),
    "masks": lambda x, d: (x.masked_fill(x > 0, 0.0), x.masked_select(x > 0), torch.where(x > 0, x, 0.0)),
    "masked_scatter": lambda x, d: x.masked_scatter(x > 0, torch.ones(20, device=d)),
    "nonzero": lambda x, d: ((x > 0).nonzero(), torch.where(x > 0)),
    "sort": lambda x, d: (
        x.sort(1),
        x.sort(1, descending=True),
        x.topk(2, 1),
        x.kthvalue(2, 1),
        x.median(1),
        x.mode(1),
    ),
    "extremes": lambda x, d: (x.max(1), x.min(), x.argmax(1), x.cummax(1), x.amax(0), torch.aminmax(x)),
    "statistics": lambda x, d: (x.quantile(0.3, 1), torch.var_mean(x, 1), x.norm(), x.norm(3, 1), x.logsumexp(1)),
    "counts": lambda x, d: (torch.bincount(i(d, 2, 0, 2)), x.detach().histc(4), i(d, 3, 1, 3).unique()),
    "searches": lambda x, d: (torch.searchsorted(i(d, 1, 3), i(d, 2, 5)), torch.isin(i(d, 1, 2), i(d, 2))),
    "scans": lambda x, d: (x.cumsum(1), x.cumprod(0), x.logcumsumexp(1)),
    "products": lambda x, d: (torch.einsum("ij,kj->ik", x, x), torch.bmm(x[None], x.T[None]), torch.kron(x, x[:1])),
    "addmm": lambda x, d: (torch.addmm(torch.ones(4, 4, device=d), x, x.T), torch.outer(x[0], x[1]), x @ x.T),
    "joining": lambda x, d: (torch.cat([x, x]), torch.stack([x, x]), x.split(2), x.chunk(2, 1), x.unbind(0)),
    "moving": lambda x, d: (x.flip(0), x.roll(1, 0), x.repeat(2, 1), x.repeat_interleave(2, 0), x.T.contiguous()),
    "diagonals": lambda x, d: (x.tril(), x.diag(), x.diag_embed(), x.unfold(1, 2, 1), x.as_strided((2, 2), (1, 2))),
    "clamp": lambda x, d: (
        x.clamp(-0.5, 0.5),
        x.lerp(x * 2, 0.3),
        x.abs() ** 1.5,
        2**x,
        x.round(),
        torch.nan_to_num(x),
    ),
    "logic": lambda x, d: ((x > 0) & (x < 1), ~(x > 0), torch.isclose(x, x), torch.arange(5, device=d) // 2),
    "bits": lambda x, d: (i(d, 1, 2) << 1, i(d, 6, 4) ^ 3, torch.gcd(i(d, 6, 4), i(d, 4, 6))),
    "in place": lambda x, d: (written(x.clone()), x.detach().clone().add_(torch.ones(4, 5, device=d)).zero_().fill_(2)),
    "copies": lambda x, d: (torch.zeros(4, 5, device=d).copy_(x.detach().cpu()), copy.deepcopy(x.detach())),
    "pickle": lambda x, d: pickle.loads(pickle.dumps(x.detach())),
    "draws": lambda x, d: [
        torch.rand(3, device=d),
        torch.randn_like(x),
        torch.randint(0, 9, (3,), device=d),
        torch.randperm(5, device=d),
        torch.empty(3, device=d).normal_(),
        torch.empty(3, device=d).exponential_(),
        torch.rand(4, device=d).bernoulli(),
        torch.rand(4, device=d).multinomial(2),
        torch.normal(torch.zeros(3, device=d), torch.ones(3, device=d)),
        torch.poisson(torch.ones(3, device=d)),
    ],
    "creation": lambda x, d: [
        torch.arange(4, device=d),
        torch.linspace(0, 1, 4, device=d),
        torch.eye(3, device=d),
        torch.full((2,), 3.0, device=d),
        x.new_zeros(2),
        torch.full_like(x, 2.0),
    ],
    "complex": lambda x, d: (torch.complex(x, x).abs(), torch.fft.fft(x).abs(), torch.fft.irfft(torch.fft.rfft(x))),
    "linalg": lambda x, d: [
        torch.linalg.inv(x[:, :4]),
        torch.linalg.solve(x[:, :4], x),
        torch.linalg.svdvals(x),
        torch.linalg.qr(x)[1],
        torch.linalg.det(x[:, :4]),
        torch.linalg.eigh(x @ x.T)[0],
        torch.linalg.lu(x),
        torch.linalg.pinv(x),
        torch.linalg.matrix_exp(x[:, :4]),
        torch.linalg.cholesky(x @ x.T + torch.eye(4, device=d)),
    ],
    "16 bits": lambda x, d: ((x.half() * 2).float(), (x.bfloat16() @ x.bfloat16().T).float()),
    "attention": lambda x, d: [F.scaled_dot_product_attention(x, x, x, is_causal=c) for c in (False, True)],
    "functional": lambda x, d: (F.one_hot(i(d, 2, 0), 5), F.normalize(x), F.pad(x, (1, 1)), F.interpolate(x[None], 9)),
    "double backward": lambda x, d: torch.autograd.grad((x**3).sum(), x, create_graph=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_gives_what_it_gives_on_the_cpu(cuda, name):
    def run(where: str) -> Any:
        x = torch.randn(4, 5).to(where).requires_grad_()
        outs = tensors_in(FUNCTIONS[name](x, where))
        for out in outs:
            if out.requires_grad:
                out.sum().backward(retain_graph=True)
        return [*outs, *([] if x.grad is None else [x.grad])]

    same(run)


# how a layer is made, and the shapes of its inputs
LAYERS: dict[str, Any] = {
    "Linear": (lambda: nn.Linear(3, 4), (5, 3)),
    "Bilinear": (lambda: nn.Bilinear(3, 4, 2), (5, 3), (5, 4)),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (2, 3, 7)),
    "Conv2d": (lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2, padding_mode="reflect"), (2, 4, 7, 7)),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (2, 3, 5, 5)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (2, 3, 6, 6)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (1, 2, 4, 4, 4)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (2, 3, 6, 6)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (2, 3, 5, 5)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), (2, 3, 5, 5)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "BatchNorm1d, eval": (lambda: nn.BatchNorm1d(3).eval(), (4, 3)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (4, 6)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (3, 4, 5)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True), (3, 4, 5, 5)),
    "RMSNorm": (lambda: nn.RMSNorm(6), (3, 6)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), (2, 4, 3, 3)),
    "RNN": (lambda: nn.RNN(3, 4), (5, 2, 3)),
    "LSTM": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True), (2, 5, 3)),
    "GRU": (lambda: nn.GRU(3, 4), (5, 2, 3)),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), (5, 3)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8), (2, 5, 8), (2, 5, 8)),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "TransformerDecoderLayer": (lambda: nn.TransformerDecoderLayer(8, 2, 16), (5, 2, 8), (5, 2, 8)),
    "Dropout": (lambda: nn.Dropout(0.5), (6, 6)),
    "Dropout2d": (lambda: nn.Dropout2d(0.5), (6, 6, 3, 3)),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.5), (6, 6)),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), (1, 4, 3, 3)),
    "Unfold": (lambda: nn.Unfold(2), (1, 2, 4, 4)),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d(1), (1, 2, 3, 3)),
    "PReLU": (lambda: nn.PReLU(), (3, 3)),
    **{
        name: (getattr(nn, name), (4, 6))
        for name in (
            "ReLU",
            "GELU",
            "SiLU",
            "Mish",
            "ELU",
            "SELU",
            "Hardswish",
            "LogSigmoid",
            "Softplus",
            "RReLU",
            "GLU",
        )
    },
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_what_it_gives_on_the_cpu(cuda, name):
    def run(where: str) -> Any:
        make, *shapes = LAYERS[name]
        layer = make().to(where)
        inputs = [torch.randn(shape).to(where).requires_grad_() for shape in shapes]
        outs = tensors_in(layer(*inputs))
        sum((out * out).sum() for out in outs).backward()
        return [*outs, *(x.grad for x in inputs), *(p.grad for p in layer.parameters())]

    same(run)


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_tables_look_up_and_add_gradients_up(cuda, layer):
    def run(where: str) -> Any:
        table = layer(10, 4, padding_idx=2).to(where)
        out = table(torch.randint(0, 10, (6, 5)).to(where))
        out.square().sum().backward()
        return out, table.weight.grad

    same(run)


LOSSES: dict[str, Any] = {
    "cross_entropy": lambda x, d: F.cross_entropy(x, i(d, 0, 2, -100, 4)),
    "weighted": lambda x, d: F.cross_entropy(x, i(d, 0, 2, 1, 4), torch.rand(5).to(d), label_smoothing=0.1),
    "soft": lambda x, d: F.cross_entropy(x, torch.rand(4, 5).softmax(1).to(d)),
    "nll": lambda x, d: F.nll_loss(x.log_softmax(1), i(d, 0, 2, -100, 4)),
    "mse": lambda x, d: F.mse_loss(x, torch.ones(4, 5, device=d)),
    "huber": lambda x, d: F.huber_loss(x, torch.ones(4, 5, device=d)),
    "bce": lambda x, d: F.binary_cross_entropy_with_logits(x, torch.ones(4, 5, device=d)),
    "kl": lambda x, d: F.kl_div(x.log_softmax(1), torch.rand(4, 5).to(d), reduction="batchmean"),
    "multi_margin": lambda x, d: F.multi_margin_loss(x, i(d, 0, 2, 1, 4)),
    "multilabel_margin": lambda x, d: F.multilabel_margin_loss(x, i(d, *[[0, 2, -1, 0, 0]] * 4)),
    "triplet": lambda x, d: F.triplet_margin_loss(x, torch.rand(4, 5).to(d), torch.rand(4, 5).to(d)),
    "cosine": lambda x, d: F.cosine_embedding_loss(x, torch.rand(4, 5).to(d), torch.ones(4, device=d)),
    "ctc": lambda x, d: F.ctc_loss(x.reshape(4, 1, 5).log_softmax(2), i(d, [1, 2]), i(d, 4), i(d, 2)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_gives_what_it_gives_on_the_cpu(cuda, name):
    def run(where: str) -> Any:
        x = torch.randn(4, 5).to(where).requires_grad_()
        loss = LOSSES[name](x, where)
        loss.backward()
        return loss, x.grad

    same(run)


OPTIMIZERS: dict[str, Any] = {
    **{name: {} for name in ("Adagrad", "Adadelta", "Adamax", "RMSprop", "Rprop", "NAdam", "RAdam", "ASGD", "LBFGS")},
    **{name: {} for name in ("SGD", "Adam", "AdamW", "Lion", "Adafactor")},
    "SGD with momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "AdamW with AMSGrad": {"amsgrad": True},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_steps_move_parameters_as_on_the_cpu(cuda, name):
    def run(where: str) -> Any:
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1)).double().to(where)
        optimizer = getattr(torch.optim, name.split()[0])(model.parameters(), lr=0.01, **OPTIMIZERS[name])
        x = torch.randn(6, 4, dtype=torch.float64).to(where)  # rounding grows in LBFGS's steps

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            nn.utils.clip_grad_value_(model.parameters(), 0.5)
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return list(model.parameters())

    same(run)
