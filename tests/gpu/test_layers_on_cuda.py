"""Interpolation, sampling, windows, attention and lazy modules give on the device what they give on the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import resilin
from resilin import nn
from resilin.nn import functional as F


def _image() -> Any:
    return resilin.arange(2 * 3 * 5 * 4.0, dtype=resilin.float64).sin().reshape(2, 3, 5, 4)


def _grid(x: Any) -> Any:
    theta = resilin.tensor([[[0.9, 0.3, 0.1], [-0.2, 1.1, 0.2]]], dtype=resilin.float64, device=x.device)
    return F.affine_grid(theta.repeat(2, 1, 1), (2, 3, 3, 4))


def _attend(x: Any) -> Any:
    resilin.manual_seed(1)
    return nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True, dtype=x.dtype).to(x.device)(
        x[0], x[1], x[1]
    )


def _half(x: Any) -> Any:
    return resilin.full((2, 3, 2), 0.5, dtype=x.dtype, device=x.device)


def _lazy(x: Any) -> Any:
    layer = nn.LazyConv2d(3, 2, groups=3, dtype=resilin.float64).to(x.device)
    layer(x)
    nn.init.constant_(layer.weight, 0.5)
    nn.init.zeros_(layer.bias)
    return layer(x)


CALLS: dict[str, Any] = {
    "nearest": lambda x: F.interpolate(x, size=(7, 3)),
    "bilinear": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "bicubic with antialiasing": lambda x: F.interpolate(x, size=(3, 9), mode="bicubic", antialias=True),
    "area": lambda x: F.interpolate(x, size=(2, 3), mode="area"),
    "grid_sample": lambda x: F.grid_sample(x, _grid(x)),
    "grid_sample with reflection": lambda x: F.grid_sample(x, _grid(x), "bicubic", "reflection"),
    "grid_sample of the nearest": lambda x: F.grid_sample(x, _grid(x), "nearest", "border"),
    "cross-map normalization": nn.CrossMapLRN2d(3),
    "max_pool3d": lambda x: F.max_pool3d(x, 2, 1, return_indices=True),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 2, return_indices=True),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2, 1, ceil_mode=True, padding=1),
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, (2, 3, None)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, (3, 2), True),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, (2, 3, 2), True),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(
        x, 2, (3, 2), return_indices=True, _random_samples=_half(x)
    ),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(5, 4)),
    "unfold": lambda x: F.unfold(x, 2, padding=1),
    "fold": lambda x: F.fold(x.reshape(2, 12, 5), (2, 6), (2, 2)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, x[:1].transpose(0, 1)[:, :, :2, :2], stride=2),
    "conv3d": lambda x: F.conv3d(x[None], x[None, :, :1, :2, :2], padding="same"),
    "padding": lambda x: F.pad(x, (1, 2, 2, 1), "reflect"),
    "attention": _attend,
    "a lazy convolution": _lazy,
}


@pytest.mark.parametrize("name", list(CALLS))
def test_the_device_gives_what_the_cpu_gives(cuda: Any, name: str) -> None:
    results, gradients = [], []
    for where in ("cpu", "cuda"):
        x = _image().to(where).requires_grad_()
        made = CALLS[name](x)
        parts = made if isinstance(made, tuple) else (made,)
        assert all(part.device.type == where for part in parts)
        parts[0].sum().backward()
        results.append([part.detach().cpu().numpy() for part in parts])
        gradients.append(x.grad.cpu().numpy())
    for got, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=1e-12, atol=1e-12)


def test_training_twice_gives_the_same_bits(cuda: Any) -> None:
    samples, length, width = (64, 34, 66) if isinstance(cuda.cupy, ModuleType) else (3, 6, 6)  # a device, or emulation

    def trained() -> bytes:
        resilin.manual_seed(2)
        layers = (nn.Embedding(9, width), nn.LayerNorm(width), nn.Unflatten(1, (1, length)), nn.Conv2d(1, 3, 3))
        inside = 3 * (length - 2) // 2 * (width - 2) // 2
        head = (nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(inside, 5))
        model = nn.Sequential(*layers, *head).to("cuda")
        optimizer = resilin.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            tokens = resilin.randint(0, 9, (samples, length)).to("cuda")
            F.cross_entropy(model(tokens), resilin.randint(0, 5, (samples,)).to("cuda")).backward()
            optimizer.step()
        return b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())

    assert trained() == trained()


def test_a_gradient_that_nobody_else_holds_becomes_the_leafs_and_any_other_is_copied(cuda):
    x = resilin.ones(2, 3, device="cuda", requires_grad=True)
    kept = []
    y = x * 2
    y.register_hook(kept.append)
    y.backward(resilin.ones(2, 3, device="cuda"))
    gradient, given = resilin.ones(2, 3, device="cuda"), resilin.zeros(2, 3, device="cuda", requires_grad=True)
    (given + 0).backward(gradient)
    z = resilin.ones(3, device="cuda", requires_grad=True)
    (z.reshape(1, 3) * 3).backward(resilin.ones(1, 3, device="cuda"))
    for leaf, value in ((x, 2.0), (given, 1.0), (z, 3.0)):
        leaf.grad += 5
        assert leaf.grad.cpu().tolist() == (resilin.zeros(leaf.shape) + value + 5).tolist()
    assert kept[0].cpu().tolist() == [[1.0] * 3] * 2
    assert gradient.cpu().tolist() == [[1.0] * 3] * 2
