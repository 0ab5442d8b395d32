"""Transforms of vectors and matrices, and of parts of tensors by one transform each."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import joining
from resilin.core.api.nn import activations, neural
from resilin.core.ops import creation
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor
from resilin.distributions import constraints
from resilin.distributions.elementwise_transforms import _same_kind, clipped_sigmoid
from resilin.distributions.transform import Transform
from resilin.distributions.utils import _sum_rightmost, lazy_property, tril_matrix_to_vec, vec_to_tril_matrix
from resilin.linalg import cholesky

Shape = Sequence[int]


def _before(x: Tensor) -> Tensor:
    """Each element moved one place on along the last dimension, behind a 1."""
    return neural.pad(x[..., :-1], [1, 0], value=1)


class CorrCholeskyTransform(Transform):
    """A vector of D (D - 1) / 2 numbers to the Cholesky factor of a correlation matrix of D variables.

    The numbers fill the triangle row by row; tanh of each is the partial correlation that breaks what is left of the
    row's unit length.
    """

    domain = constraints.real_vector
    codomain = constraints.corr_cholesky
    bijective = True

    def _call(self, x: Tensor) -> Tensor:
        eps = dtypes.finfo(x.dtype).eps
        r = vec_to_tril_matrix(x.tanh().clamp(min=-1 + eps, max=1 - eps), diag=-1)
        left = (1 - r.square()).sqrt().cumprod(-1)
        r = r + creation.eye(r.shape[-1], dtype=r.dtype, device=r.device)
        return r * _before(left)

    def _inverse(self, y: Tensor) -> Tensor:
        left = _before(1 - (y * y).cumsum(-1))
        t = tril_matrix_to_vec(y, diag=-1) / tril_matrix_to_vec(left, diag=-1).sqrt()
        return (t.log1p() - t.neg().log1p()) / 2

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |det dy/dx| of each vector."""
        left = tril_matrix_to_vec(1 - (y * y).cumsum(-1), diag=-2)
        of_tanh = -2 * (x + neural.softplus(-2 * x) - math.log(2.0)).sum(-1)
        return 0.5 * left.log().sum(-1) + of_tanh

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        if len(shape) < 1:
            raise ValueError("Too few dimensions on input")
        size = round((0.25 + 2 * shape[-1]) ** 0.5 + 0.5)
        if size * (size - 1) // 2 != shape[-1]:
            raise ValueError("Input is not a flattened lower-diagonal number")
        return Size((*shape[:-1], size, size))

    def inverse_shape(self, shape: Shape) -> Any:
        """The shape of x, of that of y."""
        if len(shape) < 2:
            raise ValueError("Too few dimensions on input")
        if shape[-2] != shape[-1]:
            raise ValueError("Input is not square")
        return Size((*shape[:-2], shape[-1] * (shape[-1] - 1) // 2))


class SoftmaxTransform(Transform):
    """y = exp(x) / sum(exp(x)). It is not bijective: its inverse gives log(y)."""

    domain = constraints.real_vector
    codomain = constraints.simplex
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        return neural.softmax(x, dim=-1)

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        if len(shape) < 1:
            raise ValueError("Too few dimensions on input")
        return shape

    inverse_shape = forward_shape


class StickBreakingTransform(Transform):
    """K - 1 numbers to K probabilities: each, by the logistic function, is the share of what is left of a stick."""

    domain = constraints.real_vector
    codomain = constraints.simplex
    bijective = True
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        z = clipped_sigmoid(x - _pieces_left(x, x.shape[-1]).log())
        return neural.pad(z, [0, 1], value=1) * neural.pad((1 - z).cumprod(-1), [1, 0], value=1)

    def _inverse(self, y: Tensor) -> Tensor:
        first = y[..., :-1]
        left = (1 - first.cumsum(-1)).clamp(min=dtypes.finfo(y.dtype).tiny)
        return first.log() - left.log() + _pieces_left(y, y.shape[-1] - 1).log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |det dy/dx| of each vector."""
        x = x - _pieces_left(x, x.shape[-1]).log()
        return (-x + activations.logsigmoid(x) + y[..., :-1].log()).sum(-1)

    def forward_shape(self, shape: Shape) -> Any:
        """The shape of y, of that of x."""
        return self._longer(shape, 1)

    def inverse_shape(self, shape: Shape) -> Any:
        """The shape of x, of that of y."""
        return self._longer(shape, -1)

    @staticmethod
    def _longer(shape: Shape, by: int) -> Size:
        if len(shape) < 1:
            raise ValueError("Too few dimensions on input")
        return Size((*shape[:-1], shape[-1] + by))


def _pieces_left(like: Tensor, count: int) -> Tensor:
    """count, ..., 2, 1."""
    return creation.arange(count, 0, -1, dtype=like.dtype, device=like.device)


class LowerCholeskyTransform(Transform):
    """Square matrices to lower triangular ones with a positive diagonal: exp of x's."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.lower_cholesky
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        return x.tril(-1) + x.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.tril(-1) + y.diagonal(dim1=-2, dim2=-1).log().diag_embed()


class PositiveDefiniteTransform(Transform):
    """Square matrices to positive definite ones, by the Cholesky factor."""

    domain = constraints.independent(constraints.real, 2)
    codomain = constraints.positive_definite
    __eq__ = _same_kind

    def _call(self, x: Tensor) -> Tensor:
        factor: Tensor = LowerCholeskyTransform()(x)
        return factor @ factor.mT

    def _inverse(self, y: Tensor) -> Any:
        return LowerCholeskyTransform().inv(cholesky(y))


class _SeveralTransforms(Transform):
    """One transform for each part along a dimension."""

    def __init__(self, tseq: Sequence[Transform], dim: int, cache_size: int) -> None:
        assert all(isinstance(t, Transform) for t in tseq), "All elements of tseq must be Transform instances"
        super().__init__(cache_size=cache_size)
        self.transforms = [t.with_cache(cache_size) for t in tseq] if cache_size else list(tseq)
        self.dim = dim

    def _parts(self, x: Tensor) -> list[Tensor]:
        raise NotImplementedError

    def _joined(self, parts: list[Tensor]) -> Tensor:
        raise NotImplementedError

    def _cut(self, x: Tensor, length: int) -> None:
        assert -x.dim() <= self.dim < x.dim(), f"dim {self.dim} out of range for tensor with {x.dim()} dimensions"
        assert x.size(self.dim) == length, f"x.size({self.dim}) = {x.size(self.dim)} must equal length {length}"

    def _call(self, x: Tensor) -> Tensor:
        return self._joined([t(part) for t, part in zip(self.transforms, self._parts(x), strict=True)])

    def _inverse(self, y: Tensor) -> Tensor:
        return self._joined([t.inv(part) for t, part in zip(self.transforms, self._parts(y), strict=True)])

    @property
    def bijective(self) -> bool:
        """Whether all parts are."""
        return all(t.bijective for t in self.transforms)


class CatTransform(_SeveralTransforms):
    """Transforms of parts of `lengths` along a dimension, as `cat` joins them."""

    def __init__(
        self, tseq: Sequence[Transform], dim: int = 0, lengths: Sequence[int] | None = None, cache_size: int = 0
    ) -> None:
        super().__init__(tseq, dim, cache_size)
        self.lengths = [1] * len(self.transforms) if lengths is None else list(lengths)
        assert len(self.lengths) == len(self.transforms), (
            f"lengths ({len(self.lengths)}) must match transforms ({len(self.transforms)})"
        )

    def _arguments(self) -> tuple[Any, ...]:
        return self.transforms, self.dim, self.lengths

    @lazy_property
    def event_dim(self) -> int:
        """The largest of the parts."""
        return max(t.event_dim for t in self.transforms)

    @lazy_property
    def length(self) -> int:
        """Of all parts together."""
        return sum(self.lengths)

    def _parts(self, x: Tensor) -> list[Tensor]:
        self._cut(x, self.length)
        starts = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        return [x.narrow(self.dim, start, length) for start, length in zip(starts, self.lengths, strict=True)]

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return joining.cat(parts, dim=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Those of the parts, joined, or added where `dim` belongs to an event."""
        terms = [
            _sum_rightmost(t.log_abs_det_jacobian(before, after), self.event_dim - t.event_dim)
            for t, before, after in zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        ]
        dim = (self.dim - x.dim() if self.dim >= 0 else self.dim) + self.event_dim
        return joining.cat(terms, dim=dim) if dim < 0 else functools.reduce(operator.add, terms)

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.cat([t.domain for t in self.transforms], self.dim, self.lengths)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.cat([t.codomain for t in self.transforms], self.dim, self.lengths)


class StackTransform(_SeveralTransforms):
    """Transforms of parts along a dimension, as `stack` joins them."""

    def __init__(self, tseq: Sequence[Transform], dim: int = 0, cache_size: int = 0) -> None:
        super().__init__(tseq, dim, cache_size)

    def _arguments(self) -> tuple[Any, ...]:
        return self.transforms, self.dim

    def _parts(self, x: Tensor) -> list[Tensor]:
        self._cut(x, len(self.transforms))
        return [x.select(self.dim, i) for i in range(x.size(self.dim))]

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return joining.stack(parts, dim=self.dim)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """Those of the parts, stacked."""
        pairs = zip(self.transforms, self._parts(x), self._parts(y), strict=True)
        return self._joined([t.log_abs_det_jacobian(before, after) for t, before, after in pairs])

    @constraints.dependent_property
    def domain(self) -> Any:
        return constraints.stack([t.domain for t in self.transforms], self.dim)

    @constraints.dependent_property
    def codomain(self) -> Any:
        return constraints.stack([t.codomain for t in self.transforms], self.dim)
