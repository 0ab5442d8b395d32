"""Convolution and pooling of torch.nn.functional: arguments checked and normalised."""

from __future__ import annotations

from typing import Any

from resilin.core.api.neural import need_tensors, pad
from resilin.core.kernels import pool as pool_kernel
from resilin.core.ops import conv
from resilin.core.tensor import Tensor, wrap


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value) if len(value) == 2 else (value[0], value[0])


def _check_window(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any = (1, 1)) -> None:
    """RuntimeError for lengths that no window has."""
    for name, lengths in (("kernel size", kernel), ("stride", stride), ("dilation", dilation)):
        if min(lengths) < 1:
            raise RuntimeError(f"{where}: {name} should be greater than zero, but got {lengths}")
    if min(padding) < 0:
        raise RuntimeError(f"{where}: negative padding is not supported, got {padding}")


def _check_pooling(where: str, kernel: Any, stride: Any, padding: Any, dilation: Any, size: Any, ceil: bool) -> None:
    """`_check_window`, and that the window fits images of this `size`."""
    _check_window(where, kernel, stride, padding, dilation)
    for k, s, p, d, n in zip(kernel, stride, padding, dilation, size, strict=True):
        span = d * (k - 1) + 1
        if 2 * p > span:
            raise RuntimeError(
                f"{where}: pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and "
                f"dilation={d}"
            )
        if n + 2 * p < span and not (ceil and n + 2 * p + s > span):
            raise RuntimeError(f"{where}: a window of {span} does not fit an input of {n} with padding {p}")


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
    need_tensors("conv2d", input=input, weight=weight)
    if input._array.ndim == 3:
        return conv2d(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    x, w = input._array, weight._array
    if x.ndim != 4 or w.ndim != 4:
        raise RuntimeError(f"conv2d: expected 3D or 4D input and 4D weight, got {tuple(x.shape)} and {tuple(w.shape)}")
    if groups < 1:
        raise RuntimeError(f"conv2d: groups must be at least 1, got {groups}")
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise RuntimeError(
            f"conv2d: weight {tuple(w.shape)} with groups={groups} expects input with {w.shape[1] * groups} channels, "
            f"got {x.shape[1]}"
        )
    if x.dtype != w.dtype:
        raise RuntimeError(f"conv2d: input and weight must have the same dtype, got {input.dtype} and {weight.dtype}")
    if bias is not None and bias._array.shape != w.shape[:1]:
        raise RuntimeError(
            f"Given weight of size {list(w.shape)}, expected bias to be 1-dimensional with {w.shape[0]} elements, "
            f"but got bias of size {list(bias.shape)} instead"
        )
    stride, dilation = _pair(stride), _pair(dilation)
    if padding == "valid":
        padding = 0
    elif padding == "same":
        if stride != (1, 1):
            raise RuntimeError(f"conv2d: padding='same' is not supported for strided convolutions, got stride {stride}")
        total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            input = pad(input, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2))
            padding = 0
        else:
            padding = (total[0] // 2, total[1] // 2)
    padding = _pair(padding)
    _check_window("conv2d", w.shape[2:], stride, padding, dilation)
    return conv.conv2d.call(input, weight, bias, stride, padding, dilation, groups)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of input (N, C, L) or (C, L) with weight (O, C / groups, K): `conv2d` of height 1."""
    need_tensors("conv1d", input=input, weight=weight)
    if input._array.ndim not in (2, 3) or weight._array.ndim != 3:
        raise RuntimeError(
            f"conv1d: expected 2D or 3D input and 3D weight, got {tuple(input.shape)} and {tuple(weight.shape)}"
        )
    stride, dilation = (v if isinstance(v, int) else v[0] for v in (stride, dilation))
    if not isinstance(padding, str):
        padding = (0, padding if isinstance(padding, int) else padding[0])
    elif padding == "same" and stride != 1:
        raise RuntimeError(f"conv1d: padding='same' is not supported for strided convolutions, got stride {stride}")
    flat = (input.unsqueeze(-2), weight.unsqueeze(-2))
    return conv2d(*flat, bias, (1, stride), padding, (1, dilation), groups).squeeze(-2)


def _images(where: str, input: Tensor) -> Tensor:
    if input._array.ndim not in (3, 4):
        raise RuntimeError(f"{where}: expected 3D or 4D input, got {tuple(input.shape)}")
    return input if input._array.ndim == 4 else input.unsqueeze(0)


def max_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window; with `return_indices` also its position in the image."""
    x = _images("max_pool2d", input)
    kernel = _pair(kernel_size)
    window = (kernel, kernel if stride in (None, []) else _pair(stride), _pair(padding), _pair(dilation), ceil_mode)
    _check_pooling("max_pool2d", *window[:4], x._array.shape[2:], ceil_mode)
    out = conv.max_pool2d.call(x, *window)
    out = out if x is input else out.squeeze(0)
    if not return_indices:
        return out
    index = wrap(pool_kernel.max2d_forward(x._array, *window)[1], x._dev)
    return out, index if x is input else index.squeeze(0)


def avg_pool2d(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window."""
    x = _images("avg_pool2d", input)
    kernel = _pair(kernel_size)
    strides = kernel if stride in (None, []) else _pair(stride)
    _check_pooling("avg_pool2d", kernel, strides, _pair(padding), (1, 1), x._array.shape[2:], ceil_mode)
    rows, columns = (
        pool_kernel.average_windows(*along, ceil_mode, count_include_pad)
        for along in zip(x._array.shape[2:], kernel, strides, _pair(padding), strict=True)
    )
    if divisor_override is not None:
        if divisor_override == 0:
            raise RuntimeError("avg_pool2d: divisor must be not zero")
        rows[:, 2], columns[:, 2] = divisor_override, 1
    out: Tensor = conv.avg_pool2d.call(x, rows, columns)
    return out if x is input else out.squeeze(0)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Means over windows that divide the image into `output_size` parts; None keeps a length."""
    x = _images("adaptive_avg_pool2d", input)
    sizes = (output_size, output_size) if isinstance(output_size, int) or output_size is None else output_size
    wanted = [x._array.shape[2 + i] if n is None else n for i, n in enumerate(sizes)]
    if min(wanted) < 0:
        raise RuntimeError(f"adaptive_avg_pool2d: output_size must not be negative, got {tuple(wanted)}")
    windows = map(pool_kernel.adaptive_windows, x._array.shape[2:], wanted)
    out: Tensor = conv.avg_pool2d.call(x, *windows)
    return out if x is input else out.squeeze(0)
