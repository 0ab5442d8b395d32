"""References for the forward of ops: functions of numpy and scipy (a requirement of the tests) that do the same.

What takes more than a line is written out in the other files of this name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special  # type: ignore[import-untyped]

from resilin.testing import index_references, layer_references, matrix_references


def _polynomial(name: str) -> Callable[..., Any]:
    """scipy's family of polynomials at x, of whole degrees n."""
    return lambda x, n: getattr(scipy.special, name)(np.asarray(n).astype(np.int64), x)


def _chebyshev_u(x: Any, n: Any) -> Any:
    return np.where(n < 0, 0, scipy.special.eval_chebyu(n, x))


def _chebyshev_sum(x: Any, n: Any, sign: int) -> Any:
    """The polynomials of the third (sign -1) and fourth kind by those of the second."""
    degree = np.asarray(n).astype(np.int64)
    return _chebyshev_u(x, degree) + sign * _chebyshev_u(x, degree - 1)


def _near_ndtr(x: Any) -> Any:
    return (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


# numpy's function of the same name takes the same arguments
_NUMPY = """absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh broadcast_to ceil conj cos cosh cross
    diagonal divide equal exp exp2 expand_dims expm1 flip floor floor_divide fmod greater greater_equal hypot imag
    isfinite isinf isnan less less_equal log log10 log1p log2 logical_and logical_not logical_or logical_xor matmul
    maximum minimum moveaxis multiply negative not_equal power real reciprocal remainder rint roll signbit sin sinc
    sinh sqrt square squeeze subtract swapaxes take_along_axis tan tanh tile tril triu trunc reshape"""


def _log_odds(x: Any) -> Any:
    return np.log(x / (1 - x))


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
    "prod": lambda x, axis=None, keepdims=False, *_: np.prod(x, axis=axis, keepdims=keepdims).astype(x.dtype),
    "var": lambda x, axis=None, ddof=1, keepdims=False: np.var(x, axis=axis, ddof=ddof, keepdims=keepdims),
    "std": lambda x, axis=None, ddof=1, keepdims=False: np.std(x, axis=axis, ddof=ddof, keepdims=keepdims),
    "cumsum": lambda x, axis=0: np.cumsum(x, axis=axis, dtype=x.dtype),
    "cumprod": lambda x, axis=0: np.cumprod(x, axis=axis, dtype=x.dtype),
    "logcumsumexp": lambda x, axis=0: np.logaddexp.accumulate(x, axis),
    "permute_dims": lambda x, axes: np.transpose(x, axes),
    "concat": lambda parts, axis=0, *_: np.concatenate(parts, axis),
    "stack": lambda parts, axis=0, *_: np.stack(parts, axis),
    "copy": lambda x: x,
    "rearrange": lambda x, split, order, shape: np.transpose(x.reshape(split), order).reshape(shape),
    "laid_out": lambda x, order, back: x,
    "ascontiguous": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "logit": lambda x, eps=None: _log_odds(x if eps is None else np.clip(x, eps, 1 - eps)),
    "logaddexp": lambda a, b: np.log(np.exp(a) + np.exp(b)),
    "sign": lambda x: x if x.dtype.kind == "b" else np.sign(x),
    "rsqrt": lambda x: x**-0.5,
    "relu": lambda x: np.where(x > 0, x, 0),
    "gated": lambda x, gate: x / (1 + np.exp(-gate)),
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
    "apply_mask": lambda x, mask: x * mask,
    "astype": lambda x, dtype: np.array(x, dtype),
    "argmax": lambda x, axis=None, keepdims=False: np.argmax(x, axis=axis, keepdims=keepdims),
    "argmin": lambda x, axis=None, keepdims=False: np.argmin(x, axis=axis, keepdims=keepdims),
    "count_nonzero": lambda x, axis=None, keepdims=False: np.count_nonzero(x, axis=axis, keepdims=keepdims),
    "chebyshev_v": lambda x, n: _chebyshev_sum(x, n, -1),
    "chebyshev_w": lambda x, n: _chebyshev_sum(x, n, 1),
    "shifted_chebyshev_v": lambda x, n: _chebyshev_sum(2 * x - 1, n, -1),
    "shifted_chebyshev_w": lambda x, n: _chebyshev_sum(2 * x - 1, n, 1),
    "trunc_divide": lambda a, b: np.trunc(a / b),
    "clip_to": lambda x, low=None, high=None: np.clip(x, low, high),
    "embedding": lambda weight, index: np.take(weight, index, 0),
    "gelu": lambda x, approximate="none": x * (scipy.special.ndtr(x) if approximate == "none" else _near_ndtr(x)),
    "getitem": lambda x, index: x[index],
    "hardshrink": lambda x, lambd=0.5: np.where(np.abs(x) > lambd, x, 0),
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hardswish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "hardtanh": lambda x, low=-1.0, high=1.0: np.clip(x, low, high),
    "make_complex": lambda re, im: re + 1j * im,
    "prelu": lambda x, weight: np.where(x > 0, x, weight * x),
    "smooth_absolute": lambda x, beta=1.0: np.where(np.abs(x) < beta, 0.5 * x * x / beta, np.abs(x) - 0.5 * beta),
    "softplus": lambda x, beta=1.0, threshold=20.0: np.where(beta * x > threshold, x, np.logaddexp(0, beta * x) / beta),
    "softshrink": lambda x, lambd=0.5: np.sign(x) * np.maximum(np.abs(x) - lambd, 0),
    "threshold": lambda x, limit=0.0, value=0.0: np.where(x > limit, x, value),
    "sum_rows": lambda x: np.sum(x, axis=0, dtype=x.dtype),
    "transfer": lambda x, *_: x,
    **index_references.ALL,
    **layer_references.ALL,
    **matrix_references.ALL,
}


def names() -> frozenset[str]:
    """The ops that have a reference here."""
    return frozenset((*_NUMPY.split(), *_SCIPY, *_WRITTEN))


def source(name: str) -> str:
    """Where the reference of op `name` comes from; empty without one."""
    if name in matrix_references.ALL:
        return "scipy"
    if name in _WRITTEN:
        return "written out"
    return "scipy" if name in _SCIPY else "numpy" if name in names() else ""


def find(name: str) -> Callable[..., Any]:
    """The reference of op `name`, on arrays. KeyError without one."""
    if name in _WRITTEN:
        return _WRITTEN[name]
    found: Callable[..., Any] = getattr(scipy.special, _SCIPY[name]) if name in _SCIPY else getattr(np, name)
    return found
