"""Products of matrices and vectors with PyTorch's names and arguments."""

from __future__ import annotations

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.mathematics.arithmetic import conj
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.ops import matmul as products
from resilin.core.ops import shape as shape_ops
from resilin.core.tensor import Tensor, wrap


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """The matrix product; leading dimensions broadcast, one-dimensional tensors are vectors."""
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        raise TypeError(f"matmul(): expected two Tensors, got {type(input).__name__} and {type(other).__name__}")
    a, b = input._array, other._array
    if a.dtype is not b.dtype and a.dtype != b.dtype:
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {input.dtype} != {other.dtype}")
    if a.dtype.kind == "b":
        raise NotImplementedError('matmul: not implemented for "Bool" tensors; convert them, e.g. to int64')
    if not a.ndim or not b.ndim:
        raise RuntimeError(
            f"matmul: both arguments need at least one dimension, got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise RuntimeError(
            f"matmul: shapes {tuple(a.shape)} and {tuple(b.shape)} cannot be multiplied: the last dimension of the "
            "first must equal the last but one of the second"
        )
    return products.matmul.call(input, other)


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """The product of two matrices."""
    if input._array.ndim != 2 or mat2._array.ndim != 2:
        raise RuntimeError(f"mm: expected two matrices, got {input.dim()}D and {mat2.dim()}D tensors")
    return matmul(input, mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """The products of two batches of matrices."""
    if input._array.ndim != 3 or mat2._array.ndim != 3 or input._array.shape[0] != mat2._array.shape[0]:
        raise RuntimeError(f"bmm: expected equal batches of matrices, got {tuple(input.shape)} and {tuple(mat2.shape)}")
    return matmul(input, mat2)


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    if input._array.ndim != 2 or vec._array.ndim != 1:
        raise RuntimeError(f"mv: expected a matrix and a vector, got {input.dim()}D and {vec.dim()}D tensors")
    return matmul(input, vec)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The inner product of two vectors."""
    if input._array.ndim != 1 or tensor._array.ndim != 1:
        raise RuntimeError(f"1D tensors expected, but got {input.dim()}D and {tensor.dim()}D tensors")
    return matmul(input, tensor)


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The inner product of two vectors, the first conjugated."""
    return dot(conj(input), other)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """The outer product of two vectors."""
    if input._array.ndim != 1 or vec2._array.ndim != 1:
        raise RuntimeError(f"outer: expected 1-D arguments, got {input.dim()}-D and {vec2.dim()}-D")
    return shape_ops.reshape.call(input, (input._array.size, 1)) * vec2


@rounded_once
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2)."""
    return scaled_sum("addmm", input, beta, mm(mat1, mat2), alpha)


def scaled_sum(where: str, input: Tensor, beta: float, product: Tensor, alpha: float) -> Tensor:
    """beta * input + alpha * product, of the product's shape. What a factor of 0 is for (even NaN) does not count.

    Among integers the factors are integers too, and among booleans booleans: rounded towards 0, as in PyTorch.
    """
    own, shape = input._array.shape, product._array.shape
    if own == shape and beta == 1 and alpha == 1:
        return input + product
    if len(own) > len(shape) or any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
        raise RuntimeError(
            f"{where}(): input of shape {tuple(own)} does not broadcast to the shape {tuple(shape)} of the product"
        )
    kind = product._array.dtype
    if kind.kind == "b":
        beta, alpha = bool(beta), bool(alpha)
    elif kind.kind in "iu":
        beta, alpha = (dtypes.number_for(where, int(factor), kind) for factor in (beta, alpha))
    return _times(input, beta) + _times(product, alpha)


def _times(x: Tensor, factor: float) -> Tensor:
    if factor == 0:
        return x.masked_fill(wrap(x._dev.xp.ones((), np.bool_), x._dev), 0)
    return x if factor == 1 else x * factor


@rounded_once
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * input + alpha * bmm(batch1, batch2)."""
    return scaled_sum("baddbmm", input, beta, bmm(batch1, batch2), alpha)
