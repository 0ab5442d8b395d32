"""A recurrent layer over whole sequences as one op. The fused kernel runs on the CPU; the rule here recomputes the
steps and serves second derivatives."""

# N rows of all steps, B sequences, F width of the input, H of the state, P of what is given on (H without projection)

from __future__ import annotations

from typing import Any

from resilin.core.autograd.rule_inputs import wide
from resilin.core.kernels import recurrent as kernel
from resilin.core.kernels.cuda import recurrent as on_device
from resilin.core.kernels.recurrent import GATES, spans
from resilin.core.ops.errstate import widened
from resilin.core.ops.registry import OPS, is_complex, op, override


def _sample(r: Any, kind: str, sizes: tuple[int, ...], reverse: bool, bias: bool = True, proj: int = 0) -> Any:
    F, H, B, G = 2, 2, max(sizes), GATES[kind]
    P = proj or H
    biases = (r(G * H), r(G * H)) if bias else (None, None)
    state = (r(B, P), r(B, H) if kind == "lstm" else None)
    weights = (r(G * H, F), r(G * H, P))
    return (r(sum(sizes), F), *state, *weights, *biases, r(P, H) if proj else None, kind, sizes, reverse)


@op(
    takes="fc",
    complex=True,
    tensors=8,
    outputs=0,
    at_once=True,
    samples=lambda r: [
        _sample(r, "lstm", (2, 2), False),
        _sample(r, "lstm", (2, 1), True, bias=False, proj=1),
        _sample(r, "gru", (2, 1), False),
        _sample(r, "gru", (1, 1), True, bias=False),
        _sample(r, "tanh", (2, 1), True),
        _sample(r, "tanh" if r(1).is_complex() else "relu", (2, 1), False),
    ],
)
def recurrent(
    xp,
    x,
    h0,
    c0=None,
    w_ih=None,
    w_hh=None,
    b_ih=None,
    b_hh=None,
    w_hr=None,
    kind="lstm",
    sizes=(),
    reverse=False,
):
    """The states (N, P) after each step, the last states (B, P) and, of an lstm, the last cells (B, H).

    Rows of all steps lie one after another; step t has the first `sizes[t]` sequences. kind: lstm, gru, tanh or, of
    real numbers, relu.
    """
    kernel.check_kind(kind, x.dtype)
    y, h, c, _ = _run(xp, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse)
    return (y, h) if c is None else (y, h, c)


def _projected(xp, x, w, b):
    y = xp.matmul(x, xp.swapaxes(w, 0, 1))
    return y if b is None else y + b


def _replaced(xp, state, rows):
    """`state` (B, ...) with its first rows exchanged."""
    n = rows.shape[0]
    return rows if n == state.shape[0] else xp.concat([rows, state[n:]], 0)


def _run(xp, x, h, c, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse):
    """All steps: outputs in the order of time, last state, last cells, and per step (raw state, state before, kept)."""
    gates = _projected(xp, x, w_ih, b_ih)
    outs, steps = [], []
    for begin, n in spans(sizes, reverse):
        before, cells = h[:n], None if c is None else c[:n]
        product = _projected(xp, before, w_hh, b_hh)
        raw, cells, kept = _step(xp, kind, gates[begin : begin + n], product, before, cells)
        steps.append((raw, before, kept))
        outs.append(raw if w_hr is None else _projected(xp, raw, w_hr, None))
        h = _replaced(xp, h, outs[-1])
        c = None if c is None else _replaced(xp, c, cells)
    y = xp.concat(outs[::-1] if reverse else outs, 0) if outs else h[:0]
    return y, h, c, steps


def _step(xp, kind, gx, gh, h, c):
    """State and cells after a step, and what its rule needs."""
    H = gx.shape[1] // GATES[kind]
    if kind == "lstm":
        z = gx + gh
        return _lstm(xp, [z[:, k * H : (k + 1) * H] for k in range(4)], c)
    if kind == "gru":
        y, kept = _gru(xp, *([z[:, k * H : (k + 1) * H] for k in range(3)] for z in (gx, gh)), h)
        return y, None, kept
    y = xp.tanh(gx + gh) if kind == "tanh" else xp.maximum(gx + gh, 0)
    return y, None, (y,)


def _lstm(xp, z, c):
    """State, cells and what the rule needs, of the four gates before their functions."""
    i, f, g, o = xp.sigmoid(z[0]), xp.sigmoid(z[1]), xp.tanh(z[2]), xp.sigmoid(z[3])
    after = f * c + i * g
    t = xp.tanh(after)
    return o * t, after, (i, f, g, o, c, t)


