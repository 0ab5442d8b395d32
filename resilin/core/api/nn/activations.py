"""The activations of torch.nn.functional that `neural` does not hold: arguments checked, in-place forms made."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.api.manipulation import indexing, shaping
from resilin.core.api.mathematics import one_pass
from resilin.core.api.mathematics.half_precision import opened, rounded_once
from resilin.core.api.nn.neural import need_numbers, need_tensors, relu, softmax, widened
from resilin.core.autograd.grad_mode import no_grad
from resilin.core.kernels.loader import guarded
from resilin.core.ops import activation, random
from resilin.core.ops import index as index_ops
from resilin.core.ops import rectifier as ops
from resilin.core.state import inplace as inplace_ops
from resilin.core.state.size import check_dim
from resilin.core.tensor import Tensor, wrap

_SELU_ALPHA = 1.6732632423543772848170429916717  # Klambauer et al., 2017: fixes mean 0 and variance 1
_SELU_SCALE = 1.0507009873554804934193349852946


def _need_real(where: str, input: Any, **numbers: Any) -> None:
    """NotImplementedError (TypeError for no tensor) unless `input` is a real floating point tensor."""
    need_tensors(where, input=input)
    need_numbers(where, **numbers)
    if input._array.dtype.kind not in "fV":
        raise NotImplementedError(f"{where}: supported are floating point tensors, got {input.dtype}; convert it first")


_need_real = guarded(None, _need_real, "floats_and_numbers")


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """input where it exceeds `threshold`, else `value`."""
    if inplace:
        return threshold_(input, threshold, value)
    need_tensors("threshold", input=input)
    need_numbers("threshold", threshold=threshold, value=value)
    kind = input._array.dtype
    if kind.kind in "iu":
        threshold, value = (int(dtypes.number_for("threshold", number, kind)) for number in (threshold, value))
    made: Tensor = ops.threshold.call(input, threshold, value)
    return made


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """input limited to [min_val, max_val]."""
    if inplace:
        return hardtanh_(input, min_val, max_val)
    need_tensors("hardtanh", input=input)
    if min_val > max_val:
        raise ValueError(f"hardtanh: min_val cannot be greater than max_val, got {min_val} and {max_val}")
    made: Tensor = ops.hardtanh.call(input, min_val, max_val)
    return made


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """input limited to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


def _simple(name: str, op: Any, text: str) -> Any:
    """An activation without parameters: op(input)."""
    call = op.call

    def run(input: Tensor) -> Tensor:
        _need_real(name, input)
        made: Tensor = call(input)
        return made

    in_place = inplace_ops.make(run, f"{name}_", short=one_pass.activation(name))

    def activation(input: Tensor, inplace: bool = False) -> Tensor:
        return in_place(input) if inplace else run(input)

    activation.__name__ = activation.__qualname__ = name
    activation.__doc__ = text
    return activation


