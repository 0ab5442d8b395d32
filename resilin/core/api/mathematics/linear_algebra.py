"""Linear algebra under PyTorch's names: what `resilin` and `resilin.linalg` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core import return_types
from resilin.core.api.manipulation import joining
from resilin.core.api.mathematics import arithmetic, products, reducing
from resilin.core.ops import creation, decompositions
from resilin.core.ops import einsum as einsum_ops
from resilin.core.ops import linalg as ops
from resilin.core.ops import shape as shape_ops
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap


def need_matrices(where: str, *tensors: Tensor, square: bool = False, whole: bool = False) -> None:
    """RuntimeError unless all are (batches of) matrices of one floating dtype of 32 or 64 bits; `square`: the first.

    With `whole`, integers will do, too.
    """
    for x in tensors:
        if not isinstance(x, Tensor):
            raise TypeError(f"{where}: expected a Tensor, got {type(x).__name__}")
        if x._array.ndim < 2:
            raise RuntimeError(f"{where}: the input must have at least 2 dimensions, got {x._array.ndim}")
        if not (whole and x._array.dtype.kind in "iu"):
            need_float(where, x)
        if x._array.dtype != tensors[0]._array.dtype:
            raise RuntimeError(f"{where}: expected tensors of one dtype, got {tensors[0].dtype} and {x.dtype}")
    rows, columns = tensors[0]._array.shape[-2:]
    if square and rows != columns:
        raise RuntimeError(f"{where}: expected square matrices, got {rows} by {columns} matrices")


def need_float(where: str, x: Tensor) -> None:
    """RuntimeError for integers and for 16-bit floats."""
    dtype = x._array.dtype
    if dtype.kind in "biu":
        raise RuntimeError(
            f"{where}: expected floating point or complex numbers, got {x.dtype}; convert it with .float()"
        )
    if dtype.itemsize == 2:
        raise RuntimeError(f"{where}: 16-bit floats are not supported, got {x.dtype}; convert it with .float()")


def det(input: Tensor) -> Tensor:
    """The determinants of square matrices (*, n, n): shape (*). The gradient exists for singular ones, too."""
    need_matrices("linalg.det", input, square=True)
    return ops.det.call(input)


def slogdet(input: Tensor) -> return_types.slogdet:
    """(sign, logabsdet) of determinants: the sign is 0, and the logarithm -inf, where the matrix is singular."""
    need_matrices("linalg.slogdet", input, square=True)
    return return_types.slogdet(ops.slogdet.call(input))


def logdet(input: Tensor) -> Tensor:
    """log(det(input)); NaN where the determinant is negative, -inf where it is 0."""
    sign, logabs = slogdet(input)
    if input.is_complex():
        return logabs + arithmetic.log(sign)
    return logabs.masked_fill(arithmetic.lt(sign, 0), float("nan"))


def inverse(input: Tensor) -> Tensor:
    """The inverses of square matrices. LinAlgError names the first singular one of the batch."""
    need_matrices("linalg.inv", input, square=True)
    return ops.inv.call(input)


def pinverse(input: Tensor, rcond: float = 1e-15) -> Tensor:
    """The pseudo-inverse; singular values up to rcond times the largest count as 0."""
    need_matrices("pinverse", input)
    return ops.pinv.call(input, rcond, 0.0)


def matrix_exp(input: Tensor) -> Tensor:
    """The matrix exponentials of square matrices."""
    need_matrices("linalg.matrix_exp", input, square=True)
    return ops.matrix_exp.call(input)


def matrix_power(input: Tensor, n: int) -> Tensor:
    """The n-th power of square matrices, by repeated squaring; of the inverse for negative n, of floats only."""
    need_matrices("linalg.matrix_power", input, square=True, whole=n >= 0)
    if n < 0:
        return matrix_power(inverse(input), -n)
    if n == 0:
        eye = np.eye(input._array.shape[-1], dtype=input._array.dtype)
        return wrap(input._dev.xp.broadcast_to(eye, input._array.shape).copy(), input._dev)
    result: Tensor | None = None
    square = input
    while True:
        if n & 1:
            result = square if result is None else products.matmul(result, square)
        n >>= 1
        if not n:
            return result if result is not input else input.clone()  # type: ignore[return-value]
        square = products.matmul(square, square)


def cholesky(input: Tensor, upper: bool = False) -> Tensor:
    """Lower L with L @ L^H = input (or upper U with U^H @ U), of Hermitian positive definite matrices.

    Only one triangle is read: the lower, or with `upper` the upper one. LinAlgError names the first bad matrix.
    """
    need_matrices("linalg.cholesky", input, square=True)
    factor = ops.cholesky.call(input.mH if upper else input)
    return factor.mH if upper else factor


def cholesky_inverse(input: Tensor, upper: bool = False) -> Tensor:
    """inv(A) for the Cholesky factor `input` of A."""
    need_matrices("cholesky_inverse", input, square=True)
    eye = wrap(input._dev.xp.eye(input._array.shape[-1], dtype=input._array.dtype), input._dev)
    return cholesky_solve(eye, input, upper)


def cholesky_solve(input: Tensor, input2: Tensor, upper: bool = False) -> Tensor:
    """X with A X = input, for the Cholesky factor `input2` of A."""
    need_matrices("cholesky_solve", input2, input, square=True)
    factor = input2.mH if upper else input2
    y = ops.solve_triangular.call(factor, input, False, False)
    return ops.solve_triangular.call(factor.mH, y, True, False)


def qr(input: Tensor, some: bool = True) -> return_types.qr:
    """The old form of `linalg.qr`: reduced if `some`, else complete."""
    need_matrices("qr", input)
    return return_types.qr(decompositions.qr.call(input, not some))


def svd(input: Tensor, some: bool = True, compute_uv: bool = True) -> return_types.svd:
    """The old form of `linalg.svd`: reduced if `some`, V and not its adjoint; without `compute_uv` U and V are 0."""
    need_matrices("svd", input)
    if not compute_uv:
        m, n = input._array.shape[-2:]
        batch = input._array.shape[:-2]
        left, right = input.new_zeros(*batch, m, m), input.new_zeros(*batch, n, n)
        return return_types.svd((left, decompositions.svdvals.call(input), right))
    u, s, vh = decompositions.svd.call(input, not some)
    return return_types.svd((u, s, vh.mH))


def cross(input: Tensor, other: Tensor, dim: int | None = None) -> Tensor:
    """The cross product along `dim`, of length 3; the first such dimension when None. Other dimensions broadcast."""
    if dim is None:
        shape = _common("linalg.cross", input, other)
        dim = next((i - len(shape) for i, n in enumerate(shape) if n == 3), None)
        if dim is None:
            raise RuntimeError(f"cross: no dimension of length 3 in input, which has shape {tuple(shape)}")
    return linalg_cross(input, other, dim=dim)


def _common(where: str, input: Tensor, other: Tensor) -> tuple[int, ...]:
    """The shape that both broadcast to."""
    try:
        return np.broadcast_shapes(input._array.shape, other._array.shape)
    except ValueError:
        raise RuntimeError(
            f"{where}: the shapes {tuple(input.shape)} and {tuple(other.shape)} cannot be broadcast: counted from the "
            "right, lengths must be equal or 1"
        ) from None


def linalg_cross(input: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product along `dim`, of length 3; other dimensions broadcast."""
    if input._array.ndim != other._array.ndim:
        raise RuntimeError(
            f"linalg.cross: inputs must have the same number of dimensions, got {input.dim()} and {other.dim()}"
        )
    axis = check_dim(dim, input._array.ndim)
    if input._array.shape[axis] != 3 or other._array.shape[axis] != 3:
        raise RuntimeError(
            f"linalg.cross: dimension {dim} must have length 3 in both, got {input.shape[axis]} and {other.shape[axis]}"
        )
    _common("linalg.cross", input, other)
    kind = dtypes.promote_np(input._array.dtype, other._array.dtype)
    x, y = (v if v._array.dtype == kind else shape_ops.astype.call(v, kind) for v in (input, other))
    if axis == input._array.ndim - 1:
        return ops.cross.call(x, y)
    return ops.cross.call(x.movedim(axis, -1), y.movedim(axis, -1)).movedim(-1, axis)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Sums of products over `dims`: the last of `a` with the first of `b`, or two lists of dimensions."""
    x, y = a._array.ndim, b._array.ndim
    if isinstance(dims, int) and not 0 <= dims <= min(x, y):
        raise RuntimeError(f"tensordot(): expected dims from 0 to {min(x, y)}, the fewer dimensions, got dims={dims}")
    left, right = (list(range(x - dims, x)), list(range(dims))) if isinstance(dims, int) else map(list, dims)
    if len(left) != len(right):
        raise RuntimeError(f"tensordot(): both lists of dims need one length, got {left} and {right}")
    left, right = [check_dim(d, x) for d in left], [check_dim(d, y) for d in right]
    for i, j in zip(left, right, strict=True):
        n, m = a._array.shape[i], b._array.shape[j]
        if n != m and 1 not in (n, m):
            raise RuntimeError(
                f"tensordot(): dimension {i} of the first tensor {tuple(a._array.shape)} has {n} elements, dimension "
                f"{j} of the second {tuple(b._array.shape)} has {m}; contracted dimensions must be equal"
            )
    letters = "abcdefghijklmnopqrstuvwxyz"
    first = list(letters[:x])
    second = list(letters[x : x + y])
    for i, j in zip(left, right, strict=True):
        second[j] = first[i]
    out = [c for i, c in enumerate(first) if i not in left] + [c for j, c in enumerate(second) if j not in right]
    return einsum_ops.einsum_terms.call((a, b), ("".join(first), "".join(second)), "".join(out))


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Sums of products over the last dimensions; a product where one is a single number."""
    if input._array.ndim == 0 or other._array.ndim == 0:
        return input * other
    if input._array.ndim == other._array.ndim == 1 and input._array.size == other._array.size:
        return products.dot(input, other)
    return tensordot(input, other, ([-1], [-1]))