def _gru(xp, gx, gh, h):
    """State and what the rule needs, of the three gates' two parts, and the state before."""
    r, u, share = xp.sigmoid(gx[0] + gh[0]), xp.sigmoid(gx[1] + gh[1]), gh[2]
    n = xp.tanh(gx[2] + r * share)
    return n + u * (h - n), (r, u, n, share, h)


def _gru_back(xp, dh, kept):
    """The gradients of the gates' two parts, and of the state before besides its product."""
    r, u, n, share, h = kept
    dn = dh * (1 - u) * (1 - n * n)
    du = dh * (h - n) * u * (1 - u)
    dr = dn * share * r * (1 - r)
    return (dr, du, dn), (dr, du, dn * r), dh * u


def _lstm_back(xp, dh, dc, kept):
    """The gradients of the four gates, and of the cells before."""
    i, f, g, o, c, t = kept
    dc = dc + dh * o * (1 - t * t)
    return [dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), dh * t * o * (1 - o)], dc * f


def _step_back(xp, kind, dh, dc, kept):
    """Gradients of the gates' two parts, of the state besides its product (or None), and of the cells before."""
    if kind == "lstm":
        parts, dc = _lstm_back(xp, dh, dc, kept)
        dz = xp.concat(parts, 1)
        return dz, dz, None, dc
    if kind == "gru":
        of_x, of_h, direct = _gru_back(xp, dh, kept)
        return xp.concat(of_x, 1), xp.concat(of_h, 1), direct, None
    (y,) = kept
    dz = dh * (1 - y * y) if kind == "tanh" else dh * xp.astype(y > 0, dh.dtype)
    return dz, dz, None, None


@recurrent.vjp_all
def _(xp, needs, g, _y, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse):
    gy, gh, gc = _conjugated(xp, (*g, None)[:3])  # all steps are holomorphic: only their derivative is conjugated
    *_, steps = _run(xp, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse)
    if not steps:
        raise RuntimeError("recurrent: a sequence without steps has no gradient")
    dh_state = xp.zeros_like(h0) if gh is None else gh
    dc_state = None if c0 is None else xp.zeros_like(c0) if gc is None else gc
    dx_gates, dh_gates, given = [], [], []
    for (begin, n), (_raw, _before, kept) in reversed(list(zip(spans(sizes, reverse), steps, strict=True))):
        dh = dh_state[:n] if gy is None else dh_state[:n] + gy[begin : begin + n]
        given.append(dh)
        dc = None if dc_state is None else dc_state[:n]
        dgx, dgh, direct, dc = _step_back(xp, kind, dh if w_hr is None else xp.matmul(dh, w_hr), dc, kept)
        dx_gates.append(dgx)
        dh_gates.append(dgh)
        before = xp.matmul(dgh, w_hh)
        dh_state = _replaced(xp, dh_state, before if direct is None else before + direct)
        dc_state = None if dc is None else _replaced(xp, dc_state, dc)

    def by_time(parts: Any) -> Any:  # the parts were made last step first
        return xp.concat(list(parts) if reverse else list(parts)[::-1], 0)

    states, raws = [before for _, before, _ in steps][::-1], [raw for raw, _, _ in steps][::-1]
    dgx, dgh = by_time(dx_gates), by_time(dh_gates)
    found = (
        xp.matmul(dgx, w_ih) if needs[0] else None,
        dh_state if needs[1] else None,
        dc_state if needs[2] else None,
        xp.matmul(xp.swapaxes(dgx, 0, 1), x) if needs[3] else None,
        xp.matmul(xp.swapaxes(dgh, 0, 1), by_time(states)) if needs[4] else None,
        xp.sum(dgx, axis=0) if needs[5] else None,
        xp.sum(dgh, axis=0) if needs[6] else None,
        xp.matmul(xp.swapaxes(by_time(given), 0, 1), by_time(raws)) if needs[7] else None,
    )
    return _conjugated(xp, found)


def _conjugated(xp, values):
    return tuple(xp.conj(v) if v is not None and is_complex(v) else v for v in values)


def _forward(xp, *args):
    return kernel.forward(list(args[:8]), *args[8:])


def _backward(xp, needs, g, _y, saved, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse):
    inputs = [x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr]
    return kernel.backward(needs, list(g), saved, inputs, kind, sizes, reverse)


override("recurrent", "cpu", _forward, _backward, residual=True, halves=True)


