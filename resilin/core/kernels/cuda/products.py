"""Products of matrices by cuBLASLt: what it is told of shapes and strides is found once for each of them, and kept.

A vector that belongs to a product goes with it: a linear layer's bias is added where the product is written, and the
bias's gradient is summed where the weight's is multiplied. 16-bit floats are multiplied as they are, summed in float32
and rounded once. `xp` is the namespace of `backends/cupy.py`; functions give None for what cuBLASLt does not do.
"""

# M rows, N columns, K depth; x_MK @ y_KN

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from resilin.core import float32_matmul
from resilin.core.kernels.cuda.elementwise import joined, stretched, strides_of

PLAIN, RELU, BIAS, GELU, COLUMN_SUMS = 1, 2, 4, 32, 512  # cublasLtEpilogue_t; the last is BGRADB
PLANS = 4096  # that are remembered
BATCHES = 65_535  # of one product at most: cuBLASLt's limit
LONGEST = (1 << 31) - 1  # rows or columns of a matrix at most

# dtype -> (cudaDataType_t, cublasComputeType_t, type of the scale); sums of 16-bit floats are float32
_KINDS = {"f": (0, 68, 0), "d": (1, 70, 1), "e": (2, 68, 0), "E": (14, 68, 0)}
_TF32 = (0, 77, 0)
_REDUCTIONS, _REDUCTIONS_IN_FLOAT32 = 7, 2  # how parts of a deep product are added: any way; not in 16 bits

Matrix = tuple[int, int, int, bool, int]  # as cuBLASLt counts, by columns: rows, columns, leading, transposed, batch's


class Product:
    """The plan of a product, and what has to be done to its operands before."""

    __slots__ = ("copied", "run", "shape")

    def __init__(self, run: Any, shape: tuple[int, ...], copied: tuple[bool, bool]) -> None:
        self.run, self.shape, self.copied = run, shape, copied


def matmul(xp: Any, x: Any, y: Any, out: Any = None) -> Any:
    """x @ y for arrays of one dtype, written into `out` where that is given; vectors as `numpy.matmul` takes them."""
    if x.ndim > 1 and y.ndim > 1:
        return _multiply(xp, x, y, PLAIN, None, out)
    if not x.ndim or not y.ndim or out is not None:
        return None
    made = _multiply(xp, x[None] if x.ndim == 1 else x, y[:, None] if y.ndim == 1 else y, PLAIN, None)
    if made is None:
        return None
    lead = made.shape[:-2] + (() if x.ndim == 1 else made.shape[-2:-1])
    return made.reshape(lead + (() if y.ndim == 1 else made.shape[-1:]))


def linear(xp: Any, x: Any, w: Any, bias: Any, activation: int = 0) -> Any:
    """x @ w.T + bias in one launch; `activation` RELU, or GELU in its tanh form, is applied before it is rounded.

    x (M, K), w (N, K), bias (N) or None.
    """
    if bias is None:
        return _multiply(xp, x, w.T, activation or PLAIN, None)
    if bias.dtype != x.dtype or bias.shape != w.shape[:1] or not bias.flags.c_contiguous:
        return None
    return _multiply(xp, x, w.T, BIAS | activation, bias)


def weight_gradients(xp: Any, g: Any, x: Any) -> Any:
    """(g.T @ x, the sum of g over its rows) in one launch, for g (M, N) and x (M, K)."""
    sums = xp.empty(g.shape[1], g.dtype)
    product = _multiply(xp, g.T, x, COLUMN_SUMS, sums)
    return None if product is None else (product, sums)


def _multiply(xp: Any, x: Any, y: Any, epilogue: int, vector: Any, out: Any = None) -> Any:
    driver = xp.driver
    if driver is None or driver.products is None:
        return None
    into = None if out is None else (out.shape, out.strides, out.dtype.char)
    kinds = x.dtype.char + y.dtype.char
    key = (x.shape, x.strides, y.shape, y.strides, kinds, epilogue, float32_matmul.allows_tf32(), into)
    plans = xp.plans
    try:
        plan = plans[key]
    except KeyError:
        if len(plans) >= PLANS:
            plans.clear()
        plan = plans[key] = _plan(driver.products, x, y, epilogue, out)
    if plan is None:
        return None
    if plan.copied[0]:
        x = xp.ascontiguousarray(x)
    if plan.copied[1]:
        y = xp.ascontiguousarray(y)
    made = xp.empty(plan.shape, x.dtype) if out is None else out
    return made if plan.run(y, x, made, vector) else None  # by columns, the product is y.T @ x.T


