"""Ops that look at elements or run a kernel: on the meta device a rule of `op_rules.py` stands for their own text.

All other ops run as they are declared, on the rules of numpy's functions. This file is read with every op; the rules
are loaded with the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Forward = Callable[..., Any]

_ELEMENTWISE = "broadcast"
_RULES: dict[str, str] = {  # op -> its rule
    **dict.fromkeys(("cholesky", "matrix_exp", "scatter_extreme", "scatter_product"), "alike"),
    **{name: name for name in ("lu_packed", "eig", "eigvals", "eigvalsh", "eigh", "svd", "svdvals")},
    **{name: name for name in ("embedding", "embedding_grad", "embedding_bags", "embedding_bags_grad")},
    **{name: name for name in ("max_pool2d_scatter", "cross_entropy", "ctc_loss", "ctc_loss_grad")},
}


def by_shape(forward: Forward, name: str, special: bool) -> Forward:
    """`forward(xp, *args)` of op `name`, but for arrays without elements; `special`: a function of single elements."""
    rule = _RULES.get(name, _ELEMENTWISE if special else None)
    if rule is None:
        return forward

    def run(xp: Any, *args: Any) -> Any:
        return forward(xp, *args) if xp.elements else getattr(xp.rules, rule)(*args)

    return run