def kron(input: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product: every element of `input` times the whole of `other`."""
    ndim = max(input._array.ndim, other._array.ndim)
    if input._array.ndim == other._array.ndim == 1:
        vectors = shape_ops.reshape.call(input, (input._array.size, 1)) * other
        return shape_ops.reshape.call(vectors, (vectors._array.size,))
    a, b = ((1,) * (ndim - x._array.ndim) + x._array.shape for x in (input, other))
    left = shape_ops.reshape.call(input, tuple([part for n in a for part in (n, 1)]))
    right = shape_ops.reshape.call(other, tuple([part for n in b for part in (1, n)]))
    product = left * right
    return shape_ops.reshape.call(product, tuple([n * m for n, m in zip(a, b, strict=True)]))


def ger(input: Tensor, vec2: Tensor) -> Tensor:
    """The outer product of two vectors."""
    if input._array.ndim != 1 or vec2._array.ndim != 1:
        raise RuntimeError(f"outer: expected two vectors, got {input.dim()}D and {vec2.dim()}D tensors")
    return products.outer(input, vec2)


def vander(x: Tensor, N: int | None = None, *, increasing: bool = False) -> Tensor:
    """The powers of a vector's elements, one row each: the highest first, or last when `increasing`."""
    if x._array.ndim != 1:
        raise RuntimeError(f"vander: expected a vector, got a tensor of {x.dim()} dimensions")
    powers = linalg_vander(x, N=N) if N != 0 else linalg_vander(x, N=1)[:, :0]
    return powers if increasing else powers.flip(-1)


def linalg_vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """The powers 0 to N - 1 (as many as elements by default) of each element: shape (*, n, N); a number is a vector."""
    x = x if x._array.ndim else x.reshape(1)
    columns = x._array.shape[-1] if N is None else N
    if columns < 1:
        raise RuntimeError(f"linalg.vander: N must be at least 1, got {columns}")
    x = x.to(dtypes.int64) if x._array.dtype.kind in "biu" else x
    once = x.unsqueeze(-1)
    rows = creation.shape_of((*x._array.shape, columns - 1))
    return joining.cat([x.new_ones(*x._array.shape, 1), once.expand(rows).cumprod(-1)], -1)


def chain_matmul(*matrices: Tensor) -> Tensor:
    """The product of matrices, in the order that needs the fewest multiplications."""
    return multi_dot(matrices)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of two or more matrices in the cheapest order; the first and the last may be vectors."""
    values = list(tensors)
    if len(values) < 2:
        raise RuntimeError(f"linalg.multi_dot: expected at least 2 tensors, got {len(values)}")
    first, last = values[0]._array.ndim == 1, values[-1]._array.ndim == 1
    values[0] = values[0].unsqueeze(0) if first else values[0]
    values[-1] = values[-1].unsqueeze(1) if last else values[-1]
    for i, x in enumerate(values):
        if x._array.ndim != 2:
            raise RuntimeError(f"linalg.multi_dot: tensor {i} must be a matrix, got {x.dim()} dimensions")
    sizes = [values[0]._array.shape[0], *(x._array.shape[1] for x in values)]
    result = _multiply(values, _cheapest(sizes), 0, len(values) - 1)
    if first:
        result = result.squeeze(0)
    return result.squeeze(-1) if last else result


def _cheapest(sizes: list[int]) -> dict[tuple[int, int], int]:
    """For every run (i, j) of matrices sizes[i] x sizes[i + 1], ...: after which one to split it."""
    n = len(sizes) - 1
    cost: dict[tuple[int, int], int] = {(i, i): 0 for i in range(n)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            costs = [cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)]
            cost[i, j] = min(costs)
            split[i, j] = i + costs.index(cost[i, j])
    return split


def _multiply(values: list[Tensor], split: dict[tuple[int, int], int], i: int, j: int) -> Any:
    if i == j:
        return values[i]
    k = split[i, j]
    return products.matmul(_multiply(values, split, i, k), _multiply(values, split, k + 1, j))


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """sum(conj(x) * y) over `dim`; other dimensions broadcast."""
    return reducing.sum(arithmetic.conj(x) * y, dim)
