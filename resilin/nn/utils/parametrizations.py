"""Parametrizations of weights: spectral norm, weight norm, orthogonal matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from resilin.core.api.manipulation.joining import cat
from resilin.core.api.mathematics import linear_algebra
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.nn.neural import normalize, widened
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation
from resilin.core.tensor import Tensor, wrap
from resilin.nn.modules.module import Module
from resilin.nn.utils.parametrize import register_parametrization

_START_ITERATIONS = 15  # of the power method, before the first forward, as in PyTorch


@rounded_once
def divided_by_norm(weight: Tensor, matrix: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """`weight` divided by u @ matrix @ v, the largest singular value of it as `matrix` where these are its vectors."""
    sigma = (u.clone() * matrix.mv(v.clone())).sum()  # clones: a second forward may come before backward
    divided: Tensor = weight / sigma
    return divided


class _WeightNorm(Module):
    """original0 * original1 / norm(original1), with norms over all dimensions but `dim`."""

    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim
        self._whole = self.dim == -1

    def _norm(self, weight: Tensor) -> Tensor:
        square = weight.square()
        if self._whole:
            whole: Tensor = square.sum().sqrt()
            return whole
        others = [dim for dim in range(weight.dim()) if dim != self.dim]
        total: Tensor = square.sum(others, keepdim=True).sqrt() if others else weight.abs()
        return total

    @rounded_once
    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """See the class."""
        return weight_v * (weight_g / self._norm(weight_v))

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The lengths and the weight itself."""
        return self._norm(weight), weight


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Length and direction of each slice of a weight along `dim` become parameters of their own.

    They are parametrizations.<name>.original0 (lengths) and original1 (direction). dim None: one length for all.
    """
    register_parametrization(module, name, _WeightNorm(dim), unsafe=True)
    return module


class _SpectralNorm(Module):
    """weight / sigma, with sigma its largest singular value, followed by the power method in training."""

    def __init__(self, weight: Tensor, n_power_iterations: int, dim: int, eps: float) -> None:
        super().__init__()
        if not -weight.dim() <= dim < weight.dim():
            raise IndexError(f"spectral_norm: dim={dim} is out of range for a weight of {weight.dim()} dimensions")
        if n_power_iterations <= 0:
            raise ValueError(f"spectral_norm: n_power_iterations must be positive, got {n_power_iterations}")
        self.dim = dim % weight.dim()
        self.n_power_iterations = n_power_iterations
        self.eps = eps
        if weight.dim() > 1:
            matrix = self._matrix(weight.detach())
            for vector, size in zip(("_u", "_v"), matrix.shape, strict=True):
                start = creation.zeros(size, dtype=weight.dtype, device=weight.device).normal_()
                self.register_buffer(vector, normalize(start, dim=0, eps=eps))
            self._follow(matrix, _START_ITERATIONS)

    def _matrix(self, weight: Tensor) -> Tensor:
        flat: Tensor = weight.movedim(self.dim, 0).flatten(1)
        return flat

    def _follow(self, matrix: Tensor, times: int) -> None:
        with no_grad():
            wide = widened(matrix)
            for _ in range(times):
                self._u.copy_(normalize(wide.mv(widened(self._v)), dim=0, eps=self.eps))
                self._v.copy_(normalize(wide.t().mv(widened(self._u)), dim=0, eps=self.eps))

    def forward(self, weight: Tensor) -> Tensor:
        """See the class."""
        if weight.dim() == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._follow(matrix.detach(), self.n_power_iterations)
        return divided_by_norm(weight, matrix, self._u, self._v)

    def right_inverse(self, value: Tensor) -> Tensor:
        """`value`: assigned as it is, and divided when it is read."""
        return value


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value, all dimensions but `dim` taken as one (Miyato et al., 2018).

    In training every read takes `n_power_iterations` steps of the power method. dim None: 0, and 1 for transposed
    convolutions, whose outputs lie there. Buffers: parametrizations.<name>.<number>._u and _v.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{type(module).__name__}' has no parameter or buffer with name '{name}'")
    if dim is None:
        dim = 1 if type(module).__name__.startswith("ConvTranspose") else 0
    register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, dim, eps))
    return module


class _Orthogonal(Module):
    """An orthogonal matrix from a free one; `base`, when there is one, is where the free matrix -1 leads."""

    def __init__(self, kind: str, use_trivialization: bool) -> None:
        super().__init__()
        self.kind = kind
        self.trivialized = use_trivialization
        if use_trivialization:
            self.register_buffer("base", None)

    def forward(self, X: Tensor) -> Tensor:
        """See the class."""
        wide = X.shape[-2] < X.shape[-1]
        if wide:
            X = X.transpose(-2, -1)
        Q = self._reflected(X) if self.kind == "householder" else self._rotated(X)
        if self.trivialized and self.base is not None:
            Q = self.base @ Q
        return Q.transpose(-2, -1) if wide else Q

    def _rotated(self, X: Tensor) -> Tensor:
        n, k = X.shape[-2:]
        X = X.tril()
        if n != k:
            X = cat([X, creation.zeros(*X.shape[:-2], n, n - k, dtype=X.dtype, device=X.device)], dim=-1)
        A = X - X.transpose(-2, -1)
        if self.kind == "matrix_exp":
            Q: Tensor = linear_algebra.matrix_exp(A)
        else:
            identity = creation.eye(n, dtype=X.dtype, device=X.device)
            Q = linear_algebra.inverse(identity - 0.5 * A) @ (identity + 0.5 * A)
        return Q[..., :k]

    def _reflected(self, X: Tensor) -> Tensor:
        n, k = X.shape[-2:]
        identity = creation.eye(n, k, dtype=X.dtype, device=X.device)
        V = X.tril(-1) + identity
        Q = identity
        for i in reversed(range(k)):
            v = V[..., i : i + 1]
            Q = Q - (2 / v.square().sum(-2, keepdim=True)) * v @ (v.transpose(-2, -1) @ Q)
        signs: Tensor = X.detach().diagonal(dim1=-2, dim2=-1).trunc().unsqueeze(-2)
        return Q * signs

    def right_inverse(self, Q: Tensor) -> Tensor:
        """The free matrix for `Q`, which is first made orthogonal; kept as `base` with use_trivialization."""
        if not self.trivialized and self.kind == "householder":
            return _reflections(Q)
        if not self.trivialized:
            raise NotImplementedError(
                "It is not possible to assign to the matrix exponential or the Cayley parametrizations when "
                "use_trivialization=False."
            )
        start = creation.zeros_like(Q)
        start._array[...] = -Q._dev.xp.eye(Q.shape[-2], Q.shape[-1])
        array = Q._dev.backend.to_host(Q._array).astype(np.float64)
        tall = array if array.shape[-2] >= array.shape[-1] else np.swapaxes(array, -2, -1)
        n, k = tall.shape[-2:]
        if n != k and self.kind != "householder":
            extra = creation.zeros(*tall.shape[:-1], n - k, dtype=Q.dtype).normal_()._array.astype(np.float64)
            tall = np.concatenate([tall, extra], -1)
        q, r = np.linalg.qr(tall, mode="complete")
        d = np.sign(np.diagonal(r, axis1=-2, axis2=-1))
        q[..., : d.shape[-1]] *= d[..., None, :]
        self.base = wrap(Q._dev.xp.asarray(q.astype(Q._array.dtype)), Q._dev)
        return start  # type: ignore[no-any-return]


def _reflections(Q: Tensor) -> Tensor:
    """The free matrix from which `_reflected` makes Q: vectors of reflections below the diagonal, signs on it."""
    array = Q._dev.backend.to_host(Q._array).astype(np.float64)
    wide = array.shape[-2] < array.shape[-1]
    raw, scales = np.linalg.qr(np.swapaxes(array, -2, -1) if wide else array, mode="raw")
    made = np.swapaxes(raw, -2, -1).copy()
    places = np.arange(made.shape[-1])
    signs = np.sign(made[..., places, places])
    made[..., places, places] = np.where(scales == 0, -signs, signs)  # LAPACK leaves such a reflection out, we cannot
    made = np.swapaxes(made, -2, -1) if wide else made
    return wrap(Q._dev.xp.asarray(made.astype(Q._array.dtype)), Q._dev)


def orthogonal(
    module: Module, name: str = "weight", orthogonal_map: str | None = None, *, use_trivialization: bool = True
) -> Module:
    """Keep a weight (..., n, k) orthogonal: Q^T Q = 1 for n >= k, else Q Q^T = 1.

    orthogonal_map: "matrix_exp" or "cayley" of a skew-symmetric matrix, or "householder" reflections; None: matrix_exp
    for square weights, else householder.
    use_trivialization: an orthogonal buffer `base` is multiplied in, so that the weight can be assigned
    (Lezcano-Casado, 2019).
    Raises: ValueError for unknown maps and weights of fewer than two dimensions; NotImplementedError for complex
    weights.
    """
    weight = getattr(module, name, None)
    if not isinstance(weight, Tensor):
        raise ValueError(f"Module '{type(module).__name__}' has no parameter or buffer with name '{name}'")
    if weight.dim() < 2:
        raise ValueError(f"Expected a matrix or batch of matrices. Got a tensor of {weight.dim()} dimensions.")
    kind: Any = orthogonal_map or ("matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder")
    if kind not in ("matrix_exp", "cayley", "householder"):
        raise ValueError(f'orthogonal_map has to be one of "matrix_exp", "cayley", "householder". Got: {kind}')
    if weight.is_complex():
        raise NotImplementedError("orthogonal: supported are real weights")
    register_parametrization(module, name, _Orthogonal(kind, use_trivialization), unsafe=True)
    return module
