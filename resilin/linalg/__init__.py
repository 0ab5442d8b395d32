"""Linear algebra: the names of torch.linalg."""

from resilin.core.api.mathematics.linear_algebra import linalg_cross as cross
from resilin.core.api.mathematics.linear_algebra import linalg_vander as vander
from resilin.core.api.mathematics.linear_algebra import multi_dot, vecdot
from resilin.core.api.mathematics.products import matmul
from resilin.core.public import dispatch as _dispatch
from resilin.errors import LinAlgError
from resilin.linalg.decompose import (
    cholesky,
    cholesky_ex,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    householder_product,
    lu,
    lu_factor,
    lu_factor_ex,
    qr,
    svd,
    svdvals,
)
from resilin.linalg.matrices import det, matrix_exp, matrix_power, slogdet
from resilin.linalg.norms import cond, diagonal, matrix_norm, matrix_rank, norm, pinv, vector_norm
from resilin.linalg.solve import inv, inv_ex, lstsq, lu_solve, solve, solve_ex, solve_triangular, tensorinv, tensorsolve

__all__ = [
    "LinAlgError",
    "cholesky",
    "cholesky_ex",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "householder_product",
    "inv",
    "inv_ex",
    "lstsq",
    "lu",
    "lu_factor",
    "lu_factor_ex",
    "lu_solve",
    "matmul",
    "matrix_exp",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "multi_dot",
    "norm",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "solve_ex",
    "solve_triangular",
    "svd",
    "svdvals",
    "tensorinv",
    "tensorsolve",
    "vander",
    "vecdot",
    "vector_norm",
]

_dispatch.publish(__name__, globals(), __all__)
