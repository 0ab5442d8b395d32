"""Functions of torch.nn.functional: arguments checked and normalised. Windows and losses have modules of their own."""

from __future__ import annotations

import functools
import math
import operator
import warnings
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import index_checks
from resilin.core.api.mathematics import reducing
from resilin.core.api.mathematics.half_precision import opened
from resilin.core.autograd.grad_mode import mode
from resilin.core.device import different_devices
from resilin.core.kernels import index_range
from resilin.core.kernels.common import has_elements, is_readable
from resilin.core.kernels.loader import guarded, short
from resilin.core.ops import activation, attention, loss, random
from resilin.core.ops import index as index_ops
from resilin.core.ops import matmul as products
from resilin.core.ops import shape as shape_ops
from resilin.core.state import inplace as inplace_ops
from resilin.core.state.size import check_dim
from resilin.core.state.write_log import before_write
from resilin.core.tensor import Tensor, wrap

sigmoid, silu, erf = activation.sigmoid.call, activation.silu.call, activation.erf.call
dropout = random.dropout


def _dim(where: str, input: Tensor, dim: int | None) -> int:
    ndim = input._array.ndim
    if dim is None:
        warnings.warn(
            f"{where}: the implicit choice of a dimension has been deprecated; give dim=", UserWarning, stacklevel=3
        )
        dim = 0 if ndim in (0, 1, 3) else 1
    return check_dim(dim, ndim)


def _need_floating(where: str, input: Tensor) -> None:
    if input._array.dtype.kind not in "fV":
        raise RuntimeError(f"{where}: expected a floating point tensor, got {input.dtype}; give dtype=")


def need_tensors(where: str, **values: Any) -> None:
    """TypeError unless every value is a Tensor, RuntimeError unless they are on one device."""
    first: Any = None
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"{where}(): argument {name!r} must be a Tensor, got {type(value).__name__}")
        first = first or value._dev
        if value._dev is not first:
            raise different_devices(where, first, value._dev)


need_tensors = guarded(None, need_tensors, "plain_tensors")


def need_numbers(where: str, **values: Any) -> None:
    """TypeError for what is no real number: also for arrays and tensors with dimensions, which would be broadcast."""
    for name, value in values.items():
        if not isinstance(value, int | float) and (not hasattr(value, "__float__") or getattr(value, "ndim", False)):
            raise TypeError(f"{where}(): argument {name!r} must be Number, not {type(value).__name__}")


need_numbers = guarded(None, need_numbers, "numbers")


def widened(input: Tensor) -> Tensor:
    """`input`, or as float32 when its floats have 16 bits, in which squares overflow and sums lose digits."""
    dtype = input._array.dtype
    narrow = dtype.itemsize == 2 and dtype.kind in "fV"
    return shape_ops.astype.call(input, np.dtype(np.float32)) if narrow else input


def softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """exp(input) / sum(exp(input)) along `dim`."""
    x = input if dtype is None else input.to(dtype)
    _need_floating("softmax", x)
    axis = _dim("softmax", x, dim)
    return activation.softmax.call(x, axis) if x._array.ndim else x * 0 + 1


def log_softmax(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    """log(softmax(input)) along `dim`."""
    x = input if dtype is None else input.to(dtype)
    _need_floating("log_softmax", x)
    axis = _dim("log_softmax", x, dim)
    return activation.log_softmax.call(x, axis) if x._array.ndim else x * 0


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(input, 0)."""
    return input.relu_() if inplace else activation.relu.call(input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input * Phi(input), exact or with `approximate="tanh"`."""
    return activation.gelu.call(input, approximate)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * input)) / beta."""
    need_numbers("softplus", beta=beta, threshold=threshold)
    return activation.softplus.call(input, beta, threshold)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight.T + bias for weight (out, in)."""
    if type(input) is not Tensor or not isinstance(weight, Tensor) or input._dev is not weight._dev:
        need_tensors("linear", input=input, weight=weight)
    x, w = input._array, weight._array
    if x.shape[-1:] != w.shape[-1:]:
        raise RuntimeError(
            f"linear: input of shape {tuple(x.shape)} and weight of shape {tuple(w.shape)} cannot be multiplied: "
            "the last dimensions must be equal"
        )
    if x.dtype is not w.dtype and x.dtype != w.dtype:
        raise RuntimeError(f"linear: input and weight must have the same dtype, got {input.dtype} and {weight.dtype}")
    if bias is not None and bias._array.shape not in (w.shape[:-1], (1,), ()):
        raise RuntimeError(f"linear: bias of shape {tuple(bias.shape)} does not fit weight of shape {tuple(w.shape)}")
    if w.ndim > 2:
        raise RuntimeError(f"linear: weight must be (out, in) or (in,), got shape {tuple(w.shape)}")
    if w.ndim == 1:  # one row, whose dimension the result lacks
        return linear(input, weight.reshape(1, -1), None if bias is None else bias.reshape(1)).squeeze(-1)
    return products.linear.call(input, weight, bias)


