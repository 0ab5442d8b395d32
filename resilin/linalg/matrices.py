"""What `resilin` has under the same names, with torch.linalg's names of arguments."""

from __future__ import annotations

from resilin.core import return_types
from resilin.core.api.mathematics import linear_algebra
from resilin.core.tensor import Tensor


def det(A: Tensor) -> Tensor:
    """The determinants of square matrices (*, n, n): shape (*). The gradient exists for singular ones, too."""
    return linear_algebra.det(A)


def slogdet(A: Tensor) -> return_types.linalg_slogdet:
    """(sign, logabsdet) of determinants: the sign is 0, and the logarithm -inf, where the matrix is singular."""
    return return_types.linalg_slogdet(linear_algebra.slogdet(A))


def matrix_exp(A: Tensor) -> Tensor:
    """The matrix exponentials of square matrices, by scaling, Pade's approximant and squaring."""
    return linear_algebra.matrix_exp(A)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """The n-th power of square matrices, by repeated squaring; of the inverse for negative n."""
    return linear_algebra.matrix_power(A, n)
