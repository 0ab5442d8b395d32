"""An LSTM's steps on a device: a product and one kernel for each, forward and backward.

The formulas are those of `_step` and `_step_back` of `ops/recurrent.py`; results go where they belong in the arrays of
all steps, so nothing is put together afterwards. `xp` is the namespace of `backends/cupy.py`.
"""

# N rows of all steps, B sequences, H of the state

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin.core.kernels.cuda import elementwise
from resilin.core.kernels.cuda.tracing import NAMESPACE

Step = Callable[..., Any]
KEPT = 5  # arrays that a step keeps for its gradient: i, f, g, o and tanh of the cells


def _cell(step: Step, *symbols: Any) -> tuple[Any, ...]:
    """State, cells, and what is kept, of the four gates' parts of the input, of the state's product, and its bias."""
    of_x, of_h, bias, c = symbols[:4], symbols[4:8], symbols[8:12], symbols[12]
    of_h = of_h if bias[0] is None else tuple([h + b for h, b in zip(of_h, bias, strict=True)])
    state, cells, (i, f, g, o, _c, t) = step(NAMESPACE, [x + h for x, h in zip(of_x, of_h, strict=True)], c)
    return state, cells, i, f, g, o, t


def _cell_back(step: Step, *symbols: Any) -> tuple[Any, ...]:
    """The gates' gradients, and the cells', of the state's, in two parts, and the cells'."""
    dh, more, dc, i, f, g, o, t, c = symbols
    dh = dh if more is None else dh + more
    parts, dc = step(NAMESPACE, dh, dc, (i, f, g, o, c, t))
    return (*parts, dc)


def forward(xp: Any, step: Step, gates: Any, product: Any, bias: Any, c: Any, out: Any) -> tuple[Any, Any] | None:
    """(cells, kept) after a step, the state written into `out` (n, H); None where no kernel takes the arrays.

    gates (n, 4H): of the input; product (n, 4H): of the state before, without its `bias` (4H) or None; c: the cells.
    """
    biases = [None] * 4 if bias is None else _quarters(bias)
    values = [*_quarters(gates), *_quarters(product), *biases, c]
    made = elementwise.apply(
        xp, "lstm_cell", (), lambda *symbols: _cell(step, *symbols), values, out=[out, *[None] * (1 + KEPT)]
    )
    return None if made is None else (made[1], (*made[2:], c))


def backward(xp: Any, step: Step, dh: Any, more: Any, dc: Any, kept: Sequence[Any], dz: Any) -> Any:
    """The gradient of the cells before; those of the gates are written into `dz` (n, 4H). None as in `forward`."""
    values = [dh, more, dc, *kept]
    made = elementwise.apply(
        xp, "lstm_cell_grad", (), lambda *symbols: _cell_back(step, *symbols), values, out=[*_quarters(dz), None]
    )
    return None if made is None else made[4]


def _quarters(x: Any) -> list[Any]:
    H = x.shape[-1] // 4
    return [x[..., k * H : (k + 1) * H] for k in range(4)]


def declare(step: Step, step_back: Step) -> None:
    """Have the kernels of these formulas checked with all others."""
    formulas = [
        ("lstm_cell", lambda *symbols: _cell(step, *symbols), 13),
        ("lstm_cell_grad", lambda *symbols: _cell_back(step, *symbols), 9),
    ]
    elementwise.ALL.append(lambda: formulas)
