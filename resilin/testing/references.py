"""References for the forward of ops: functions of numpy and scipy (a requirement of the tests) that do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg  # type: ignore[import-untyped]
import scipy.special  # type: ignore[import-untyped]


def _polynomial(name: str) -> Callable[..., Any]:
    """scipy's family of polynomials at x, of whole degrees n."""
    return lambda x, n: getattr(scipy.special, name)(np.asarray(n).astype(np.int64), x)


# numpy's function of the same name takes the same arguments
_NUMPY = """absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh broadcast_to ceil conj cos cosh
    divide equal exp exp2 expand_dims expm1 flip floor fmod greater greater_equal hypot imag isfinite isinf isnan
    less less_equal log log10 log1p log2 logaddexp logical_and logical_not logical_or logical_xor matmul maximum
    minimum moveaxis multiply negative not_equal power real reciprocal remainder rint roll sign signbit sin sinc
    sinh sqrt square squeeze subtract swapaxes take_along_axis tan tanh tile tril triu trunc reshape"""

_SCIPY = {
    "bessel_j0": "j0",
    "bessel_j1": "j1",
    "bessel_k0": "k0",
    "bessel_k0e": "k0e",
    "bessel_k1": "k1",
    "bessel_k1e": "k1e",
    "bessel_y0": "y0",
    "bessel_y1": "y1",
    "digamma": "digamma",
    "entr": "entr",
    "erf": "erf",
    "erfc": "erfc",
    "erfcx": "erfcx",
    "erfinv": "erfinv",
    "gammainc": "gammainc",
    "gammaincc": "gammaincc",
    "gammaln": "gammaln",
    "i0": "i0",
    "i0e": "i0e",
    "i1": "i1",
    "i1e": "i1e",
    "log_ndtr": "log_ndtr",
    "ndtr": "ndtr",
    "ndtri": "ndtri",
    "sigmoid": "expit",
    "log_sigmoid": "log_expit",
    "zeta": "zeta",
}

_WRITTEN: dict[str, Callable[..., Any]] = {
    "amax": lambda x, axis=None, keepdims=False: np.max(x, axis=axis, keepdims=keepdims),
    "amin": lambda x, axis=None, keepdims=False: np.min(x, axis=axis, keepdims=keepdims),
    "all": lambda x, axis=None, keepdims=False: np.all(x, axis=axis, keepdims=keepdims),
    "any": lambda x, axis=None, keepdims=False: np.any(x, axis=axis, keepdims=keepdims),
    "sum": lambda x, axis=None, keepdims=False, *_: np.sum(x, axis=axis, keepdims=keepdims),
    "mean": lambda x, axis=None, keepdims=False, *_: np.mean(x, axis=axis, keepdims=keepdims),
    "prod": lambda x, axis=None, keepdims=False, *_: np.prod(x, axis=axis, keepdims=keepdims),
    "var": lambda x, axis=None, ddof=1, keepdims=False: np.var(x, axis=axis, ddof=ddof, keepdims=keepdims),
    "std": lambda x, axis=None, ddof=1, keepdims=False: np.std(x, axis=axis, ddof=ddof, keepdims=keepdims),
    "cumsum": lambda x, axis=0: np.cumsum(x, axis=axis),
    "cumprod": lambda x, axis=0: np.cumprod(x, axis=axis),
    "permute_dims": lambda x, axes: np.transpose(x, axes),
    "concat": lambda parts, axis=0, *_: np.concatenate(parts, axis),
    "stack": lambda parts, axis=0, *_: np.stack(parts, axis),
    "copy": lambda x: x,
    "ascontiguous": lambda x: x,
    "rsqrt": lambda x: x**-0.5,
    "relu": lambda x: np.where(x > 0, x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "mish": lambda x: x * np.tanh(np.log(1 + np.exp(x))),
    "norm2": lambda x, axis=None, keepdims=False: np.sqrt(np.sum(np.abs(x) ** 2, axis=axis, keepdims=keepdims)),
    "norm_of": lambda x, axis=None, keepdims=False, p=3.0: np.sum(x**p, axis=axis, keepdims=keepdims) ** (1 / p),
    "elu": lambda x, alpha=1.0, scale=1.0, inner=1.0: scale * np.where(x > 0, x, alpha * np.expm1(inner * x)),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "where_else": lambda a, b, condition: np.where(condition, a, b),
    "chebyshev_t": _polynomial("eval_chebyt"),
    "chebyshev_u": _polynomial("eval_chebyu"),
    "hermite_h": _polynomial("eval_hermite"),
    "hermite_he": _polynomial("eval_hermitenorm"),
    "laguerre_l": _polynomial("eval_laguerre"),
    "legendre_p": _polynomial("eval_legendre"),
    "shifted_chebyshev_t": _polynomial("eval_sh_chebyt"),
    "shifted_chebyshev_u": _polynomial("eval_sh_chebyu"),
    "polygamma": lambda x, n=1: scipy.special.polygamma(n, x),
    "logsumexp": lambda x, axis=None, keepdims=False: scipy.special.logsumexp(x, axis=axis, keepdims=keepdims),
    "softmax": lambda x, axis=-1: scipy.special.softmax(x, axis=axis),
    "log_softmax": lambda x, axis=-1: scipy.special.log_softmax(x, axis=axis),
    "linear": lambda x, w, b=None: x @ w.T if b is None else x @ w.T + b,
    "inv": np.linalg.inv,
    "det": np.linalg.det,
    "solve": lambda a, b, *_: np.linalg.solve(a, b),
    "svdvals": lambda x: np.linalg.svd(x, compute_uv=False),
    "matrix_exp": scipy.linalg.expm,
    "pinv": lambda x, *_: np.linalg.pinv(x),
}


def names() -> frozenset[str]:
    """The ops that have a reference here."""
    return frozenset((*_NUMPY.split(), *_SCIPY, *_WRITTEN))


def source(name: str) -> str:
    """Where the reference of op `name` comes from; empty without one."""
    if name in _WRITTEN:
        return "written out"
    return "scipy" if name in _SCIPY else "numpy" if name in names() else ""


def find(name: str) -> Callable[..., Any]:
    """The reference of op `name`, on arrays. KeyError without one."""
    if name in _WRITTEN:
        return _WRITTEN[name]
    found: Callable[..., Any] = getattr(scipy.special, _SCIPY[name]) if name in _SCIPY else getattr(np, name)
    return found