@short("embedding_rows", "input weight")
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The rows of `weight` (num, D) at `input`; row `padding_idx` gets no gradient. IndexError out of range.

    max_norm: rows looked up whose `norm_type`-norm is larger are first scaled down to it, in `weight` itself.
    scale_grad_by_freq: the gradients of a row are divided by how often it occurs in `input`.
    sparse: refused; gradients are dense.
    """
    if sparse:
        raise NotImplementedError("embedding: there are no sparse tensors; leave out sparse=True, gradients are dense")
    need_tensors("embedding", input=input, weight=weight)
    index = input._array
    if index.dtype.kind not in "iu":
        raise RuntimeError(f"embedding: expected indices of an integer dtype, got {input.dtype}")
    if input._dev is not weight._dev:
        raise different_devices("embedding", weight._dev, input._dev)
    if weight._array.ndim != 2:
        raise RuntimeError(f"embedding: 'weight' must be 2-D, got shape {tuple(weight.shape)}")
    num = weight._array.shape[0]
    later = hasattr(weight._dev.xp, "launch")  # the kernel looks at them, and the host need not wait
    inside = later or index_range.within(index, 0, num)
    if not inside and is_readable(index) and (int(index.max()) >= num or int(index.min()) < 0):
        raise IndexError(f"embedding: index out of range: the table has {num} rows, got {index.min()} to {index.max()}")
    if padding_idx is not None and not -num <= padding_idx < num:
        raise RuntimeError(f"embedding: padding_idx must be within the table's {num} rows, got {padding_idx}")
    if padding_idx is not None and padding_idx < 0:
        padding_idx += num
    if max_norm is not None and has_elements(index):
        _limit_rows(weight, np.unique(index), max_norm, norm_type)
    index = index_checks.kept(index, weight)
    if not (scale_grad_by_freq and has_elements(index)):
        return loss.embedding.call(weight, index, padding_idx)
    _, rows, counts = np.unique(index, return_inverse=True, return_counts=True)
    return loss.embedding.call(weight, index, padding_idx, (1 / counts)[rows].reshape(index.shape))


def _limit_rows(weight: Tensor, rows: Any, max_norm: float, norm_type: float) -> None:
    """Scale those of `rows` down whose norm exceeds `max_norm`, in place and outside the graph."""
    norms = np.linalg.norm(weight._array[rows].astype(np.float64), norm_type, axis=1)
    long = norms > max_norm
    scale = max_norm / (norms[long] + 1e-7)  # PyTorch's guard against 0
    before_write(weight)
    weight._array[rows[long]] = weight._array[rows[long]].astype(np.float64) * scale[:, None]
    weight._bump()


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value over the last two dimensions; `scale` None is 1 / sqrt(width).

    With `is_causal` query t sees keys 0 to t, of these the ones that `attn_mask` lets through.
    """
    _check_operands(query, key, value, dropout_p)
    if enable_gqa:
        q, k, v, mask, narrow = opened(query, key, value, attn_mask)  # gradients of heads that share one are added
        repeats = query._array.shape[-3] // key._array.shape[-3]
        k, v = k.repeat_interleave(repeats, -3), v.repeat_interleave(repeats, -3)
        made: Tensor = narrow(scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale))
        return made
    q, k = query._array, key._array
    if q.shape[-1] != k.shape[-1] or value._array.shape[-2] != k.shape[-2]:
        raise RuntimeError(
            f"scaled_dot_product_attention: query {tuple(q.shape)}, key {tuple(k.shape)} and value "
            f"{tuple(value.shape)} do not fit: query and key need equal widths, key and value equal lengths"
        )
    if attn_mask is not None:
        _check_mask(attn_mask, q, (*q.shape[:-1], k.shape[-2]))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    dropped = random.draw_mask((*q.shape[:-1], k.shape[-2]), dropout_p, query._dev) if dropout_p > 0 else None
    lead = q.shape[:-2] == k.shape[:-2] == value._array.shape[:-2]
    if lead and not (attn_mask is not None and attn_mask.requires_grad and mode.grad):
        mask = None if attn_mask is None else attn_mask._array
        return attention.attention.call(query, key, value, mask, is_causal, factor, dropped)
    q, k, v, mask, narrow = opened(query, key, value, attn_mask)
    return narrow(_plain_attention(q, k, v, mask, is_causal, factor, dropped))


