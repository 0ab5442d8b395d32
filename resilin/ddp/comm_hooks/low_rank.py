"""Matrices as products of two thin ones. Pure arithmetic of PowerSGD: no collective, no state.

B matrices of one shape, N rows, M columns, R rank
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from resilin.ddp.comm_hooks.exchange import Array

_GRAM_SCHMIDT_RANK = 2  # up to here Gram-Schmidt is quicker than LAPACK's QR, and only it takes an epsilon


def thin_numel(rows: int, columns: int, rank: int) -> int:
    """Elements of the two factors of a matrix."""
    return (rows + columns) * rank


def worth_compressing(rows: int, columns: int, rank: int, min_rate: float) -> bool:
    """Whether the factors have less than 1/`min_rate` of the matrix's elements."""
    return thin_numel(rows, columns, rank) * min_rate < rows * columns


def orthogonalize(matrices_BNR: Array, epsilon: float = 0) -> None:
    """Make the columns of each matrix orthonormal, in place. A column of zeros becomes some other direction."""
    if matrices_BNR.shape[2] > _GRAM_SCHMIDT_RANK:
        matrices_BNR[...] = np.linalg.qr(matrices_BNR)[0]
        return
    for matrix_NR in matrices_BNR:
        for number in range(matrix_NR.shape[1]):
            _orthonormal(matrix_NR, number, epsilon)


def _orthonormal(matrix_NR: Array, number: int, epsilon: float) -> None:
    """Norm the column `number` and take its direction out of those behind it."""
    column_N = matrix_NR[:, number]
    norm = np.linalg.norm(column_N) + epsilon
    if norm > 0:
        column_N /= norm
    else:  # nothing to norm: any direction will do, and zeros would stay zeros in all later steps
        column_N[:] = 0
        column_N[number] = 1
        before_NR = matrix_NR[:, :number]
        column_N -= before_NR @ (before_NR.T @ column_N)
        column_N /= np.linalg.norm(column_N) or 1
    rest_NR = matrix_NR[:, number + 1 :]
    rest_NR -= np.outer(column_N, column_N @ rest_NR)


def cut(flat: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Views of `flat` in `shapes`, one behind the other."""
    views, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        views.append(flat[at : at + size].reshape(shape))
        at += size
    return views


class Stack:
    """Matrices of one shape that are multiplied together; `views` are where they lie."""

    def __init__(self, views: Sequence[Array], rank: int) -> None:
        self.views = views
        rows, columns = views[0].shape
        self.rank = min(rows, columns, rank)
        self.p_shape = (len(views), rows, self.rank)
        self.q_shape = (len(views), columns, self.rank)
        self.matrices_BNM: Array = views[0][None] if len(views) == 1 else np.stack(views)

    def times(self, q_BMR: Array) -> Array:
        """M Q of each."""
        product: Array = self.matrices_BNM @ q_BMR
        return product

    def transposed_times(self, p_BNR: Array) -> Array:
        """M^T P of each."""
        product: Array = self.matrices_BNM.transpose(0, 2, 1) @ p_BNR
        return product

    def subtract(self, p_BNR: Array, q_BMR: Array) -> None:
        """Leave of each matrix, where it lies, what P Q^T does not give."""
        for view_NM, p_NR, q_MR in zip(self.views, p_BNR, q_BMR, strict=True):
            view_NM -= p_NR @ q_MR.T
