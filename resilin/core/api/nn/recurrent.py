"""Recurrent layers stacked over whole sequences, and single steps (the cells)."""

# N rows of all steps, B sequences, F width of the input, H of the state, P of what is given on (H without projection)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from resilin.core.api.manipulation.joining import cat, stack
from resilin.core.api.nn.neural import dropout, need_tensors
from resilin.core.ops import recurrent as ops
from resilin.core.public import dispatch
from resilin.core.tensor import Tensor


def layers(
    kind: str,
    x: Tensor,
    sizes: tuple[int, ...],
    h0: Tensor,
    c0: Tensor | None,
    weights: Sequence[Sequence[Tensor | None]],
    directions: int,
    p: float,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """All layers of kind "lstm", "gru", "tanh" or "relu" over x (N, F), the rows of step t being its first `sizes[t]`
    sequences. `weights`: per layer and direction w_ih, w_hh, b_ih, b_hh, w_hr (None where there is none); h0 and c0
    (layers * directions, B, ...). Between layers, elements are dropped with probability `p`.

    Gives the outputs (N, directions * P), the last states and, of an lstm, the last cells, shaped as h0 and c0.
    """
    last_h, last_c = [], []
    for first in range(0, len(weights), directions):
        outs = []
        for direction in range(directions):
            place = first + direction
            cells = None if c0 is None else c0[place]
            found = ops.recurrent.call(x, h0[place], cells, *weights[place], kind, sizes, direction == 1)
            outs.append(found[0])
            last_h.append(found[1])
            last_c += found[2:]
        x = outs[0] if directions == 1 else cat(outs, -1)
        if p > 0 and first + directions < len(weights):
            x = dropout(x, p, True)
    return x, stack(last_h, 0), stack(last_c, 0) if last_c else None


def _cell(where: str, kind: str, x: Any, h: Any, c: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """One step, arguments checked: (state,) or (state, cells)."""
    need_tensors(where, input=x, hx=h, w_ih=w_ih, w_hh=w_hh)
    rows = w_hh.shape[0]
    expected: dict[str, tuple[int, ...]] = {"hx": (x.shape[0], w_hh.shape[1]), "w_ih": (rows, x.shape[-1])}
    given = {"hx": h, "w_ih": w_ih}
    if c is not None:
        given["cx"], expected["cx"] = c, (x.shape[0], rows // 4)
    for name, bias in (("b_ih", b_ih), ("b_hh", b_hh)):
        if bias is not None:
            given[name], expected[name] = bias, (rows,)
    for name, value in given.items():
        if tuple(value.shape) != expected[name]:
            raise RuntimeError(
                f"{where}: input {tuple(x.shape)} and w_hh {tuple(w_hh.shape)} need {name} of shape {expected[name]}, "
                f"got {tuple(value.shape)}"
            )
        if value.dtype != x.dtype:
            raise RuntimeError(f"{where}: input is {x.dtype}, {name} is {value.dtype}; expected the same dtype")
    found = ops.recurrent.call(x, h, c, w_ih, w_hh, b_ih, b_hh, None, kind, (x.shape[0],), False)
    return found[1:]


def lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor] | list[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """State and cells (B, H) after one step of an LSTM over input (B, F) from hx, its state and cells."""
    h, c = _cell("lstm_cell", "lstm", input, hx[0], hx[1], w_ih, w_hh, b_ih, b_hh)
    return h, c


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """The state (B, H) after one step of a GRU over input (B, F) from the state hx."""
    found: Tensor = _cell("gru_cell", "gru", input, hx, None, w_ih, w_hh, b_ih, b_hh)[0]
    return found


def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """tanh(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh)."""
    found: Tensor = _cell("rnn_tanh_cell", "tanh", input, hx, None, w_ih, w_hh, b_ih, b_hh)[0]
    return found


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """relu(input @ w_ih.T + b_ih + hx @ w_hh.T + b_hh)."""
    found: Tensor = _cell("rnn_relu_cell", "relu", input, hx, None, w_ih, w_hh, b_ih, b_hh)[0]
    return found


# here, because modules call them here
dispatch.publish("resilin", globals(), ("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"))
dispatch.publish(__name__, globals(), ("layers",))
