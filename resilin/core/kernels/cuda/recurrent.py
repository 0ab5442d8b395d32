"""An LSTM's and a GRU's steps on a device: a product and one kernel for each, forward and backward.

The formulas are those of `_lstm`, `_gru` and their rules in `ops/recurrent.py`; results go where they belong in the
arrays of all steps, so nothing is put together afterwards. `xp` is the namespace of `backends/cupy.py`.
"""

# N rows of all steps, B sequences, H of the state

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from resilin.core.kernels.cuda import elementwise
from resilin.core.kernels.cuda.tracing import NAMESPACE

Step = Callable[..., Any]
KEPT = 5  # arrays that an LSTM's step keeps for its gradient: i, f, g, o and tanh of the cells


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
    biases = [None] * 4 if bias is None else _parts(bias, 4)
    values = [*_parts(gates, 4), *_parts(product, 4), *biases, c]
    made = elementwise.apply(
        xp, "lstm_cell", (), lambda *symbols: _cell(step, *symbols), values, out=[out, *[None] * (1 + KEPT)]
    )
    return None if made is None else (made[1], (*made[2:], c))


def backward(xp: Any, step: Step, dh: Any, more: Any, dc: Any, kept: Sequence[Any], dz: Any) -> Any:
    """The gradient of the cells before; those of the gates are written into `dz` (n, 4H). None as in `forward`."""
    values = [dh, more, dc, *kept]
    made = elementwise.apply(
        xp, "lstm_cell_grad", (), lambda *symbols: _cell_back(step, *symbols), values, out=[*_parts(dz, 4), None]
    )
    return None if made is None else made[4]


def _gru_cell(step: Step, *symbols: Any) -> tuple[Any, ...]:
    """State and what is kept, of the three gates' parts of the input, of the state's product, and its bias."""
    of_x, of_h, bias, h = symbols[:3], symbols[3:6], symbols[6:9], symbols[9]
    of_h = of_h if bias[0] is None else tuple([one + b for one, b in zip(of_h, bias, strict=True)])
    state, (r, u, n, share, _h) = step(NAMESPACE, of_x, of_h, h)
    return (state, r, u, n) if bias[0] is None else (state, r, u, n, share)


def _gru_cell_back(step: Step, *symbols: Any) -> tuple[Any, ...]:
    """The gates' gradients in both parts, and the state's besides its product; of the state's, in three parts."""
    dh, direct, more, r, u, n, share, h = symbols
    for part in (direct, more):
        dh = dh if part is None else dh + part
    of_x, of_h, direct = step(NAMESPACE, dh, (r, u, n, share, h))
    return (*of_x, *of_h, direct)


def gru_forward(xp: Any, step: Step, gates: Any, product: Any, bias: Any, h: Any, out: Any) -> tuple[Any, ...]:
    """What is kept of a step, the state written into `out` (n, H).

    gates (n, 3H): of the input; product (n, 3H): of the state before, h, without its `bias` (3H) or None.
    """
    biases = [None] * 3 if bias is None else _parts(bias, 3)
    values = [*_parts(gates, 3), *_parts(product, 3), *biases, h]
    news = [None] * (3 if bias is None else 4)
    r, u, n, *share = _made(xp, "gru_cell", lambda *symbols: _gru_cell(step, *symbols), values, [out, *news])[1:]
    return (r, u, n, share[0] if share else values[5], h)


def gru_backward(
    xp: Any, step: Step, dh: Any, direct: Any, more: Any, kept: Sequence[Any], of_x: Any, of_h: Any
) -> Any:
    """The part of the gradient of the state before that is not its product's; the gates' are written into of_x, of_h.

    dh, direct, more: what the gradient of the state is the sum of; the last two may be None.
    """
    values, into = [dh, direct, more, *kept], [*_parts(of_x, 3), *_parts(of_h, 3), None]
    return _made(xp, "gru_cell_grad", lambda *symbols: _gru_cell_back(step, *symbols), values, into)[6]


def _made(xp: Any, name: str, formula: Step, values: Sequence[Any], into: Sequence[Any]) -> tuple[Any, ...]:
    found = elementwise.apply(xp, name, (), formula, values, out=into)
    assert found is not None, f"{name}: no kernel for {[None if v is None else (v.dtype, v.shape) for v in values]}"
    return found


def _parts(x: Any, count: int) -> list[Any]:
    H = x.shape[-1] // count
    return [x[..., k * H : (k + 1) * H] for k in range(count)]


def declare(lstm: Step, lstm_back: Step, gru: Step, gru_back: Step) -> None:
    """Have the kernels of these formulas checked with all others."""
    formulas = [
        ("lstm_cell", lambda *symbols: _cell(lstm, *symbols), 13),
        ("lstm_cell_grad", lambda *symbols: _cell_back(lstm_back, *symbols), 9),
        ("gru_cell", lambda *symbols: _gru_cell(gru, *symbols), 10),
        ("gru_cell_grad", lambda *symbols: _gru_cell_back(gru_back, *symbols), 8),
    ]
    elementwise.ALL.append(lambda: formulas)