def _is_plain(x, h0, c0, w_hr, kind, sizes):
    """Whether the kernels of a device are for these steps: of 32 or 64 bits, all with all sequences."""
    return (
        kind in ("lstm", "gru")
        and w_hr is None
        and x.dtype.name in ("float32", "float64")
        and len(set(sizes)) == 1
        and bool(x.size and h0.size and (c0 is None or c0.size))
    )


def _forward_on_device(xp, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse):
    """As declared; with what the rule needs where a kernel takes the steps: the states before, and what each keeps.

    The states lie one after another, those before a step beside those after it.
    """
    if not _is_plain(x, h0, c0, w_hr, kind, sizes):
        args = (x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse)
        return OPS["recurrent"].generic.forward(xp, *args), None
    gates, N, n = _projected(xp, x, w_ih, b_ih), x.shape[0], sizes[0]
    states = xp.empty((N + n, h0.shape[1]), x.dtype)
    states[N if reverse else 0 :][:n] = h0
    after, before = (states[:N], states[n:]) if reverse else (states[n:], states[:N])
    c, kept = c0, []
    for begin, _ in spans(sizes, reverse):
        rows = slice(begin, begin + n)
        product = xp.matmul(before[rows], w_hh.T)
        if kind == "lstm":
            c, of_step = on_device.forward(xp, _lstm, gates[rows], product, b_hh, c, after[rows])
        else:
            of_step = on_device.gru_forward(xp, _gru, gates[rows], product, b_hh, before[rows], after[rows])
        kept.append(of_step)
    ends = (xp.array(after, copy=True), xp.array(after[rows], copy=True))
    return ends if c is None else (*ends, c), (before, kept)


def _backward_on_device(xp, needs, g, y, saved, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, kind, sizes, reverse):
    if saved is None:
        arrays = tuple(map(wide, (x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)))
        return OPS["recurrent"].generic.vjp(xp, needs, list(map(widened, g)), y, *arrays, kind, sizes, reverse)
    before, kept = saved
    steps = reversed(list(zip(spans(sizes, reverse), kept, strict=True)))
    run = _lstm_steps_back if kind == "lstm" else _gru_steps_back
    dgx, dgh, dh, dc = run(xp, g, h0, c0, w_hh, (x.shape[0], w_hh.shape[0]), sizes[0], steps)
    of_x = xp.sum(dgx, axis=0) if needs[5] or (dgx is dgh and needs[6]) else None
    of_h = of_x if dgx is dgh else xp.sum(dgh, axis=0) if needs[6] else None
    return (
        xp.matmul(dgx, w_ih) if needs[0] else None,
        dh if needs[1] else None,
        dc if needs[2] else None,
        xp.matmul(dgx.T, x) if needs[3] else None,
        xp.matmul(dgh.T, before) if needs[4] else None,
        of_x if needs[5] else None,
        of_h if needs[6] else None,
        None,
    )


def _lstm_steps_back(xp, g, h0, c0, w_hh, shape, n, steps):
    """Gradients of the gates, twice, of the first state and of the first cells."""
    gy, dh, dc = g
    dh = xp.zeros_like(h0) if dh is None else dh
    dc = xp.zeros_like(c0) if dc is None else dc
    dz = xp.empty(shape, h0.dtype)
    for (begin, _), of_step in steps:
        rows = slice(begin, begin + n)
        dc = on_device.backward(xp, _lstm_back, dh, None if gy is None else gy[rows], dc, of_step, dz[rows])
        dh = xp.matmul(dz[rows], w_hh)
    return dz, dz, dh, dc


def _gru_steps_back(xp, g, h0, _c0, w_hh, shape, n, steps):
    """Gradients of the gates' two parts, of the first state, and None."""
    gy, dh = g[:2]
    dh, direct = xp.zeros_like(h0) if dh is None else dh, None
    dgx, dgh = xp.empty(shape, h0.dtype), xp.empty(shape, h0.dtype)
    for (begin, _), of_step in steps:
        rows = slice(begin, begin + n)
        more = None if gy is None else gy[rows]
        direct = on_device.gru_backward(xp, _gru_back, dh, direct, more, of_step, dgx[rows], dgh[rows])
        dh = xp.matmul(dgh[rows], w_hh)
    return dgx, dgh, dh + direct, None


override("recurrent", "cuda", _forward_on_device, _backward_on_device, residual=True)
on_device.declare(_lstm, _lstm_back, _gru, _gru_back)
