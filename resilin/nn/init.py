"""Start values of parameters, in place; names and formulas of torch.nn.init."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.public import dispatch
from resilin.core.rng import Generator
from resilin.core.tensor import Tensor
from resilin.errors import UsageError

_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}
_ERFINV_CENTRAL = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
_ERFINV_TAIL = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps variances through `nonlinearity`; `param` is leaky_relu's slope (default 0.01)."""
    if nonlinearity == "leaky_relu":
        if param is not None and (isinstance(param, bool) or not isinstance(param, int | float)):
            raise ValueError(f"calculate_gain: negative_slope {param!r} is not a valid number")
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise UsageError(
            f"calculate_gain: unknown nonlinearity {nonlinearity!r}; known: leaky_relu, {', '.join(_GAINS)}"
        )
    return _GAINS[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    if tensor.dim() < 2:
        raise UsageError(f"fan in and fan out need at least two dimensions, got shape {tuple(tensor.shape)}")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in [a, b)."""
    with no_grad():
        tensor.uniform_(a, b, generator=generator)
    return tensor


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with `mean` and standard deviation `std`."""
    with no_grad():
        tensor.normal_(mean, std, generator=generator)
    return tensor


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Normal, cut off outside of [a, b] (drawn by inverting the distribution function)."""

    def below(x: float) -> float:
        return (1.0 + math.erf((x - mean) / (std * math.sqrt(2.0)))) / 2.0

    with no_grad():
        tensor.uniform_(2 * below(a) - 1, 2 * below(b) - 1, generator=generator)
        if not tensor._dev.xp.elements:
            return tensor
        uniform = tensor._dev.backend.to_host(tensor._array).astype(np.float64)
        values = _erfinv(uniform) * (std * math.sqrt(2.0)) + mean
        tensor._array[...] = tensor._dev.xp.asarray(np.clip(values, a, b))
    return tensor


def _erfinv(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The inverse error function on (-1, 1), to 1e-7: Giles, "Approximating the erfinv function" (2010)."""
    w = -np.log(np.maximum((1 - x) * (1 + x), np.finfo(np.float64).tiny))
    central = np.polyval(_ERFINV_CENTRAL, w - 2.5)
    tail = np.polyval(_ERFINV_TAIL, np.sqrt(w) - 3)
    return np.where(w < 5, central, tail) * x


def constant_(tensor: Tensor, val: float) -> Tensor:
    """`val` everywhere."""
    with no_grad():
        tensor.fill_(val)
    return tensor


def ones_(tensor: Tensor) -> Tensor:
    """1 everywhere."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """0 everywhere."""
    return constant_(tensor, 0.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity matrix."""
    if tensor.dim() != 2:
        raise UsageError(f"eye_: expected two dimensions, got shape {tuple(tensor.shape)}")
    with no_grad():
        tensor.zero_()
        for i in range(min(tensor.shape)):
            tensor[i, i] = 1
    return tensor


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in +-gain * sqrt(6 / (fan in + fan out)) (Glorot and Bengio, 2010)."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with standard deviation gain * sqrt(2 / (fan in + fan out))."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise UsageError(f"kaiming: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    return _calculate_fan_in_and_fan_out(tensor)[0 if mode == "fan_in" else 1]


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    fan = _calculate_correct_fan(tensor, mode)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def _is_empty(tensor: Tensor) -> bool:
    if tensor.numel() == 0:
        warnings.warn("Initializing zero-element tensors is a no-op", UserWarning, stacklevel=3)
        return True
    return False


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform with the variance gain^2 / fan (He et al., 2015); `a` is the slope of leaky_relu."""
    if _is_empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with the variance gain^2 / fan (He et al., 2015); `a` is the slope of leaky_relu."""
    if _is_empty(tensor):
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """A (semi-)orthogonal matrix, all dimensions but the first taken as one, times `gain` (Saxe et al., 2013)."""
    if tensor.dim() < 2:
        raise UsageError(f"orthogonal_: expected two dimensions or more, got shape {tuple(tensor.shape)}")
    if tensor.numel() == 0:
        return tensor
    normal_(tensor, 0.0, 1.0, generator)
    rows = tensor.shape[0]
    if not tensor._dev.xp.elements:
        return tensor
    flat = tensor._dev.backend.to_host(tensor._array).reshape(rows, -1).astype(np.float64)
    q, r = np.linalg.qr(flat if rows >= flat.shape[1] else flat.T)
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)  # so that all orthogonal matrices are equally likely
    made = (gain * (q if rows >= flat.shape[1] else q.T)).reshape(tensor.shape)
    tensor._array[...] = tensor._dev.xp.asarray(made)
    return tensor


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Filters (out, in, ...) of 1 to 3 spatial dimensions that pass as many channels on as possible, else 0."""
    if tensor.dim() not in (3, 4, 5):
        raise UsageError(f"dirac_: expected 3, 4 or 5 dimensions, got shape {tuple(tensor.shape)}")
    outputs, inputs, *sizes = tensor.shape
    if groups < 1 or outputs % groups:
        raise UsageError(f"dirac_: dim 0 of shape {tuple(tensor.shape)} must be divisible by groups={groups}")
    each = outputs // groups
    centre = tuple(size // 2 for size in sizes)
    with no_grad():
        tensor.zero_()
        for group in range(groups):
            for channel in range(min(each, inputs)):
                tensor[(group * each + channel, channel, *centre)] = 1
    return tensor


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Normal with `std`; of each column the share `sparsity`, rounded up, is 0 at random places (Martens, 2010)."""
    if tensor.dim() != 2:
        raise UsageError(f"sparse_: expected two dimensions, got shape {tuple(tensor.shape)}")
    rows, columns = tensor.shape
    count = math.ceil(sparsity * rows)
    normal_(tensor, 0.0, std, generator)
    with no_grad():
        if not tensor._dev.xp.elements:
            return tensor
        order = uniform_(Tensor._wrap(np.empty((rows, columns))), generator=generator)._array.argsort(0)
        whole = tensor._dev.backend.to_host(tensor._array)
        np.put_along_axis(whole, order[:count], 0, 0)
        tensor._array[...] = tensor._dev.xp.asarray(whole)
        tensor._bump()
    return tensor


def _deprecated(name: str) -> Callable[..., Tensor]:
    """`name` by its former name, without the underscore."""
    meant: Callable[..., Tensor] = globals()[name]

    @functools.wraps(meant)
    def former(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(
            f"`nn.init.{name[:-1]}` is now deprecated in favor of `nn.init.{name}`.", FutureWarning, stacklevel=2
        )
        return meant(*args, **kwargs)

    former.__name__ = former.__qualname__ = name[:-1]
    former.__doc__ = f"`{name}` by its former name; warns."
    return former


uniform, normal, constant = _deprecated("uniform_"), _deprecated("normal_"), _deprecated("constant_")
eye, dirac, sparse, orthogonal = map(_deprecated, ("eye_", "dirac_", "sparse_", "orthogonal_"))
xavier_uniform, xavier_normal = _deprecated("xavier_uniform_"), _deprecated("xavier_normal_")
kaiming_uniform, kaiming_normal = _deprecated("kaiming_uniform_"), _deprecated("kaiming_normal_")

dispatch.publish(__name__, globals(), [name for name in globals() if name.endswith("_") and not name.startswith("_")])
