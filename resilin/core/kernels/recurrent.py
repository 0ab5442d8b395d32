"""A recurrent layer over whole sequences: one product for all inputs, then step by step one product and one pass.

Sequences do not depend on one another: the native form gives every thread some of them, for all steps.

The rows of all steps lie one after another: step t has `sizes[t]` rows, the first sequences of the batch, as in a
packed sequence. So sequences of equal and of different lengths take the same path.
"""

# N rows of all steps, B sequences, F width of the input, H of the state, P of what is given on (H without projection)

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np

from resilin.core.kernels import gemm, pack, reduce_rows
from resilin.core.kernels.common import Array, compute_dtype
from resilin.core.kernels.loader import kernel

_native_forward = kernel("recurrent_forward")
_native_backward = kernel("recurrent_backward")


def check_kind(kind: str, dtype: Any) -> None:
    """NotImplementedError for the maximum of complex numbers."""
    if kind == "relu" and dtype.kind == "c":
        raise NotImplementedError(f"recurrent: relu of {dtype}: supported are real numbers; take kind 'tanh'")


GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
"""How many gates each kind of layer has."""

PAD = 16  # elements between rows that would otherwise share few sets of a cache: a product would copy them first


def spans(sizes: tuple[int, ...], reverse: bool) -> list[tuple[int, int]]:
    """(first row, number of rows) of each step, in the order in which the steps run."""
    steps = [(end - size, size) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    return steps[::-1] if reverse else steps


class Saved:
    """What forward keeps for backward: (N, ...) arrays over all steps."""

    __slots__ = ("cells", "first", "gates", "joined", "second")

    def __init__(self, gates: Array, joined: Array, F: int, second: Array | None, cells: Array | None) -> None:
        self.gates = gates  # (N, gates * H), after their functions; the outputs of a plain layer
        self.joined = joined  # (N, F + P): what the gates' gradients are multiplied by, F inputs or none, and
        self.first = joined[:, F:]  # (N, P) the state before each step
        self.second = second  # lstm: tanh of the cells; gru: the candidate's share of the state, before the reset gate
        self.cells = cells  # lstm: the cells before each step


def forward(inputs: list[Any], kind: str, sizes: tuple[int, ...], reverse: bool) -> tuple[tuple[Array, ...], Saved]:
    """(y (N, P), last state (B, P), and of an lstm last cells (B, H)), and what backward needs.

    `inputs`: x (N, F), h0 (B, P), c0 (B, H) or None, w_ih, w_hh, b_ih, b_hh, w_hr (all biases and w_hr may be None).
    """
    dtype = inputs[0].dtype
    check_kind(kind, dtype)
    x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = (_computable(value) for value in inputs)
    N, H = len(x), w_hh.shape[0] // GATES[kind]
    bias, late_bias = _biases(kind, b_ih, b_hh)
    if dtype == pack.BFLOAT16:  # its tiles are faster, and their sums are not rounded
        gates = gemm.matmul_wide(inputs[0], inputs[3].T, bias)
    else:
        gates = gemm.matmul(x, w_ih.T) if bias is None else gemm.matmul_add(x, w_ih.T, bias)
    y = np.empty((N, h0.shape[1]), gates.dtype)
    second = np.empty((N, H), gates.dtype) if kind in ("lstm", "gru") else None
    cells = np.empty((N, H), gates.dtype) if kind == "lstm" else None
    F = 0 if kind == "gru" else x.shape[1]  # a gru's inputs and states meet different gradients
    saved = Saved(gates, apart((N, F + y.shape[1]), gates.dtype), F, second, cells)
    saved.joined[:, :F] = x[:, :F]
    state, cell = np.array(h0), None if c0 is None else np.array(c0)
    run_steps(kind, spans(sizes, reverse), saved, y, state, cell, w_hh, w_hr, late_bias)
    results = (y, state) if cell is None else (y, state, cell)
    return tuple(_as(value, dtype) for value in results), saved


def _computable(value: Array | None) -> Any:
    return None if value is None else _as(value, compute_dtype(value.dtype))


def _as(value: Array, dtype: Any) -> Array:
    return value if value.dtype == dtype else pack.astype(value, dtype)


def _biases(kind: str, b_ih: Array | None, b_hh: Array | None) -> tuple[Array | None, Array | None]:
    """What is added to all gates, and what to a gru's candidate (H): the reset gate multiplies the state's bias too."""
    if b_hh is None or kind != "gru":
        return (b_ih if b_hh is None else b_hh if b_ih is None else b_ih + b_hh), None
    early = 2 * len(b_hh) // 3
    bias = np.zeros_like(b_hh) if b_ih is None else np.array(b_ih)
    bias[:early] += b_hh[:early]
    return bias, b_hh[early:]


def run_steps(
    kind: str,
    steps: list[tuple[int, int]],
    saved: Saved,
    y: Array,
    state: Array,
    cell: Array | None,
    w_hh: Array,
    w_hr: Array | None,
    late_bias: Array | None,
) -> None:
    """Run all steps: `saved.gates` are those of the inputs and become their values, the rest of it and `y` is written.

    `state` (B, P) and `cell` (B, H) move from before the first step to after the last one.
    """
    at = np.array(steps, np.int64).reshape(-1, 2)
    places = (saved.gates, saved.first, saved.second, saved.cells)
    if not _native_forward(kind, at, *places, y, state, cell, w_hh, w_hr, late_bias):
        reference_run_steps(kind, steps, saved, y, state, cell, w_hh, w_hr, late_bias)


def reference_run_steps(
    kind: str,
    steps: list[tuple[int, int]],
    saved: Saved,
    y: Array,
    state: Array,
    cell: Array | None,
    w_hh: Array,
    w_hr: Array | None,
    late_bias: Array | None,
) -> None:
    """numpy form of `run_steps`."""
    across = np.ascontiguousarray(w_hh.T)
    for begin, n in steps:
        rows = slice(begin, begin + n)
        saved.first[rows] = state[:n]
        h = _step(kind, saved, rows, gemm.matmul(state[:n], across), late_bias, None if cell is None else cell[:n])
        y[rows] = h if w_hr is None else gemm.matmul(h, w_hr.T)
        state[:n] = y[rows]


def _sigmoid_(z: Array) -> None:
    """1 / (1 + exp(-z)) in place, as (1 + tanh(z / 2)) / 2, which cannot overflow."""
    z *= 0.5
    np.tanh(z, out=z)
    z += 1
    z *= 0.5


def _step(kind: str, saved: Saved, rows: slice, product: Array, late_bias: Array | None, cell: Array | None) -> Array:
    """The new state (n, H); the gates become their values, the cells move on, both in place."""
    z = saved.gates[rows]
    if kind == "lstm":
        return _lstm_step(z, product, saved.cells[rows], saved.second[rows], cell)  # type: ignore[index, arg-type]
    if kind == "gru":
        return _gru_step(z, product, late_bias, saved.first[rows], saved.second[rows])  # type: ignore[index]
    z += product
    return np.tanh(z, out=z) if kind == "tanh" else np.maximum(z, 0, out=z)


def _lstm_step(z: Array, product: Array, before: Array, tanh_c: Array, cell: Array) -> Array:
    """From gates z (n, 4H: i, f, g, o) plus `product`; writes the cells before and the tanh of those after."""
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


def _gru_step(z: Array, product: Array, late_bias: Array | None, before: Array, share: Array) -> Array:
    """From gates z (n, 3H: r, u, candidate), `product` and `before`; writes the candidate's part of `product`."""
    H = before.shape[1]
    gates, candidate = z[:, : 2 * H], z[:, 2 * H :]
    gates += product[:, : 2 * H]
    _sigmoid_(gates)
    share[...] = product[:, 2 * H :] if late_bias is None else product[:, 2 * H :] + late_bias
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

    Gradients of weights are one product over all rows, of biases a sum of rows in a fixed order. Where the inputs are
    bfloat16, so are the operands of the products that are not of a step. Complex gradients are conjugated before and
    after, as for every holomorphic function.
    """
    dtype = inputs[0].dtype
    x, h0, c0, w_ih, w_hh, _, _, w_hr = (_computable(value) for value in inputs)
    gy, gh, gc = (_conjugated(_computable(value)) for value in (*grads, None)[:3])
    dh = np.zeros_like(h0) if gh is None else np.array(gh)
    dc = None if c0 is None else np.zeros_like(c0) if gc is None else np.array(gc)
    dx_gates = apart(saved.gates.shape, saved.gates.dtype)
    dh_gates = apart(saved.gates.shape, saved.gates.dtype) if kind == "gru" else dx_gates
    given = np.empty_like(saved.first) if w_hr is not None and needs[7] else None
    run_back(kind, spans(sizes, reverse), saved, gy, dx_gates, dh_gates, given, dh, dc, w_hh, w_hr, needs[1])
    if dtype == pack.BFLOAT16:
        dx, dw_ih, dw_hh = _products(needs, *_narrowed(dx_gates, dh_gates, saved), inputs[0], inputs[3])
    else:
        dx, dw_ih, dw_hh = _products(needs, dx_gates, dh_gates, saved, x, w_ih)
    db_ih = _sum_rows(dx_gates) if needs[5] else None
    db_hh = None
    if needs[6]:  # both biases of all but a gru have one gradient
        db_hh = _sum_rows(dh_gates) if db_ih is None or kind == "gru" else db_ih.copy()
    dw_hr = None
    if given is not None:
        H = w_hh.shape[0] // GATES[kind]
        dw_hr = gemm.matmul(given.T, saved.gates[:, 3 * H :] * saved.second)
    results = (dx, dh if needs[1] else None, dc, dw_ih, dw_hh, db_ih, db_hh, dw_hr)
    return tuple(None if value is None else _as(_conjugated(value), dtype) for value in results)


def _conjugated(value: Any) -> Any:
    return value if value is None or value.dtype.kind != "c" else value.conj()


def apart(shape: tuple[int, ...], dtype: Any) -> Array:
    """(n, width), not initialized; perhaps of a padded array, whose padding is 0."""
    n, width = shape
    rows: Array = np.empty((n, width + (PAD if width * dtype.itemsize % 2048 == 0 else 0)), dtype)
    rows[:, width:] = 0
    return rows[:, :width]


def _sum_rows(x: Array) -> Array:
    """Sum of the rows of what `apart` made."""
    rows = x if x.flags.c_contiguous else x.base
    return reduce_rows.sum_rows(rows)[: x.shape[1]]  # type: ignore[arg-type]


def _narrowed(dx_gates: Array, dh_gates: Array, saved: Saved) -> tuple[Array, Array, Saved]:
    """The operands of the weights' gradients, rounded to bfloat16: its tiles are faster."""
    of_x = pack.astype(dx_gates, pack.BFLOAT16)
    of_h = of_x if dh_gates is dx_gates else pack.astype(dh_gates, pack.BFLOAT16)
    joined, F = pack.astype(saved.joined, pack.BFLOAT16), saved.joined.shape[1] - saved.first.shape[1]
    return of_x, of_h, Saved(saved.gates, joined, F, saved.second, saved.cells)


def _products(
    needs: tuple[bool, ...], dx_gates: Array, dh_gates: Array, saved: Saved, x: Array, w_ih: Array
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of x and of the weights: one product for both of these where they meet the same gradients."""
    dx = gemm.matmul(dx_gates, w_ih) if needs[0] else None
    return (dx, *_of_weights(needs[3], needs[4], dx_gates, dh_gates, x, saved))


def _of_weights(
    ih: bool, hh: bool, dx_gates: Array, dh_gates: Array, x: Array, saved: Saved
) -> tuple[Array | None, Array | None]:
    """The weights' gradients: one product for both where they meet the same gradients, which it reads once."""
    if ih and hh and dx_gates is dh_gates:
        both, F = gemm.matmul(dx_gates.T, saved.joined), x.shape[1]
        return np.ascontiguousarray(both[:, :F]), np.ascontiguousarray(both[:, F:])
    dw_ih = gemm.matmul(dx_gates.T, x) if ih else None
    return dw_ih, gemm.matmul(dh_gates.T, saved.first) if hh else None


def run_back(
    kind: str,
    steps: list[tuple[int, int]],
    saved: Saved,
    gy: Array | None,
    dx_gates: Array,
    dh_gates: Array,
    given: Array | None,
    dh: Array,
    dc: Array | None,
    w_hh: Array,
    w_hr: Array | None,
    wants_dh: bool = True,
) -> None:
    """Run all steps backward from the gradient `gy` of the outputs.

    Writes the gates' gradients (N, gates * H), of the input's part and of the state's (one array but for a gru), and
    into `given` (N, P), where it is there, the gradients of what is given on. `dh` (B, P) and `dc` (B, H) move from
    those after the last step to those before the first one; `dh` only where it is wanted, else it is left anywhere.
    """
    at = np.array(steps, np.int64).reshape(-1, 2)
    places = (saved.gates, saved.first, saved.second, saved.cells)
    if not _native_backward(kind, at, *places, gy, dx_gates, dh_gates, given, dh, dc, w_hh, w_hr, wants_dh):
        reference_run_back(kind, steps, saved, gy, dx_gates, dh_gates, given, dh, dc, w_hh, w_hr)


def reference_run_back(
    kind: str,
    steps: list[tuple[int, int]],
    saved: Saved,
    gy: Array | None,
    dx_gates: Array,
    dh_gates: Array,
    given: Array | None,
    dh: Array,
    dc: Array | None,
    w_hh: Array,
    w_hr: Array | None,
) -> None:
    """numpy form of `run_back`."""
    for begin, n in reversed(steps):
        rows = slice(begin, begin + n)
        now = dh[:n]
        if gy is not None:
            now += gy[rows]
        if given is not None:
            given[rows] = now
        raw = now if w_hr is None else gemm.matmul(now, w_hr)
        direct = _step_back(kind, saved, rows, raw, None if dc is None else dc[:n], dx_gates, dh_gates)
        gemm.matmul(dh_gates[rows], w_hh, out=now)
        if direct is not None:
            now += direct


def _step_back(
    kind: str, saved: Saved, rows: slice, dh: Array, dc: Array | None, dx_gates: Array, dh_gates: Array
) -> Array | None:
    """Write the gates' gradients of one step; give what the state gets besides its product (gru), move `dc` back."""
    z, out = saved.gates[rows], dx_gates[rows]
    if kind == "lstm":
        _lstm_step_back(z, saved.cells[rows], saved.second[rows], dh, dc, out)  # type: ignore[index, arg-type]
        return None
    if kind == "gru":
        return _gru_step_back(z, saved.first[rows], saved.second[rows], dh, out, dh_gates[rows])  # type: ignore[index]
    if kind == "tanh":
        np.multiply(dh, 1 - z * z, out=out)
    else:
        np.multiply(dh, z > 0, out=out)
    return None


def _lstm_step_back(z: Array, before: Array, tanh_c: Array, dh: Array, dc: Array, out: Array) -> None:
    """Write the gates' gradients into `out` (n, 4H) and move `dc` (n, H) from the cells after to those before."""
    H = before.shape[1]
    i, f, g, o = (z[:, k * H : (k + 1) * H] for k in range(4))
    dc += dh * o * (1 - tanh_c * tanh_c)
    np.multiply(dc * g, i * (1 - i), out=out[:, :H])
    np.multiply(dc * before, f * (1 - f), out=out[:, H : 2 * H])
    np.multiply(dc * i, 1 - g * g, out=out[:, 2 * H : 3 * H])
    np.multiply(dh * tanh_c, o * (1 - o), out=out[:, 3 * H :])
    dc *= f


def _gru_step_back(z: Array, before: Array, share: Array, dh: Array, out: Array, out_h: Array) -> Array:
    """Write the gates' gradients (n, 3H), of the input's part into `out`, of the state's into `out_h`.

    Gives the gradient (n, H) that the state gets besides its product.
    """
    H = before.shape[1]
    r, u, n = (z[:, k * H : (k + 1) * H] for k in range(3))
    np.multiply(dh * (1 - u), 1 - n * n, out=out[:, 2 * H :])
    np.multiply(dh * (before - n), u * (1 - u), out=out[:, H : 2 * H])
    np.multiply(out[:, 2 * H :] * share, r * (1 - r), out=out[:, :H])
    out_h[:, : 2 * H] = out[:, : 2 * H]
    np.multiply(out[:, 2 * H :], r, out=out_h[:, 2 * H :])
    return dh * u
