"""Layer normalization over the last D elements of each row."""

# N rows, D features

from __future__ import annotations

from resilin.core.kernels.common import Array, array_namespace, compute_dtype
from resilin.core.kernels.loader import kernel
from resilin.core.kernels.reduce_rows import reference_sum_rows

_native_layer_norm_forward = kernel("layer_norm_forward")
_native_layer_norm_backward = kernel("layer_norm_backward")


def forward(x: Array, weight: Array | None, bias: Array | None, eps: float, D: int) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + eps) * weight + bias, with the biased variance of each row.

    Shape:  x any whose trailing dimensions hold D elements in all, weight and bias D elements.
    Gives:  y like x; mean_N and rstd_N in x's dtype (float32 for 16-bit floats).
    """
    if (out := _native_layer_norm_forward(x, weight, bias, eps, D)) is not None:
        y, (mean_N, rstd_N) = out
        return y, mean_N, rstd_N
    return reference_forward(x, weight, bias, eps, D)


def backward(
    g: Array, x: Array, weight: Array | None, mean: Array, rstd: Array, sums: bool = True
) -> tuple[Array, Array | None, Array | None]:
    """Gradients (dx, dw, db). dw is None without weight; dw and db have weight's shape, or (D,) without weight.

    Without `sums` and weight db may be None: only dx is wanted.

    Order: dw and db are summed over rows in blocks of fixed size, blocks in ascending order.
    """
    if (out := _native_layer_norm_backward(g, x, weight, mean, rstd, sums)) is not None:
        return out  # type: ignore[no-any-return]
    return reference_backward(g, x, weight, mean, rstd)


def reference_forward(
    x: Array, weight: Array | None, bias: Array | None, eps: float, D: int
) -> tuple[Array, Array, Array]:
    """numpy form of `forward`, also for a device's arrays."""
    xp = array_namespace(x)
    acc = compute_dtype(x.dtype)
    x_ND = x.reshape(x.size // D if D else 0, D).astype(acc, copy=False)
    mean_N = x_ND.mean(axis=1)
    centred = x_ND - mean_N[:, None]
    rstd_N = 1.0 / xp.sqrt(xp.square(centred).mean(axis=1) + acc.type(eps))
    y_ND = centred * rstd_N[:, None]
    if weight is not None:
        y_ND *= weight.reshape(D)
    if bias is not None:
        y_ND += bias.reshape(D)
    return y_ND.astype(x.dtype, copy=False).reshape(x.shape), mean_N, rstd_N


def reference_backward(
    g: Array, x: Array, weight: Array | None, mean: Array, rstd: Array
) -> tuple[Array, Array | None, Array]:
    """numpy form of `backward`."""
    acc = compute_dtype(x.dtype)
    N = mean.size
    D = weight.size if weight is not None else x.size // max(N, 1)
    x_ND = x.reshape(N, D).astype(acc, copy=False)
    g_ND = g.reshape(N, D).astype(acc, copy=False)
    hat_ND = (x_ND - mean[:, None]) * rstd[:, None]
    db = reference_sum_rows(g_ND)
    dw = None if weight is None else reference_sum_rows(g_ND * hat_ND)
    if weight is not None:
        g_ND = g_ND * weight.reshape(D)
    inner = g_ND - g_ND.mean(axis=1, keepdims=True) - hat_ND * (g_ND * hat_ND).mean(axis=1, keepdims=True)
    dx = (inner * rstd[:, None]).astype(x.dtype, copy=False).reshape(x.shape)
    if weight is None or dw is None:
        return dx, None, db.astype(x.dtype, copy=False)
    shape, dtype = weight.shape, weight.dtype
    return dx, dw.astype(dtype, copy=False).reshape(shape), db.astype(dtype, copy=False).reshape(shape)
