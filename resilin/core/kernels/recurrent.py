"""A recurrent layer over whole sequences: one product for all inputs, then step by step one product and one pass.

The rows of all steps lie one after another: step t has `sizes[t]` rows, the first sequences of the batch, as in a
packed sequence. So sequences of equal and of different lengths take the same path.
"""

# N rows of all steps, B sequences, F width of the input, H of the state, P of what is given on (H without projection)

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from resilin.core.kernels import gemm, reduce_rows
from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel

_native_lstm_step = kernel("lstm_step")
_native_lstm_step_back = kernel("lstm_step_back")
_native_gru_step = kernel("gru_step")
_native_gru_step_back = kernel("gru_step_back")


def check_kind(kind: str, dtype: Any) -> None:
    """NotImplementedError for the maximum of complex numbers."""
    if kind == "relu" and dtype.kind == "c":
        raise NotImplementedError(f"recurrent: relu of {dtype}: supported are real numbers; take kind 'tanh'")


GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""How many gates each kind of layer has."""

COPY_STEPS = 8  # from here on, a transposed copy of the weights costs less than BLAS's reading them across at each step


def spans(sizes: tuple[int, ...], reverse: bool) -> list[tuple[int, int]]:
    """(first row, number of rows) of each step, in the order in which the steps run."""
    steps = [(end - size, size) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    return steps[::-1] if reverse else steps


class Saved:
    """What forward keeps for backward: (N, ...) arrays over all steps."""

    __slots__ = ("cells", "first", "gates", "second")

    def __init__(self, gates: Array, first: Array, second: Array | None, cells: Array | None) -> None:
        self.gates = gates  # (N, gates * H), after their functions; the outputs of a plain layer
        self.first = first  # (N, P) the state before each step
        self.second = second  # lstm: tanh of the cells; gru: the candidate's share of the state, before the reset gate
        self.cells = cells  # lstm: the cells before each step


def forward(inputs: list[Any], kind: str, sizes: tuple[int, ...], reverse: bool) -> tuple[tuple[Array, ...], Saved]:
    """(y (N, P), last state (B, P), and of an lstm last cells (B, H)), and what backward needs.

    `inputs`: x (N, F), h0 (B, P), c0 (B, H) or None, w_ih, w_hh, b_ih, b_hh, w_hr (all biases and w_hr may be None).
    """
    dtype = inputs[0].dtype
    check_kind(kind, dtype)
    x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = (_computable(value) for value in inputs)
    gates = gemm.matmul(x, w_ih.T)
    late_bias = None  # gru: the reset gate multiplies the state's bias too
    for bias in (b_ih, b_hh):
        if bias is not None and (kind != "gru" or bias is b_ih):
            gates += bias
        elif bias is not None:
            late_bias = bias
    N, H = len(x), w_hh.shape[0] // GATES[kind]
    y = np.empty((N, h0.shape[1]), gates.dtype)
    state = np.array(h0)
    cell = None if c0 is None else np.array(c0)
    saved = Saved(gates, np.empty_like(y), None, None)
    if kind in ("lstm", "gru"):
        saved.second = np.empty((N, H), gates.dtype)
    if cell is not None:
        saved.cells = np.empty((N, H), gates.dtype)
    product = np.empty((len(state), w_hh.shape[0]), gates.dtype)
    across = w_hh.T if len(sizes) < COPY_STEPS else np.ascontiguousarray(w_hh.T)
    for begin, n in spans(sizes, reverse):
        rows = slice(begin, begin + n)
        saved.first[rows] = state[:n]
        gemm.matmul(state[:n], across, out=product[:n])
        if late_bias is not None:
            product[:n] += late_bias
        h = _step(kind, saved, rows, product[:n], None if cell is None else cell[:n])
        y[rows] = h if w_hr is None else gemm.matmul(h, w_hr.T)
        state[:n] = y[rows]
    results = (y, state) if cell is None else (y, state, cell)
    return tuple(value.astype(dtype, copy=False) for value in results), saved


def _computable(value: Array | None) -> Any:
    return None if value is None else value.astype(compute_dtype(value.dtype), copy=False)


def _sigmoid_(z: Array) -> None:
    """1 / (1 + exp(-z)) in place, as (1 + tanh(z / 2)) / 2, which cannot overflow."""
    z *= 0.5
    np.tanh(z, out=z)
    z += 1
    z *= 0.5


def _step(kind: str, saved: Saved, rows: slice, product: Array, cell: Array | None) -> Array:
    """The new state (n, H); the gates become their values, the cells move on, both in place."""
    z = saved.gates[rows]
    if kind == "lstm":
        return lstm_step(z, product, saved.cells[rows], saved.second[rows], cell)  # type: ignore[index, arg-type]
    if kind == "gru":
        return gru_step(z, product, saved.first[rows], saved.second[rows])  # type: ignore[index]
    z += product
    return np.tanh(z, out=z) if kind == "tanh" else np.maximum(z, 0, out=z)


def lstm_step(z: Array, product: Array, before: Array, tanh_c: Array, cell: Array) -> Array:
    """The new state (n, H) from gates z (n, 4H: i, f, g, o) plus `product`; z becomes their values, `cell` moves on.

    Writes the cells before into `before` and the tanh of those after into `tanh_c`.
    """
    if (h := _native_lstm_step(z, product, before, tanh_c, cell)) is not None:
        return h  # type: ignore[no-any-return]
    return reference_lstm_step(z, product, before, tanh_c, cell)


def reference_lstm_step(z: Array, product: Array, before: Array, tanh_c: Array, cell: Array) -> Array:
    """numpy form of `lstm_step`."""
    H = cell.shape[1]
    z += product
    _sigmoid_(z[:, : 2 * H])
    np.tanh(z[:, 2 * H : 3 * H], out=z[:, 2 * H : 3 * H])
    _sigmoid_(z[:, 3 * H :])
    before[...] = cell
    cell *= z[:, H : 2 * H]
    cell += z[:, :H] * z[:, 2 * H : 3 * H]
    np.tanh(cell, out=tanh_c)
    return z[:, 3 * H :] * tanh_c


def gru_step(z: Array, product: Array, before: Array, share: Array) -> Array:
    """The new state (n, H) from gates z (n, 3H: r, u, candidate), `product` and `before`; z becomes their values.

    Writes the candidate's part of `product` into `share`.
    """
    if (h := _native_gru_step(z, product, before, share)) is not None:
        return h  # type: ignore[no-any-return]
    return reference_gru_step(z, product, before, share)


def reference_gru_step(z: Array, product: Array, before: Array, share: Array) -> Array:
    """numpy form of `gru_step`."""
    H = before.shape[1]
    gates, candidate = z[:, : 2 * H], z[:, 2 * H :]
    gates += product[:, : 2 * H]
    _sigmoid_(gates)
    share[...] = product[:, 2 * H :]
    candidate += gates[:, :H] * share
    np.tanh(candidate, out=candidate)
    return candidate + gates[:, H:] * (before - candidate)  # type: ignore[no-any-return]


def backward(
    needs: tuple[bool, ...],
    grads: list[Array | None],
    saved: Saved,
    inputs: list[Any],
    kind: str,
    sizes: tuple[int, ...],
    reverse: bool,
) -> tuple[Array | None, ...]:
    """Gradients of the eight inputs of `forward`; `grads`: those of its results, None for what nobody used.

    Gradients of weights are one product over all rows, of biases a sum of rows in a fixed order. Complex ones are
    conjugated before and after, as for every holomorphic function.
    """
    dtype = inputs[0].dtype
    x, h0, c0, w_ih, w_hh, _, _, w_hr = (_computable(value) for value in inputs)
    gy, gh, gc = (_conjugated(_computable(value)) for value in (*grads, None)[:3])
    dh_state = np.zeros_like(h0) if gh is None else np.array(gh)
    dc_state = None if c0 is None else np.zeros_like(c0) if gc is None else np.array(gc)
    width = w_hh.shape[0] // GATES[kind]
    dx_gates = np.empty_like(saved.gates)
    dh_gates = np.empty_like(saved.gates) if kind == "gru" else dx_gates
    given = np.empty_like(saved.first) if w_hr is not None and needs[7] else None  # gradients of what is given on
    for begin, n in reversed(spans(sizes, reverse)):
        rows = slice(begin, begin + n)
        dh = dh_state[:n]
        if gy is not None:
            dh += gy[rows]
        if given is not None:
            given[rows] = dh
        raw = dh if w_hr is None else gemm.matmul(dh, w_hr)
        direct = _step_back(kind, saved, rows, raw, None if dc_state is None else dc_state[:n], dx_gates, dh_gates)
        gemm.matmul(dh_gates[rows], w_hh, out=dh)
        if direct is not None:
            dh += direct
    dx = gemm.matmul(dx_gates, w_ih) if needs[0] else None
    dw_ih = gemm.matmul(dx_gates.T, x) if needs[3] else None
    dw_hh = gemm.matmul(dh_gates.T, saved.first) if needs[4] else None
    db_ih = reduce_rows.sum_rows(dx_gates) if needs[5] else None
    db_hh = reduce_rows.sum_rows(dh_gates) if needs[6] else None
    dw_hr = None
    if given is not None:
        dw_hr = gemm.matmul(given.T, saved.gates[:, 3 * width :] * saved.second)
    results = (dx, dh_state, dc_state, dw_ih, dw_hh, db_ih, db_hh, dw_hr)
    return tuple(None if value is None else _conjugated(value).astype(dtype, copy=False) for value in results)


def _conjugated(value: Any) -> Any:
    return value if value is None or value.dtype.kind != "c" else value.conj()


def _step_back(
    kind: str, saved: Saved, rows: slice, dh: Array, dc: Array | None, dx_gates: Array, dh_gates: Array
) -> Array | None:
    """Write the gates' gradients of one step; give what the state gets besides its product (gru), move `dc` back."""
    z, out = saved.gates[rows], dx_gates[rows]
    if kind == "lstm":
        lstm_step_back(z, saved.cells[rows], saved.second[rows], dh, dc, out)  # type: ignore[index, arg-type]
        return None
    if kind == "gru":
        return gru_step_back(z, saved.first[rows], saved.second[rows], dh, out, dh_gates[rows])  # type: ignore[index]
    if kind == "tanh":
        np.multiply(dh, 1 - z * z, out=out)
    else:
        np.multiply(dh, z > 0, out=out)
    return None