def _plan(products: Any, x: Any, y: Any, epilogue: int, out: Any) -> Product | None:
    kind = x.dtype.char
    if kind not in _KINDS or y.dtype.char != kind or x.shape[-1] != y.shape[-2]:
        return None
    try:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    except ValueError:
        return None
    shape = (*batch, x.shape[-2], y.shape[-1])
    if not x.size or not y.size or not math.prod(shape) or max(*x.shape, *y.shape) > LONGEST:
        return None
    if out is not None and (out.shape != shape or out.dtype.char != kind):
        return None
    (x_steps, x_copied), (y_steps, y_copied) = _readable(x), _readable(y)
    found = _laid_out(
        (x.shape, x_steps), (y.shape, y_steps), (shape, _dense(shape) if out is None else strides_of(out))
    )
    if found is None:
        return None
    count, matrices = found
    kinds = _TF32 if kind == "f" and float32_matmul.allows_tf32() else _KINDS[kind]
    reductions = _REDUCTIONS_IN_FLOAT32 if x.dtype.itemsize == 2 else _REDUCTIONS
    of_x, of_y, made = matrices
    run = products.plan(*kinds, epilogue, reductions, count, False, of_y, of_x, made)
    return Product(run, shape, (x_copied, y_copied))


Laid = tuple[Sequence[int], Sequence[int]]  # a shape, and how many elements lie from one to the next along each axis


def _readable(array: Any) -> tuple[Sequence[int], bool]:
    """How the array's elements follow one another, and whether it has to be copied to one piece first."""
    steps = strides_of(array)
    lead = joined(array.shape[:-2], [list(steps[:-2])])[0]
    fits = len(lead) <= 1 and min(steps, default=0) >= 0 and _matrix(array.shape[-2:], steps[-2:]) is not None
    return (steps, False) if fits else (_dense(array.shape), True)


def _laid_out(x: Laid, y: Laid, made: Laid) -> tuple[int, list[Matrix]] | None:
    """How many products there are, and the matrices of the first of them."""
    batch = made[0][:-2]
    parts = [x, y, made]
    if len(y[0]) == 2:  # one product of all rows, where they follow one another evenly
        lengths, walked = joined(made[0][:-1], [list(x[1][:-1]), list(made[1][:-1])])
        if len(lengths) <= 1 and math.prod(lengths) <= LONGEST:
            rows, apart = (lengths[0], [of[0] for of in walked]) if lengths else (1, [x[0][-1], made[0][-1]])
            parts = [((rows, x[0][-1]), (apart[0], x[1][-1])), y, ((rows, made[0][-1]), (apart[1], made[1][-1]))]
            batch = ()
    lengths, walked = joined(batch, [stretched(shape[:-2], steps[:-2], batch) for shape, steps in parts])
    if len(lengths) > 1 or math.prod(lengths) > BATCHES:
        return None
    matrices = []
    for (shape, steps), of in zip(parts, walked, strict=True):
        matrix = _matrix(shape[-2:], steps[-2:])
        if matrix is None:
            return None
        matrices.append((*matrix, of[0] if of else 0))
    if matrices[2][3]:  # cuBLASLt writes no transposed matrix
        return None
    return lengths[0] if lengths else 1, matrices


def _dense(shape: Sequence[int]) -> list[int]:
    """The steps of an array in one piece."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _matrix(shape: Sequence[int], steps: Sequence[int]) -> tuple[int, int, int, bool] | None:
    """A matrix as one by columns: itself exchanged, or as it is and transposed in the product."""
    (R, C), (along_rows, along_columns) = shape, steps
    if along_columns == 1 or C == 1:
        leading = along_rows if R > 1 else C
        if leading >= C:
            return C, R, leading, False
    if along_rows == 1 or R == 1:
        leading = along_columns if C > 1 else R
        if leading >= R:
            return R, C, leading, True
    return None
