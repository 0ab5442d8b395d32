"""The dtypes that listed functions give where PyTorch makes them of several operations on different lists.

Here they are one operation, in one dtype; the result is cast to what PyTorch's last operation gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.autocast import lists
from resilin.core.ops.shape import astype
from resilin.core.tensor import Tensor

_Dtype = np.dtype[Any]


def _as(made: Tensor, dtype: _Dtype) -> Tensor:
    """A result in a dtype; of float64, integers and complex numbers as it is."""
    own = made._array.dtype
    if own == dtype or own.kind not in "fV" or own.itemsize == 8:
        return made
    cast: Tensor = astype.call(made, dtype)
    return cast


def _beside(state: Tensor, lower: _Dtype) -> _Dtype:
    return dtypes.promote_np(state._array.dtype, lower)


def _layers(
    lower: _Dtype, made: Any, kind: str, x: Tensor, _: Any, h0: Tensor, c0: Any, weights: Any, *rest: Any
) -> Any:
    """Recurrent layers: gates are linear layers, in the lower precision, and states stay what they are beside them.

    An LSTM without projection is one operation in PyTorch, unless its input is of float16.
    """
    y, h, c = made
    if kind == "gru":
        return _as(y, _beside(h0, lower)), _as(h, _beside(h0, lower)), c
    if kind != "lstm":
        return made
    wide = _beside(c0, lower)
    if weights[0][4] is not None:
        return y, h, _as(c, wide)
    return (_as(y, wide), _as(h, wide), _as(c, wide)) if x._array.dtype == np.float16 else made


def _lstm_cell(lower: _Dtype, made: Any, input: Any, hx: Any, *rest: Any, **others: Any) -> Any:
    h, c = made
    return _as(h, _beside(hx[1], lower)), _as(c, _beside(hx[1], lower))


def _gru_cell(lower: _Dtype, made: Any, input: Any, hx: Any, *rest: Any, **others: Any) -> Any:
    return _as(made, _beside(hx, lower))


def _einsum(lower: _Dtype, made: Any, *args: Any, **kwargs: Any) -> Any:
    """Operands are multiplied from left to right: matrix products in the lower precision, others elementwise."""
    flat = [each for value in args for each in (value if isinstance(value, list | tuple) else (value,))]
    given = [each._array.dtype for each in flat if isinstance(each, Tensor)]
    terms, out = lists.einsum_terms(*args, **kwargs)
    dtype = given[0]
    for last in range(1, len(terms)):
        dtype = lower if lists.sums_products(terms, out, last) else dtypes.promote_np(dtype, given[last])
    return _as(made, dtype)


def _matrix_power(lower: _Dtype, made: Any, *args: Any, **kwargs: Any) -> Any:
    n = kwargs.get("n", args[1] if len(args) > 1 else 0)
    return made if n == -1 else _like_input(lower, made, *args) if n in (0, 1) else _as(made, lower)


def _ends_in_product(lower: _Dtype, made: Any, *args: Any, **kwargs: Any) -> Any:
    return _as(made, lower)


def _begins_with_product(lower: _Dtype, made: Any, *args: Any, **kwargs: Any) -> Any:
    return (_as(made[0], lower), *made[1:])


def _like_input(lower: _Dtype, made: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    return _as(made, input._array.dtype)


# By function: what makes of the lower precision, the result and the arguments before their casts what is given back
AFTER: dict[str, Callable[..., Any]] = {
    "corrcoef": _ends_in_product,
    "cov": _ends_in_product,
    "einsum": _einsum,
    "gru_cell": _gru_cell,
    "layers": _layers,
    "lstm_cell": _lstm_cell,
    "matrix_exp": _like_input,
    "matrix_power": _matrix_power,
    "pca_lowrank": _begins_with_product,
    "pinv": _ends_in_product,
    "svd_lowrank": _begins_with_product,
}
