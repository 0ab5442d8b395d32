"""What the ops of layers and losses compute, written out on numpy arrays: loops where the kernels have none."""

# N samples, C channels, H W input size, K classes or kernel, P Q output size

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.special  # type: ignore[import-untyped]

Array = Any
Pair = tuple[int, int]


def _taps(
    size: Pair, kernel: Pair, out: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> Iterator[tuple[Pair, Pair, Pair]]:
    """All (output place, kernel place, input place) that meet inside the image."""
    for place in np.ndindex(*out):
        for tap in np.ndindex(*kernel):
            at = tuple(place[i] * stride[i] - padding[i] + tap[i] * dilation[i] for i in (0, 1))
            if 0 <= at[0] < size[0] and 0 <= at[1] < size[1]:
                yield place, tap, at


def _out_size(size: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    both = ((size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1))
    return tuple(both)  # type: ignore[return-value]


def _groups(channels: int, filters: int, groups: int) -> Iterator[tuple[slice, slice]]:
    """(input channels, output channels) of each group; `channels` per group."""
    for g in range(groups):
        yield slice(g * channels, (g + 1) * channels), slice(g * filters // groups, (g + 1) * filters // groups)


def conv2d(x: Array, w: Array, bias: Array, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """Each output is the sum of the products under its window."""
    out = _out_size(x.shape[2:], w.shape[2:], stride, padding, dilation)
    y = np.zeros((len(x), len(w), *out), x.dtype)
    for (p, q), (i, j), (h, v) in _taps(x.shape[2:], w.shape[2:], out, stride, padding, dilation):
        for own, made in _groups(w.shape[1], len(w), groups):
            y[:, made, p, q] += x[:, own, h, v] @ w[made, :, i, j].T
    return y if bias is None else y + bias[:, None, None]


def conv2d_input(g: Array, w: Array, shape: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """What each input counted in `conv2d`."""
    dx = np.zeros(shape, g.dtype)
    for (p, q), (i, j), (h, v) in _taps(shape[2:], w.shape[2:], g.shape[2:], stride, padding, dilation):
        for own, made in _groups(w.shape[1], len(w), groups):
            dx[:, own, h, v] += g[:, made, p, q] @ w[made, :, i, j]
    return dx


def conv2d_weight(g: Array, x: Array, shape: Any, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """What each weight counted in `conv2d`."""
    dw = np.zeros(shape, g.dtype)
    for (p, q), (i, j), (h, v) in _taps(x.shape[2:], shape[2:], g.shape[2:], stride, padding, dilation):
        for own, made in _groups(shape[1], shape[0], groups):
            dw[made, :, i, j] += g[:, made, p, q].T @ x[:, own, h, v]
    return dw


def unfold_windows(x: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Array:
    """Column by column."""
    out = _out_size(x.shape[2:], kernel, stride, padding, dilation)
    columns = np.zeros((*x.shape[:2], *kernel, *out), x.dtype)
    for (p, q), (i, j), (h, v) in _taps(x.shape[2:], kernel, out, stride, padding, dilation):
        columns[:, :, i, j, p, q] = x[:, :, h, v]
    return columns.reshape(len(x), -1, out[0] * out[1])


def fold_windows(g: Array, shape: Any, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Array:
    """Column by column."""
    out = _out_size(shape[1:], kernel, stride, padding, dilation)
    image = np.zeros((len(g), *shape), g.dtype)
    columns = g.reshape(len(g), shape[0], *kernel, *out)
    for (p, q), (i, j), (h, v) in _taps(shape[1:], kernel, out, stride, padding, dilation):
        image[:, :, h, v] += columns[:, :, i, j, p, q]
    return image


def max_pool2d(x: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, _ceil_mode: bool) -> Array:
    """Window by window."""
    out = _out_size(x.shape[2:], kernel, stride, padding, dilation)
    y = np.full((*x.shape[:2], *out), -np.inf)
    for (p, q), _, (h, v) in _taps(x.shape[2:], kernel, out, stride, padding, dilation):
        y[:, :, p, q] = np.maximum(y[:, :, p, q], x[:, :, h, v])
    return y


def max_pool2d_scatter(g: Array, index: Array, shape: Any) -> Array:
    """Place by place."""
    image = np.zeros((*shape[:2], shape[2] * shape[3]), g.dtype)
    for place in np.ndindex(*g.shape):
        image[(*place[:2], index[place])] += g[place]
    return image.reshape(shape)


def _windows(rows: Array, columns: Array) -> Iterator[tuple[Pair, slice, slice, int]]:
    for (p, (top, bottom, height)), (q, (left, right, width)) in itertools.product(enumerate(rows), enumerate(columns)):
        yield (p, q), slice(top, bottom), slice(left, right), height * width


def avg_pool2d(x: Array, rows: Array, columns: Array) -> Array:
    """Window by window."""
    y = np.zeros((*x.shape[:2], len(rows), len(columns)), x.dtype)
    for (p, q), high, wide, count in _windows(rows, columns):
        y[:, :, p, q] = x[:, :, high, wide].sum((2, 3)) / count
    return y


def avg_pool2d_spread(g: Array, rows: Array, columns: Array, size: Pair) -> Array:
    """Window by window."""
    image = np.zeros((*g.shape[:2], *size), g.dtype)
    for (p, q), high, wide, count in _windows(rows, columns):
        image[:, :, high, wide] += g[:, :, p : p + 1, q : q + 1] / count
    return image


def layer_norm(x: Array, weight: Array, bias: Array, eps: float, D: int) -> Array:
    """Row by row."""
    rows = [(row - row.mean()) / np.sqrt(row.var() + eps) for row in x.reshape(-1, D)]
    shape = x.shape if weight is None else (-1, *weight.shape)
    y = np.reshape(rows, shape) * (1 if weight is None else weight) + (0 if bias is None else bias)
    return y.reshape(x.shape)


def batch_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """Channel by channel."""
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        one = (x[:, c] - x[:, c].mean()) / np.sqrt(x[:, c].var() + eps)
        y[:, c] = one * (1 if weight is None else weight[c]) + (0 if bias is None else bias[c])
    return y


def scale_channels(x: Array, weight: Array, bias: Array) -> Array:
    """Channel by channel."""
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        y[:, c] = x[:, c] * (1 if weight is None else weight[c]) + (0 if bias is None else bias[c])
    return y


def batch_norm_fixed(x: Array, mean: Array, var: Array, weight: Array, bias: Array, eps: float) -> Array:
    """Channel by channel."""
    y = np.empty_like(x)
    for c in range(x.shape[1]):
        one = (x[:, c] - mean[c]) / np.sqrt(var[c] + eps)
        y[:, c] = one * (1 if weight is None else weight[c]) + (0 if bias is None else bias[c])
    return y


def attention(q: Array, k: Array, v: Array, mask: Array, causal: bool, scale: float) -> Array:
    """Probabilities over the keys that take part, times their values."""
    scores = np.einsum("...td,...sd->...ts", q, k) * scale
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    return np.einsum("...ts,...se->...te", scipy.special.softmax(scores, -1), v)


def cross_entropy(
    logits: Array,
    target: Array,
    weight: Array = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    count: int | None = None,
) -> Array:
    """Sample by sample."""
    losses = []
    for row, label in zip(scipy.special.log_softmax(logits, 1), target, strict=True):
        each = -row * (1 if weight is None else weight)
        losses.append(
            0.0 if label == ignore_index else (1 - label_smoothing) * each[label] + label_smoothing * each.mean()
        )
    return np.array(losses) if count is None else np.sum(losses) / count


def bce_with_logits(x: Array, target: Array) -> Array:
    """By the definition of the binary cross entropy."""
    p = scipy.special.expit(x)
    return -(target * np.log(p) + (1 - target) * np.log1p(-p))


def binary_cross_entropy(x: Array, target: Array) -> Array:
    """By its definition, for probabilities other than 0 and 1."""
    return -(target * np.log(x) + (1 - target) * np.log(1 - x))


def embedding_grad(g: Array, index: Array, num: int) -> Array:
    """Row by row."""
    out = np.zeros((num, g.shape[-1]), g.dtype)
    for place in np.ndindex(*index.shape):
        out[index[place]] += g[place]
    return out


def _bags(index: Array, starts: Array, mean: bool) -> Iterator[tuple[int, Array, int]]:
    """Each bag, its part of `index`, and by what its sum is divided."""
    for bag, part in enumerate(np.split(index, starts[1:])):
        yield bag, part, max(len(part), 1) if mean else 1


def embedding_bags(weight: Array, index: Array, starts: Array, mean: bool = False) -> Array:
    """Bag by bag."""
    out = np.zeros((len(starts), weight.shape[1]), weight.dtype)
    for bag, part, count in _bags(index, starts, mean):
        out[bag] = sum((weight[row] for row in part), out[bag]) / count
    return out


def embedding_bags_grad(g: Array, index: Array, starts: Array, mean: bool, num: int) -> Array:
    """Bag by bag."""
    out = np.zeros((num, g.shape[1]), g.dtype)
    for bag, part, count in _bags(index, starts, mean):
        for row in part:
            out[row] += g[bag] / count
    return out


def euclidean_distances(x1: Array, x2: Array, _products: bool = False) -> Array:
    """Difference by difference."""
    return np.linalg.norm(x1[..., :, None, :] - x2[..., None, :, :], axis=-1)


def row_distances(x1: Array, x2: Array, p: float = 1.0) -> Array:
    """Difference by difference."""
    return np.linalg.norm(x1[..., :, None, :] - x2[..., None, :, :], ord=p, axis=-1)


def recurrent(
    x: Array, h0: Array, c0: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array, w_hr: Array, kind: str,
    sizes: Any, reverse: bool,
) -> tuple[Array, ...]:  # fmt: skip
    """Sequence by sequence, step by step."""
    starts = np.cumsum((0, *sizes))
    y = np.zeros((len(x), h0.shape[1]), np.result_type(x, float))
    h, c = np.array(h0), None if c0 is None else np.array(c0)
    for b in range(len(h0)):
        rows = [starts[t] + b for t, n in enumerate(sizes) if b < n]
        for row in reversed(rows) if reverse else rows:
            a = w_ih @ x[row] + (0 if b_ih is None else b_ih)
            u = w_hh @ h[b] + (0 if b_hh is None else b_hh)
            h[b], cell = _recurrent_step(kind, a, u, h[b], None if c is None else c[b], w_hr)
            y[row] = h[b]
            if c is not None:
                c[b] = cell
    return (y, h) if c is None else (y, h, c)


def _logistic(z: Array) -> Array:
    return 1 / (1 + np.exp(-z)) if z.dtype.kind == "c" else scipy.special.expit(z)


def _recurrent_step(kind: str, a: Array, u: Array, h: Array, c: Array, w_hr: Array) -> tuple[Array, Array]:
    if kind in ("tanh", "relu"):
        return np.tanh(a + u) if kind == "tanh" else np.maximum(a + u, 0), None
    if kind == "gru":
        (ar, az, an), (ur, uz, un) = np.split(a, 3), np.split(u, 3)
        z = _logistic(az + uz)
        return (1 - z) * np.tanh(an + _logistic(ar + ur) * un) + z * h, None
    i, f, g, o = np.split(a + u, 4)
    cell = _logistic(f) * c + _logistic(i) * np.tanh(g)
    raw = _logistic(o) * np.tanh(cell)
    return (raw if w_hr is None else w_hr @ raw), cell


def _alignments(length: int, classes: int, target: Array, blank: int) -> Iterator[tuple[int, ...]]:
    """All paths through `length` steps that spell `target`: repetitions are merged, then blanks are dropped."""
    for path in itertools.product(range(classes), repeat=length):
        merged = [label for label, _ in itertools.groupby(path)]
        if [label for label in merged if label != blank] == list(target):
            yield path


def ctc_loss(log_probs: Array, targets: Any, lengths: Any, blank: int) -> Array:
    """Minus the logarithm of the sum over all alignments, one by one."""
    losses = []
    for n, (target, length) in enumerate(zip(targets, lengths, strict=True)):
        paths = _alignments(length, log_probs.shape[2], target, blank)
        losses.append(-np.log(sum(np.exp(sum(log_probs[t, n, label] for t, label in enumerate(p))) for p in paths)))
    return np.array(losses)


def ctc_loss_grad(g: Array, _losses: Array, log_probs: Array, targets: Any, lengths: Any, blank: int) -> Array:
    """exp(log_probs) minus the share of the alignments that pass through a class at a time."""
    out = np.zeros(log_probs.shape)
    for n, (target, length) in enumerate(zip(targets, lengths, strict=True)):
        share, total = np.zeros(log_probs.shape[::2]), 0.0
        for path in _alignments(length, log_probs.shape[2], target, blank):
            p = np.exp(sum(log_probs[t, n, label] for t, label in enumerate(path)))
            total += p
            for t, label in enumerate(path):
                share[t, label] += p
        out[:length, n] = g[n] * (np.exp(log_probs[:length, n]) - share[:length] / total)
    return out


ALL = {
    fn.__name__: fn
    for fn in (
        conv2d, conv2d_input, conv2d_weight, unfold_windows, fold_windows, max_pool2d, max_pool2d_scatter, avg_pool2d,
        avg_pool2d_spread, layer_norm, batch_norm, batch_norm_fixed, scale_channels, attention, cross_entropy,
        bce_with_logits, binary_cross_entropy, embedding_grad, embedding_bags, embedding_bags_grad,
        euclidean_distances, row_distances, recurrent, ctc_loss, ctc_loss_grad,
    )
}  # fmt: skip