def lstm_step_back(z: Array, before: Array, tanh_c: Array, dh: Array, dc: Array, out: Array) -> None:
    """Write the gates' gradients into `out` (n, 4H) and move `dc` (n, H) from the cells after to those before."""
    if not _native_lstm_step_back(z, before, tanh_c, dh, dc, out):
        reference_lstm_step_back(z, before, tanh_c, dh, dc, out)


def reference_lstm_step_back(z: Array, before: Array, tanh_c: Array, dh: Array, dc: Array, out: Array) -> None:
    """numpy form of `lstm_step_back`."""
    H = before.shape[1]
    i, f, g, o = (z[:, k * H : (k + 1) * H] for k in range(4))
    dc += dh * o * (1 - tanh_c * tanh_c)
    np.multiply(dc * g, i * (1 - i), out=out[:, :H])
    np.multiply(dc * before, f * (1 - f), out=out[:, H : 2 * H])
    np.multiply(dc * i, 1 - g * g, out=out[:, 2 * H : 3 * H])
    np.multiply(dh * tanh_c, o * (1 - o), out=out[:, 3 * H :])
    dc *= f


def gru_step_back(z: Array, before: Array, share: Array, dh: Array, out: Array, out_h: Array) -> Array:
    """Write the gates' gradients (n, 3H), of the input's part into `out`, of the state's into `out_h`.

    Gives the gradient (n, H) that the state gets besides its product.
    """
    if (direct := _native_gru_step_back(z, before, share, dh, out, out_h)) is not None:
        return direct  # type: ignore[no-any-return]
    return reference_gru_step_back(z, before, share, dh, out, out_h)


def reference_gru_step_back(z: Array, before: Array, share: Array, dh: Array, out: Array, out_h: Array) -> Array:
    """numpy form of `gru_step_back`."""
    H = before.shape[1]
    r, u, n = (z[:, k * H : (k + 1) * H] for k in range(3))
    np.multiply(dh * (1 - u), 1 - n * n, out=out[:, 2 * H :])
    np.multiply(dh * (before - n), u * (1 - u), out=out[:, H : 2 * H])
    np.multiply(out[:, 2 * H :] * share, r * (1 - r), out=out[:, :H])
    out_h[:, : 2 * H] = out[:, : 2 * H]
    np.multiply(out[:, 2 * H :], r, out=out_h[:, 2 * H :])
    return dh * u
