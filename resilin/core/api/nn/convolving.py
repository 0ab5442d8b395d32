"""Convolution and transposed convolution of torch.nn.functional: arguments checked, all dimensions led to two.

One dimension is two of height 1. In three, the kernel's depth joins the channels: each output slice is a
two-dimensional convolution of the slices that its kernel covers.
"""

# N samples, C input channels, O output channels, G groups, D H W input size, KD KH KW kernel size, P depth of output

from __future__ import annotations

import functools
from typing import Any

from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.mathematics.windows import Lengths, batched, check_window, per_axis
from resilin.core.api.nn.neural import need_tensors, pad
from resilin.core.ops import conv, shape
from resilin.core.ops import index as index_ops
from resilin.core.ops.creation import zeros
from resilin.core.tensor import Tensor


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input (N, C, L) or (C, L) with weight (O, C / groups, K).

    `padding` is a number, "same" or "valid".
    """
    return _convolve("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input (N, C, H, W) or (C, H, W) with weight (O, C / groups, KH, KW).

    `padding` is a number, a pair, "same" or "valid".
    """
    return _convolve("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@rounded_once
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input (N, C, D, H, W) or (C, D, H, W) with weight (O, C / groups, KD, KH, KW).

    `padding` is a number, a triple, "same" or "valid".
    """
    return _convolve("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The gradient of conv1d's input: input (N, C, L) or (C, L), weight (C, O / groups, K)."""
    made = _transpose if bias is None else _transpose_rounded_once
    return made("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The gradient of conv2d's input: input (N, C, H, W) or (C, H, W), weight (C, O / groups, KH, KW)."""
    made = _transpose if bias is None else _transpose_rounded_once
    return made("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


@rounded_once
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The gradient of conv3d's input: input (N, C, D, H, W) or (C, D, H, W), weight (C, O / groups, KD, KH, KW)."""
    return _transpose("conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation)


@rounded_once
def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """Cross-correlation of input (time, batch, C) with weight (K, C, O); `bias` (O,)."""
    need_tensors("conv_tbc", input=input, weight=weight, bias=bias)
    if input._array.ndim != 3 or weight._array.ndim != 3:
        raise RuntimeError(
            f"conv_tbc: expected input (time, batch, channels) and weight (width, channels, outputs), got "
            f"{tuple(input.shape)} and {tuple(weight.shape)}"
        )
    out = _convolve("conv_tbc", 1, input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, 1, pad, 1, 1)
    return out.permute(2, 0, 1)


def _check_operands(where: str, count: int, input: Tensor, weight: Tensor, groups: int, transposed: bool) -> None:
    x, w = input._array, weight._array
    if x.ndim not in (count + 1, count + 2) or w.ndim != count + 2:
        raise RuntimeError(
            f"{where}: expected {count + 1}D or {count + 2}D input and {count + 2}D weight, got {tuple(x.shape)} and "
            f"{tuple(w.shape)}"
        )
    if groups < 1:
        raise RuntimeError(f"{where}: groups must be at least 1, got {groups}")
    if w.shape[0] % groups:
        raise RuntimeError(
            f"{where}: expected weight to be divisible by groups={groups} at dimension 0, got {tuple(w.shape)}"
        )
    if not (w.shape[0] and w.shape[1]):
        raise RuntimeError(f"{where}: expected weight of at least one input and output channel, got {tuple(w.shape)}")
    channels = w.shape[0] if transposed else w.shape[1] * groups
    if x.shape[-count - 1] != channels:
        raise RuntimeError(
            f"{where}: weight {tuple(w.shape)} with groups={groups} expects input with {channels} channels, "
            f"got {x.shape[-count - 1]} in {tuple(x.shape)}"
        )
    if x.dtype != w.dtype:
        raise RuntimeError(f"{where}: input and weight must have the same dtype, got {input.dtype} and {weight.dtype}")


def _check_bias(weight: Tensor, bias: Tensor | None, channels: int) -> None:
    if bias is not None and bias._array.shape != (channels,):
        raise RuntimeError(
            f"Given weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {channels} elements, "
            f"but got bias of size {list(bias.shape)} instead"
        )


def _convolve(
    where: str,
    count: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    need_tensors(where, input=input, weight=weight)
    whole = type(groups) is int and _whole(stride) and _whole(padding) and _whole(dilation)
    if whole and input._array.dtype is weight._array.dtype:  # most calls
        shapes = input._array.shape, weight._array.shape, None if bias is None else bias._array.shape
        known = _geometry(count, *shapes, stride, padding, dilation, groups)
        if known is not None:
            return _BY_COUNT[count](input, weight, bias, *known, groups)
    _check_operands(where, count, input, weight, groups, transposed=False)
    _check_bias(weight, bias, weight._array.shape[0])
    x = batched(where, input, count)
    kernel = tuple(weight._array.shape[2:])
    strides, dilations = per_axis(where, "stride", stride, count), per_axis(where, "dilation", dilation, count)
    x, paddings = _padded(where, x, padding, kernel, strides, dilations)
    check_window(where, kernel, strides, paddings, dilations)
    for n, k, p, d in zip(x._array.shape[2:], kernel, paddings, dilations, strict=True):
        if n + 2 * p < d * (k - 1) + 1:
            raise RuntimeError(
                f"{where}: Calculated padded input size per channel: {n + 2 * p} in one of the dimensions of "
                f"{tuple(x.shape)}. Kernel size: {d * (k - 1) + 1}. Kernel size can't be greater than actual input size"
            )
    along = _BY_COUNT[count]
    out: Tensor = along(x, weight, bias, strides, paddings, dilations, groups)
    return out if x._array.ndim == input._array.ndim else out.squeeze(0)


def _whole(value: Any) -> bool:
    """Whether a length is an int or a tuple of some."""
    return type(value) is int or (type(value) is tuple and {*map(type, value)} == {int})


@functools.lru_cache(256)
def _geometry(
    count: int, x: Lengths, w: Lengths, bias: Lengths | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> tuple[Lengths, Lengths, Lengths] | None:
    """Stride, padding and dilation of every dimension for operands of these shapes.

    None for what `_convolve` has to look at, where it is wrong or a batch has to be made.
    """
    if len(x) != count + 2 or len(w) != count + 2 or groups < 1 or x[1] != w[1] * groups or w[0] % groups:
        return None
    given = [value if type(value) is tuple else (value,) * count for value in (stride, padding, dilation)]
    if bias not in (None, w[:1]) or any(len(lengths) != count for lengths in given):
        return None
    strides, paddings, dilations = given
    if min(w) < 1 or min(strides) < 1 or min(dilations) < 1 or min(paddings) < 0:
        return None
    if any(n + 2 * p < d * (k - 1) + 1 for n, k, p, d in zip(x[2:], w[2:], paddings, dilations, strict=True)):
        return None
    return strides, paddings, dilations


def _padded(
    where: str, x: Tensor, padding: Any, kernel: Lengths, stride: Lengths, dilation: Lengths
) -> tuple[Tensor, Lengths]:
    """`x` and the equal padding of both sides that is left to do; "same" may pad one side more, which is done here."""
    if padding == "valid":
        return x, (0,) * len(kernel)
    if padding != "same":
        if isinstance(padding, str):
            raise RuntimeError(f"{where}: padding must be 'same', 'valid' or numbers, got {padding!r}")
        return x, per_axis(where, "padding", padding, len(kernel))
    if set(stride) != {1}:
        raise RuntimeError(f"{where}: padding='same' is not supported for strided convolutions, got stride {stride}")
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(t % 2 for t in total):
        return pad(x, [n for t in reversed(total) for n in (t // 2, t - t // 2)]), (0,) * len(kernel)
    return x, tuple(t // 2 for t in total)


def _convolve1d(x: Tensor, w: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Tensor:
    flat = (_with_height(x), _with_height(w))
    out = conv.conv2d.call(*flat, bias, (1, *stride), (0, *padding), (1, *dilation), groups)
    lengths = out._array.shape
    made: Tensor = shape.reshape.call(out, (*lengths[:2], lengths[3]))
    return made


def _with_height(x: Tensor) -> Any:
    """Sequences as images of one row."""
    lengths = x._array.shape
    return shape.reshape.call(x, (*lengths[:2], 1, lengths[2]))


def _convolve3d(
    x: Tensor, w: Tensor, bias: Any, stride: Lengths, padding: Lengths, dilation: Lengths, groups: int
) -> Tensor:
    N, _, D, H, W = x._array.shape
    O, C, KD, KH, KW = w._array.shape
    if padding[0]:
        x = pad(x, (0, 0, 0, 0, padding[0], padding[0]))
    P = (D + 2 * padding[0] - dilation[0] * (KD - 1) - 1) // stride[0] + 1
    x_NDCHW = x.permute(0, 2, 1, 3, 4)
    covered = [x_NDCHW[:, i : i + (P - 1) * stride[0] + 1 : stride[0]] for i in range(0, KD * dilation[0], dilation[0])]
    slices: Tensor = shape.stack.call(covered, 3) if KD > 1 else covered[0]
    slices = slices.reshape(N * P, C * groups * KD, H, W)
    w = w.reshape(O, C * KD, KH, KW)
    out: Tensor = conv.conv2d.call(slices, w, bias, stride[1:], padding[1:], dilation[1:], groups)
    return out.reshape(N, P, O, *out._array.shape[2:]).permute(0, 2, 1, 3, 4).contiguous()


_BY_COUNT: dict[int, Any] = {1: _convolve1d, 2: conv.conv2d.call, 3: _convolve3d}


def _transpose(
    where: str,
    count: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Tensor:
    need_tensors(where, input=input, weight=weight)
    _check_operands(where, count, input, weight, groups, transposed=True)
    _check_bias(weight, bias, weight._array.shape[1] * groups)
    x = batched(where, input, count)
    kernel = tuple(weight._array.shape[2:])
    names = ("stride", "padding", "output_padding", "dilation")
    values = (stride, padding, output_padding, dilation)
    s, p, extra, d = (per_axis(where, n, v, count) for n, v in zip(names, values, strict=True))
    check_window(where, kernel, s, p, d)
    sizes = []
    for n, k, along_s, along_p, more, along_d in zip(x._array.shape[2:], kernel, s, p, extra, d, strict=True):
        if not 0 <= more < max(along_s, along_d):
            raise RuntimeError(
                f"{where}: output padding must be smaller than either stride or dilation, but got output_padding "
                f"{extra} with stride {s} and dilation {d}"
            )
        sizes.append((n - 1) * along_s - 2 * along_p + along_d * (k - 1) + 1 + more)
    if min(sizes) < (1 if x._array.shape[0] else 0):  # an empty batch may have images without elements
        raise RuntimeError(f"{where}: input {tuple(input.shape)} with these lengths gives an output of size {sizes}")
    if 0 in sizes:
        nothing = zeros(0, weight._array.shape[1] * groups, *sizes, dtype=x.dtype, device=x.device)
        out: Tensor = nothing * (x.sum() * weight.sum())  # in the graph of both
    elif count == 3:
        out = _transpose3d(x, weight, sizes, s, p, d, groups)
    else:
        flat, lead = count == 1, (1,) * (2 - count)
        x2, w2 = (x.unsqueeze(-2), weight.unsqueeze(-2)) if flat else (x, weight)
        out = _transpose2d(x2, w2, (*lead, *sizes), lead + s, (0,) * len(lead) + p, lead + d, groups)
        out = out.squeeze(-2) if flat else out
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * count)
    return out if x is input else out.squeeze(0)


_transpose_rounded_once = rounded_once(_transpose)  # a bias is added after the products


def _transpose2d(
    x: Tensor, w: Tensor, size: Any, stride: Lengths, padding: Lengths, dilation: Lengths, groups: int
) -> Tensor:
    """Images of `size`. Where output padding makes room for more windows than `x` has, these are zeros."""
    kernel, have = w._array.shape[2:], x._array.shape[2:]
    steps = zip(size, padding, dilation, kernel, stride, strict=True)
    windows = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in steps]
    if tuple(windows) != have:
        x = pad(x, (0, windows[1] - have[1], 0, windows[0] - have[0]))
    shape = (x._array.shape[0], w._array.shape[1] * groups, *size)
    out: Tensor = conv.conv2d_input.call(x, w, shape, stride, padding, dilation, groups)
    return out


def _transpose3d(
    x: Tensor, w: Tensor, size: Any, stride: Lengths, padding: Lengths, dilation: Lengths, groups: int
) -> Tensor:
    """The adjoint of `_convolve3d`: a transposed convolution of each slice, added where the kernel's depth puts it."""
    N, C, P, H, W = x._array.shape
    _, O, KD, KH, KW = w._array.shape
    slices = x.permute(0, 2, 1, 3, 4).reshape(N * P, C, H, W)
    flat = w.reshape(C, O * KD, KH, KW)
    spread = _transpose2d(slices, flat, size[1:], stride[1:], padding[1:], dilation[1:], groups)
    spread = spread.reshape(N, P, O * groups, KD, *size[1:])
    depth = max((P - 1) * stride[0] + dilation[0] * (KD - 1) + 1, padding[0] + size[0])
    whole = (N, depth, O * groups, *size[1:])
    out: Any = None
    for i in range(KD):
        start = i * dilation[0]
        places = (slice(None), slice(start, start + (P - 1) * stride[0] + 1, stride[0]))
        part = index_ops.index_add_zeros.call(spread[:, :, :, i], whole, places)
        out = part if out is None else out + part
    result: Tensor = out[:, padding[0] : padding[0] + size[0]].permute(0, 2, 1, 3, 4).contiguous()
    return result
