"""vmap and the transforms of functions give on CUDA what they give on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import resilin
from resilin import func
from resilin.nn import functional as F

X = np.linspace(-1.5, 2.0, 24, dtype=np.float32).reshape(3, 2, 4)
PICKS = np.array([[2, 0], [1, 1], [0, 3]])

RUNS: dict[str, Any] = {
    "gradients per sample": lambda x, i: func.vmap(func.grad(lambda a: (a.sin() * a).sum()))(x),
    "rows of a Jacobian": lambda x, i: func.jacrev(lambda a: a.softmax(-1))(x[0]),
    "columns of a Jacobian": lambda x, i: func.jacfwd(lambda a: a.softmax(-1))(x[0]),
    "second derivatives": lambda x, i: func.hessian(lambda a: a.exp().sum().log())(x[0, 0]),
    "indices of each sample": lambda x, i: func.vmap(lambda a, j: a[:, j])(x, i),
    "gathered": lambda x, i: func.vmap(lambda a, j: a.gather(1, j[:, None]))(x, i),
    "shared table": lambda x, i: func.vmap(lambda j: F.embedding(j, x[0].T))(i),
    "losses": lambda x, i: func.vmap(func.grad(F.cross_entropy), (0, 0))(x, i),
    "written": lambda x, i: func.vmap(lambda a: _written(a))(x),
    "sorted": lambda x, i: func.vmap(lambda a: a.sort(descending=True).values)(x),
    "sample by sample": lambda x, i: func.vmap(lambda a: a.median())(x),
    "batched cotangents": lambda x, i: _cotangents(x[0, 0]),
}


def _written(a: Any) -> Any:
    made = resilin.zeros_like(a)
    made[0] = a[1] * 2
    return made.add_(1)


def _cotangents(x: Any) -> Any:
    x = x.detach().requires_grad_()
    return resilin.autograd.grad(x.tanh() * x, x, resilin.eye(4, device=x.device), is_grads_batched=True)[0]


@pytest.mark.parametrize("name", RUNS)
def test_a_transform_gives_the_same(name: str, cuda: Any) -> None:
    on_cpu, on_cuda = (
        RUNS[name](resilin.tensor(X, device=where), resilin.tensor(PICKS, device=where)) for where in ("cpu", "cuda")
    )
    assert on_cuda.is_cuda
    np.testing.assert_allclose(on_cuda.cpu().numpy(), on_cpu.numpy(), rtol=1e-4, atol=1e-5)