def _check_operands(query: Tensor, key: Tensor, value: Tensor, dropout_p: float) -> None:
    where = "scaled_dot_product_attention"
    need_tensors(where, query=query, key=key, value=value)
    q, k, v = query._array, key._array, value._array
    if min(q.ndim, k.ndim, v.ndim) < 2:
        shapes = tuple(tuple(a.shape) for a in (q, k, v))
        raise RuntimeError(f"{where}: query, key and value need at least 2 dimensions, got {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        kinds = (query.dtype, key.dtype, value.dtype)
        raise RuntimeError(f"{where}: query, key and value must have the same dtype, got {kinds}")
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"{where}: dropout_p must be between 0 and 1, got {dropout_p}")


def _check_mask(mask: Tensor, q: Any, scores: tuple[int, ...]) -> None:
    m = mask._array
    if m.dtype.kind not in "bfV":
        raise RuntimeError(f"scaled_dot_product_attention: expected attn_mask of dtype bool or float, got {mask.dtype}")
    try:
        fits = np.broadcast_shapes(m.shape[-2:], scores[-2:]) == scores[-2:]
        np.broadcast_shapes(m.shape, scores)
    except ValueError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"scaled_dot_product_attention: attn_mask of shape {tuple(m.shape)} does not broadcast to the scores' "
            f"shape {scores}"
        )


def _plain_attention(query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float, dropped: Any) -> Tensor:
    scores = query @ key.transpose(-2, -1) * scale
    if causal:
        hidden = ~np.tri(*scores._array.shape[-2:], dtype=np.bool_)
        scores = scores.masked_fill(wrap(hidden, query._dev), -math.inf)
    if mask is not None:
        scores = scores.masked_fill(mask.logical_not(), -math.inf) if mask._array.dtype.kind == "b" else scores + mask
    nothing = (scores.detach() == -math.inf).all(-1, True)  # a query without keys gives zeros, in the gradients too
    p = softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    if dropped is not None:
        p = random.apply_mask.call(p, dropped.astype(p._array.dtype, copy=False))
    return p @ value


@short("pad", "input pad mode value")
def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """`value` (0) around the input: `pad` gives (before, after) from the last dimension backwards; negative cuts.

    mode: "constant", "reflect" (mirrored, the edge not repeated), "replicate" (the edge) or "circular" (the other end).
    """
    pad = [_width(width) for width in pad]
    if len(pad) % 2 or len(pad) > 2 * input._array.ndim:
        raise RuntimeError(f"pad: expected pairs for at most {input._array.ndim} dimensions, got {tuple(pad)}")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    if mode != "constant":
        if value:
            raise RuntimeError(f'pad: Padding mode "{mode}" doesn\'t take in value argument, got {value}')
        return _pad_from_inside(input, pairs, mode)
    widths = tuple((0, 0) for _ in range(input._array.ndim - len(pairs))) + tuple(reversed(pairs))
    for length, pair in zip(input._array.shape, widths, strict=True):
        if length + min(pair[0], 0) + min(pair[1], 0) < 0:
            raise RuntimeError(f"pad: cannot cut {pair} off a dimension of {length} in {tuple(input.shape)}")
    if isinstance(value, int):  # a float, as in PyTorch: -1 is no number of unsigned integers
        value = float(value)
    elif isinstance(value, complex) and input._array.dtype.kind != "c":
        raise TypeError(f"pad(): expected a real number as value of {input.dtype}, got {value!r}")
    number = dtypes.number_for("pad", 0.0 if value is None else value, input._array.dtype)
    return shape_ops.pad_constant.call(input, widths, number)


