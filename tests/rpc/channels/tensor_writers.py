"""Every public way to write into a tensor's memory."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import resilin
from resilin import optim
from resilin.nn import init

Tensor = Any


def _index(x: Tensor, rng: random.Random) -> None:
    x[rng.randrange(len(x))] = rng.randrange(100)


def _mask(x: Tensor, rng: random.Random) -> None:
    x[x > rng.randrange(100)] = rng.randrange(100)


def _view(x: Tensor, rng: random.Random) -> None:
    start = rng.randrange(len(x))
    x[start : start + 1 + rng.randrange(5000)].fill_(rng.randrange(100))


def _strided(x: Tensor, rng: random.Random) -> None:
    x[:: 1 + rng.randrange(700)].add_(rng.randrange(100))


def _optimizer(x: Tensor, rng: random.Random) -> None:
    parameter = resilin.nn.Parameter(x.detach())
    parameter.grad = resilin.full_like(x, float(rng.randrange(1, 9)))
    kind: Any = rng.choice([optim.SGD, optim.Adam, optim.RMSprop])
    kind([parameter], lr=0.5).step()


def _gradient(x: Tensor, rng: random.Random) -> None:
    leaf = resilin.ones(len(x), requires_grad=True)
    leaf.grad = x
    (leaf * float(rng.randrange(1, 9))).sum().backward()
    (leaf * 2.0).sum().backward()
    assert leaf.grad is not None


def _pointer(x: Tensor, rng: random.Random) -> None:
    ctypes.memset(x.data_ptr() + 4 * rng.randrange(len(x)), 0, 4)


def _batch_norm(x: Tensor, rng: random.Random) -> None:
    batch = resilin.rand(2, len(x), 1)
    resilin.nn.functional.batch_norm(batch, x, resilin.ones(len(x)), training=True, momentum=0.5)


def _clip(x: Tensor, rng: random.Random) -> None:
    parameter = resilin.nn.Parameter(resilin.zeros(len(x)))
    parameter.grad = x
    resilin.nn.utils.clip_grad_norm_([parameter], 1.0)


WRITERS: dict[str, Callable[[Tensor, random.Random], Any]] = {
    "add_": lambda x, rng: x.add_(rng.randrange(1, 100)),
    "mul_": lambda x, rng: x.mul_(0.5),
    "exp_": lambda x, rng: x.clamp_(-1, 1).exp_(),
    "copy_": lambda x, rng: x.copy_(resilin.full((len(x),), float(rng.randrange(100)))),
    "fill_": lambda x, rng: x.fill_(rng.randrange(100)),
    "zero_": lambda x, rng: x.zero_(),
    "index": _index,
    "mask": _mask,
    "view": _view,
    "strided": _strided,
    "index_fill_": lambda x, rng: x.index_fill_(0, resilin.tensor([rng.randrange(len(x))]), 5.0),
    "data": lambda x, rng: x.data.sub_(1),
    "detach": lambda x, rng: x.detach().add_(1),
    "uniform_": lambda x, rng: x.uniform_(),
    "init": lambda x, rng: init.normal_(x),
    "iadd": lambda x, rng: x.__iadd__(3),
    "numpy": lambda x, rng: x.numpy().__setitem__(slice(0, 1 + rng.randrange(len(x))), rng.randrange(100)),
    "asarray": lambda x, rng: np.asarray(x).__iadd__(1),
    "dlpack": lambda x, rng: np.from_dlpack(x).fill(rng.randrange(1, 100)),
    "memoryview": lambda x, rng: memoryview(x.numpy()).cast("B").__setitem__(slice(0, 4), b"\0\0\xe0\x40"),
    "from_numpy": lambda x, rng: resilin.from_numpy(x.numpy()).add_(1),
    "data_ptr": _pointer,
    "optimizer": _optimizer,
    "gradient": _gradient,
    "batch_norm": _batch_norm,
    "clip_grad": _clip,
}