hardsigmoid = _simple("hardsigmoid", ops.hardsigmoid, "(input + 3) / 6 limited to [0, 1].")
hardswish = _simple("hardswish", ops.hardswish, "input * hardsigmoid(input).")
silu = _simple("silu", activation.silu, "input * sigmoid(input).")
mish = _simple("mish", ops.mish, "input * tanh(softplus(input)).")


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """input where positive, else negative_slope * input."""
    if inplace:
        return leaky_relu_(input, negative_slope)
    _need_real("leaky_relu", input, negative_slope=negative_slope)
    made: Tensor = ops.leaky_relu.call(input, negative_slope)
    return made


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where positive, else alpha * (exp(input) - 1)."""
    if inplace:
        return elu_(input, alpha)
    _need_real("elu", input, alpha=alpha)
    made: Tensor = ops.elu.call(input, alpha)
    return made


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """input where positive, else alpha * (exp(input / alpha) - 1): its slope is continuous at 0 for any `alpha`."""
    if inplace:
        return celu_(input, alpha)
    _need_real("celu", input, alpha=alpha)
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: celu: alpha cannot be 0")
    made: Tensor = ops.elu.call(input, alpha, 1.0, 1 / alpha)
    return made


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """1.0507 times (input where positive, else 1.6733 * (exp(input) - 1)): the self-normalizing constants."""
    if inplace:
        return selu_(input)
    _need_real("selu", input)
    made: Tensor = ops.elu.call(input, _SELU_ALPHA, _SELU_SCALE)
    return made


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """leaky_relu with a slope drawn for each element from [lower, upper] in training, else with their mean."""
    if inplace:
        return rrelu_(input, lower, upper, training)
    _need_real("rrelu", input)
    if not (math.isfinite(lower) and math.isfinite(upper)):
        raise RuntimeError(f"rrelu: lower and upper must be finite, got {lower} and {upper}")
    if lower > upper:
        raise RuntimeError(f"rrelu: lower must be less than or equal to upper, got {lower} and {upper}")
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    with no_grad():
        slopes = widened(random.rand_like(input)) * (upper - lower) + lower
        factors = indexing.where(input <= 0, slopes, 1.0)
    made: Tensor = random.apply_mask.call(input, factors._array)
    return made


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """input where positive, else weight * input; `weight` has one element, or one per channel (dimension 1)."""
    need_tensors("prelu", weight=weight)
    _need_real("prelu", input)
    x, w = input._array, weight._array
    if x.dtype is not w.dtype and input.dtype is not weight.dtype:
        raise RuntimeError(f"prelu: type promoting not supported, got {input.dtype} and {weight.dtype}")
    if w.ndim > 1:
        raise RuntimeError(f"prelu: expected weight to be a scalar or 1D tensor, but got ndim = {w.ndim}")
    if w.size != 1:
        if x.ndim == 0:
            raise RuntimeError(f"prelu: a zero-dimensional input takes one parameter, got {w.size}")
        channels = x.shape[1] if x.ndim > 1 else 1
        if w.size != channels:
            raise RuntimeError(
                f"prelu: mismatch of parameter numbers and input channel size: found {w.size} parameters and "
                f"{channels} channels in input {tuple(x.shape)}"
            )
        weight = shaping.reshape(weight, -1, *(1,) * (x.ndim - 2))
    elif w.ndim and x.ndim == 0:
        weight = shaping.reshape(weight, ())
    made: Tensor = ops.prelu.call(input, weight)
    return made


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """input where its absolute value exceeds `lambd`, else 0."""
    _need_real("hardshrink", input, lambd=lambd)
    made: Tensor = ops.hardshrink.call(input, lambd)
    return made


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """input moved towards 0 by `lambd`, not past it."""
    _need_real("softshrink", input, lambd=lambd)
    if not lambd >= 0:
        raise RuntimeError(f"softshrink: lambda must be greater or equal to 0, but found {lambd}")
    made: Tensor = ops.softshrink.call(input, lambd)
    return made


def logsigmoid(input: Tensor) -> Tensor:
    """log(sigmoid(input)), without overflow."""
    _need_real("logsigmoid", input)
    made: Tensor = ops.log_sigmoid.call(input)
    return made


def softsign(input: Tensor) -> Tensor:
    """input / (1 + |input|)."""
    need_tensors("softsign", input=input)
    made: Tensor = ops.softsign.call(input)
    return made


@rounded_once
def tanhshrink(input: Tensor) -> Tensor:
    """input - tanh(input)."""
    need_tensors("tanhshrink", input=input)
    made: Tensor = input - input.tanh()
    return made


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    """softmax(-input) along `dim`."""
    return softmax(-input, dim, dtype=dtype)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a * sigmoid(b) for the two halves a, b of input along `dim`."""
    _need_real("glu", input)
    if input._array.ndim == 0:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    axis = check_dim(dim, input._array.ndim)
    size = input._array.shape[axis]
    if size % 2:
        raise RuntimeError(f"glu: halving dimension must be even, but dimension {axis} is size {size}")
    before, half = (slice(None),) * axis, size // 2
    kept = index_ops.getitem.call(input, (*before, slice(0, half)))
    gate = index_ops.getitem.call(input, (*before, slice(half, size)))
    made: Tensor = activation.gated.call(kept, gate)
    return made


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """softmax((logits + Gumbel noise) / tau) along `dim`; with `hard` the one-hot of its maximum, with its gradient."""
    _need_real("gumbel_softmax", logits)
    if eps != 1e-10:
        warnings.warn("gumbel_softmax: `eps` is deprecated and has no effect", UserWarning, stacklevel=2)
    with no_grad():
        noise = -random.fill_exponential(logits.detach().clone()).log()
    scores, noise, narrow = opened(logits, noise)
    soft: Tensor = narrow(softmax((scores + noise) / tau, dim))
    if not hard:
        return soft
    y = np.atleast_1d(soft._array)
    axis = check_dim(dim, y.ndim)
    chosen = np.zeros_like(y)
    np.put_along_axis(chosen, y.argmax(axis, keepdims=True), 1, axis)
    return wrap(chosen.reshape(soft._array.shape), soft._dev) - soft.detach() + soft


def _limited(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, *, out: Any = None) -> Tensor | None:
    return one_pass.clamp(input, min_val, max_val, out=out) if min_val <= max_val else None


relu_ = inplace_ops.make(relu, "relu_", short=one_pass.relu)
_in_place = one_pass.activation
threshold_ = inplace_ops.make(
    threshold, "threshold_", short=_in_place("threshold", lambda threshold, value: (threshold, value))
)
hardtanh_ = inplace_ops.make(hardtanh, "hardtanh_", short=_limited)
leaky_relu_ = inplace_ops.make(
    leaky_relu, "leaky_relu_", short=_in_place("leaky", lambda negative_slope=0.01: (negative_slope,))
)
elu_ = inplace_ops.make(elu, "elu_", short=_in_place("elu", lambda alpha=1.0: (alpha, 1.0, 1.0)))
celu_ = inplace_ops.make(celu, "celu_", short=_in_place("elu", lambda alpha=1.0: (alpha, 1.0, 1 / alpha)))
selu_ = inplace_ops.make(selu, "selu_", short=_in_place("elu", lambda: (_SELU_ALPHA, _SELU_SCALE, 1.0)))
rrelu_ = inplace_ops.make(rrelu, "rrelu_")
