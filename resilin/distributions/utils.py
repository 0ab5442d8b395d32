"""What distributions share: broadcasting of parameters, probabilities and their logits, triangles as vectors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from numbers import Number
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import rearranging
from resilin.core.api.nn import neural
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.ops import creation, random
from resilin.core.tensor import Tensor

euler_constant = 0.57721566490153286060

__all__ = [
    "broadcast_all",
    "clamp_probs",
    "lazy_property",
    "logits_to_probs",
    "probs_to_logits",
    "tril_matrix_to_vec",
    "vec_to_tril_matrix",
]


def is_number(value: Any) -> bool:
    """Whether a parameter was given as a number rather than as a tensor."""
    return isinstance(value, Number) and not isinstance(value, Tensor)


def all_numbers(*values: Any) -> bool:
    """Whether all parameters were given as numbers: such a distribution has no batch."""
    return all(is_number(value) for value in values)


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors of one shape; numbers get dtype and device of the first tensor, or are of the default dtype.

    Raises: ValueError for what is neither a number nor a tensor.
    """
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not all(isinstance(value, Tensor) or is_number(value) for value in values):
        kinds = ", ".join(type(value).__name__ for value in values)
        raise ValueError(f"Input arguments must all be instances of Number or resilin.Tensor, got {kinds}")
    if len(tensors) < len(values):
        dtype, device = (tensors[0].dtype, tensors[0].device) if tensors else (dtypes.get_default_dtype(), None)
        values = tuple(v if isinstance(v, Tensor) else creation.tensor(v, dtype=dtype, device=device) for v in values)
    return tuple(rearranging.broadcast_tensors(*values))


def _standard_normal(shape: Sequence[int], dtype: Any, device: Any) -> Tensor:
    return random.randn(tuple(shape), dtype=dtype, device=device)


def uniform_like(tensor: Tensor, shape: Sequence[int], low: float = 0.0) -> Tensor:
    """Uniform numbers of [low, 1), of a tensor's dtype and device, in another shape."""
    return tensor.new_empty(tuple(shape)).uniform_(low, 1)


def full_of(tensor: Tensor, shape: Sequence[int], value: float) -> Tensor:
    """One number everywhere, of a tensor's dtype and device, in another shape."""
    return creation.full(tuple(shape), value, dtype=tensor.dtype, device=tensor.device)


def _sum_rightmost(value: Any, dim: int) -> Any:
    """The sum over the `dim` last dimensions."""
    return value if dim == 0 else value.reshape((*value.shape[:-dim], -1)).sum(-1)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities of log odds (`is_binary`), or of logarithms, normalized or not, along the last dimension."""
    return logits.sigmoid() if is_binary else neural.softmax(logits, dim=-1)


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities moved into (0, 1), by the smallest step of their dtype at 1."""
    eps = dtypes.finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """Log odds of probabilities (`is_binary`), or their logarithms."""
    clamped = clamp_probs(probs)
    return clamped.log() - (-clamped).log1p() if is_binary else clamped.log()


class lazy_property(property):
    """A property that is computed once, with gradients, and is an attribute of the object from then on."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        super().__init__(wrapped)
        self.wrapped = wrapped
        functools.update_wrapper(self, wrapped)  # type: ignore[arg-type]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        name = self.wrapped.__name__
        if name not in instance.__dict__:
            with enable_grad():
                instance.__dict__[name] = self.wrapped(instance)
        return instance.__dict__[name]

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.wrapped.__name__] = value


def tril_matrix_to_vec(mat: Tensor, diag: int = 0) -> Tensor:
    """The lower triangles of square matrices, up to diagonal `diag`, row by row."""
    return mat[..., _lower(mat.shape[-1], diag, mat)]


def vec_to_tril_matrix(vec: Tensor, diag: int = 0) -> Tensor:
    """Lower triangular matrices of what `tril_matrix_to_vec` gives. ValueError for a length that is of no triangle."""
    count = vec.shape[-1]
    size = 0
    while _entries(size, diag) < count:
        size += 1
    if _entries(size, diag) != count:
        raise ValueError(
            f"The size of last dimension is {count} which cannot be expressed as the lower triangular part of a "
            "square D x D matrix."
        )
    mat = vec.new_zeros((*vec.shape[:-1], size, size))
    mat[..., _lower(size, diag, vec)] = vec
    return mat


def _entries(size: int, diag: int) -> int:
    return sum(min(max(row + diag + 1, 0), size) for row in range(size))


def _lower(size: int, diag: int, like: Tensor) -> Tensor:
    places = creation.arange(size, device=like.device)
    lower: Tensor = places < places.view(-1, 1) + (diag + 1)
    return lower
