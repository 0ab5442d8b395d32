"""Special functions of one argument by native code, with the formulas of gamma.py and bessel.py.

Floats are computed in float64 and rounded once, as by the formulas' numpy forms.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from resilin.core.kernels import chebyshev_tables
from resilin.core.kernels.common import Array
from resilin.core.kernels.loader import kernel

kernel("special_tables")(vars(chebyshev_tables))


def native_or(name: str, formula: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The native function `name` of a float array, of 16-bit floats in float32, rounded once more.

    Where it has none, `formula` of a float64 copy, rounded.
    """
    fast = kernel("special_" + name)

    def run(x: Array) -> Array:
        y: Array | None = fast(x) if isinstance(x, np.ndarray) else None
        return in_double(formula, x) if y is None else y

    return run


def in_double(formula: Callable[..., Array], x: Array) -> Array:
    """`formula` of a float64 copy of `x`, in its dtype."""
    wide = x.astype(np.float64) if isinstance(x, np.ndarray) else x
    return np.asarray(formula(wide)).astype(x.dtype, copy=False)