def _width(given: Any) -> int:
    """One of the numbers of `pad`, also numpy's, as an int. TypeError for all else, booleans among it."""
    if isinstance(given, bool | np.bool_) or not hasattr(given, "__index__"):
        raise TypeError(f"pad(): expected integers as pad, got {given!r:.80} of type {type(given).__name__}")
    return operator.index(given)


_NUMPY_MODES: dict[str, Any] = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pad_from_inside(input: Tensor, pairs: list[tuple[int, int]], mode: str) -> Tensor:
    """`pad` with elements of the input: each dimension is indexed by its padded positions."""
    if mode not in _NUMPY_MODES:
        raise ValueError(f"pad: mode must be 'constant', 'reflect', 'replicate' or 'circular', got {mode!r}")
    if input.requires_grad:  # gradients that meet at one element are added, dimension by dimension
        wide, narrow = opened(input)
        if wide is not input:
            made: Tensor = narrow(_pad_from_inside(wide, pairs, mode))
            return made
    for number, pair in enumerate(pairs):
        axis = input._array.ndim - 1 - number
        if pair != (0, 0):
            places = _padded_places(input._array.shape[axis], pair, mode)
            input = index_ops.getitem.call(input, (*(slice(None),) * axis, places) if axis else places)
    return input


@functools.lru_cache(256)
def _padded_places(size: int, pair: tuple[int, int], mode: str) -> Any:
    """Which element each place shows. "circular" first cuts, then pads with what is left; the others the reverse."""
    cut = slice(max(-pair[0], 0), max(size - max(-pair[1], 0), 0))
    widths = (max(pair[0], 0), max(pair[1], 0))
    places = np.arange(size)[cut] if mode == "circular" else np.arange(size)
    most = {"reflect": size - 1, "circular": len(places)}.get(mode, max(widths) if size else 0)
    length = size + sum(pair)
    if max(widths) > most or length < 0 or (length == 0 and min(pair) < 0):
        raise RuntimeError(
            f"pad: with mode {mode!r}, a dimension of length {size} takes padding up to {most}, must keep an element; "
            f"got {pair}"
        )
    padded = np.pad(places, widths, mode=_NUMPY_MODES[mode])
    padded = padded if mode == "circular" else padded[cut.start : cut.start + length]
    padded.flags.writeable = False  # all that ask for the same get this one
    return padded


@short("one_hot", "tensor num_classes")
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """A new last dimension with 1 at the class number, else 0; int64."""
    array = tensor._array
    if array.dtype.kind not in "iu":
        raise RuntimeError(f"one_hot is only applicable to index tensors of an integer dtype, got {tensor.dtype}")
    if not array.size and num_classes <= 0:
        raise RuntimeError("one_hot: give num_classes for an empty tensor")
    index_range.check(array, 0, 1 << 43, RuntimeError, "Class values must be non-negative, got {value}")
    if num_classes < -1:
        raise RuntimeError(f"one_hot: num_classes must be -1 (from the data) or not negative, got {num_classes}")
    classes = int(array.max()) + 1 if num_classes < 0 else num_classes
    text = f"Class values must be smaller than num_classes={classes}, got {{value}}"
    index_range.check(array, 0, classes, RuntimeError, text)
    if isinstance(array, np.ndarray):
        made = np.zeros((array.size, classes), np.int64)
        made[np.arange(array.size), array.reshape(-1)] = 1
        return wrap(made.reshape(*array.shape, classes), tensor._dev)
    return wrap((tensor._array[..., None] == tensor._dev.xp.arange(classes)).astype(np.int64), tensor._dev)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Tensor:
    """input divided by its p-norm along `dim` (at least eps); written into `out` if given, which must fit."""
    need_tensors("normalize", input=input)
    need_numbers("normalize", eps=eps)
    wide, narrow = opened(input)
    made: Tensor = narrow(wide / reducing.norm(wide, p, dim, True).clamp(min=eps))
    return made if out is None else inplace_ops.copy_(out, made)
