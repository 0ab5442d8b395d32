"""Where the generated tests call an op whose inputs cannot be any numbers, or whose outputs are not unique.

`enter` makes a proper input from a sample, `leave` makes of the outputs what does not depend on free signs and phases.
Both are functions of tensors, so derivatives are checked through them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from resilin.core.ops.registry import TENSOR_XP as xp
from resilin.core.tensor import Tensor, wrap


class Domain(NamedTuple):
    """How to call an op: `leave(op(enter(x), ...))`."""

    enter: Callable[[Any], Any]
    leave: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _adjoint(x: Tensor) -> Any:
    return xp.conj(xp.swapaxes(x, -1, -2))


def _hermitian(x: Tensor) -> Any:
    return xp.add(x, _adjoint(x))


def _definite(x: Tensor) -> Any:
    """x x^H + 1."""
    return xp.add(xp.matmul(x, _adjoint(x)), wrap(np.eye(x.shape[-1], dtype=x._array.dtype)))


def _projectors(s: Tensor, v: Any) -> tuple[Any, ...]:
    """The values, and v_j v_j^H for each vector (column) v_j: its phase is gone."""
    return s, xp.multiply(xp.expand_dims(xp.swapaxes(v, -1, -2), -1), xp.expand_dims(_adjoint(v), -2))


def _pairs(u: Any, s: Any, vh: Any) -> tuple[Any, ...]:
    """The singular values, and u_j v_j^H for each pair of vectors, whose phases are free together."""
    k = s.shape[-1]
    columns = xp.swapaxes(u, -1, -2)[..., :k, :]
    return s, xp.multiply(xp.expand_dims(columns, -1), xp.expand_dims(vh[..., :k, :], -2))


PLAIN = Domain(_same, _same)
DOMAINS = {
    "cholesky": Domain(_definite, _same),
    "eig": Domain(_same, lambda outs: _projectors(*outs)),
    "eigh": Domain(_hermitian, lambda outs: _projectors(*outs)),
    "eigvalsh": Domain(_hermitian, _same),
    "svd": Domain(_same, lambda outs: _pairs(*outs)),
    "ctc_loss": Domain(lambda x: xp.log_softmax(x, -1), _same),
}


def of(name: str) -> Domain:
    """The domain of op `name`."""
    return DOMAINS.get(name, PLAIN)
