"""Steps of the elementwise optimizers: many parameters in one call, in place. A rule is a formula over one parameter.

The constants of a rule are made by the optimizer in float64 and rounded to the parameter's dtype here; the native form
(native/kernels/optimizer_rules.cpp) takes the same lists and constants in the same order. Formulas and their order are
PyTorch's; a square is scaled before it is squared, so that large gradients do not overflow.

On a device that launches kernels the same rules, traced once, step all parameters of a dtype at once
(cuda/multi_tensor.py). So a rule branches on its constants and on absent states only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin.core.kernels import pack
from resilin.core.kernels.common import Array, array_namespace
from resilin.core.kernels.contiguous import ascontiguousarray
from resilin.core.kernels.cuda import multi_tensor
from resilin.core.kernels.loader import kernel

Lists = Sequence[Sequence[Array] | None]
Constants = tuple[float, ...]
Rule = Callable[..., None]

_native = kernel("optimizer_rule")


def apply(name: str, lists: Lists, constants: Constants) -> None:
    """One step of the rule `name`. `lists`: parameters, gradients, then the states the rule names (None: without it).

    Cost:   one pass over memory. Parameters are independent, so bits do not depend on the number of threads.
    Raises: ValueError when a gradient or state does not fit its parameter, before anything is written.
    """
    dispatch(name, lists, lambda: constants, lambda chosen: bool(_native(name, tuple(chosen), constants)))


def dispatch(name: str, lists: Lists, made: Callable[[], Constants], native: Callable[[Lists], bool]) -> None:
    """Step all parameters in one native call, or those that it can take, and the others by the rule itself.

    So a parameter's bits depend neither on the dtypes of those beside it nor on the strides of its gradient. `made`
    gives what the rule takes after the arrays, which native code works out by itself. ValueError as `check_lists`,
    before anything is written; KeyError where no rule has the name.
    """
    rule = RULES[name]
    parameters = lists[0] or ()
    if all([type(p) is np.ndarray for p in parameters]) and native(lists):
        return
    check_lists(lists)
    constants = made()
    if not any(isinstance(p, np.ndarray) for p in parameters):
        lists = _launched(name, rule, lists, constants)
        step_by_step(rule, lists, constants)
        return
    with np.errstate(all="ignore"):  # infinities and NaN go their way silently, as in native code
        whole = [
            [ascontiguousarray(g) if isinstance(g, np.ndarray) else g for g in lists[1] or ()] if place == 1 else each
            for place, each in enumerate(lists)
        ]
        fast = [number for number in range(len(parameters)) if _is_native(whole, number)]
        if not fast or not native(_chosen(whole, fast)):
            fast = []
        slow = sorted(set(range(len(parameters))) - set(fast))
        slow = [n for n in slow if not (pack.is_half(parameters[n]) and _native_in_float32(whole, n, native))]
        step_by_step(rule, _chosen(whole, slow), constants)


def _launched(name: str, rule: Rule, lists: Lists, constants: Constants) -> Lists:
    """Step the parameters of a device that launches kernels, those of a dtype at once; gives the lists of the others,
    which have gaps in memory or a dtype that no kernel is made for."""
    groups: dict[multi_tensor.Signature, list[list[Any]]] = {}
    left = []
    for number, parameter in enumerate(lists[0] or ()):
        arrays = [None if each is None else each[number] for each in lists]
        xp = array_namespace(parameter)
        if not hasattr(xp, "launch"):
            return lists
        if parameter.flags.c_contiguous:
            arrays[1] = xp.ascontiguousarray(arrays[1])
        signature = multi_tensor.signature_of(arrays)
        if signature is None:
            left.append(number)
        else:
            groups.setdefault(signature, []).append(arrays)
    if left:  # kernels do nothing after a fault by themselves
        array_namespace(lists[0][left[0]]).faults.check()  # type: ignore[index]
    for signature, tensors in groups.items():
        multi_tensor.step(xp, name, rule, signature, tensors, constants)
    return _chosen(lists, left)


def _is_native(lists: Lists, number: int) -> bool:
    """Whether native code takes the arrays of parameter `number`: contiguous float32."""
    return all(
        isinstance(each[number], np.ndarray) and each[number].dtype == np.float32 and each[number].flags.c_contiguous
        for each in lists
        if each is not None
    )


def _native_in_float32(lists: Lists, number: int, native: Callable[[Lists], bool]) -> bool:
    """Step a 16-bit parameter as `widened` does, by native code; False, and nothing is written, where there is none."""
    arrays = [None if each is None else each[number] for each in lists]
    wide = [None if array is None else pack.astype(array, np.dtype(np.float32)) for array in arrays]
    if not native([None if array is None else [array] for array in wide]):
        return False
    _put_rounded(arrays, wide)
    return True


def _put_rounded(arrays: Sequence[Any], results: Sequence[Any]) -> None:
    """Write what a step made of a parameter and its states; the gradient, which is the second, stays."""
    for place, (array, result) in enumerate(zip(arrays, results, strict=True)):
        if array is not None and place != 1:
            array[...] = pack.astype(result, array.dtype)


def _chosen(lists: Lists, numbers: Sequence[int]) -> Lists:
    return [None if each is None else [each[number] for number in numbers] for each in lists]


def check_lists(lists: Lists) -> None:
    """ValueError when an array has another shape than its parameter, or a parameter is read-only."""
    parameters = lists[0] or ()
    for arrays in lists[1:]:
        for p, array in zip(parameters, parameters if arrays is None else arrays, strict=True):
            if array.shape != p.shape:
                raise ValueError(f"an array of shape {array.shape} beside a parameter of shape {p.shape}")
    if not all(getattr(p.flags, "writeable", True) for p in parameters):
        raise ValueError("a parameter is read-only")


def step_by_step(rule: Rule, lists: Lists, constants: Constants) -> None:
    """Step one parameter after the other by the rule itself, which is what every other form must equal."""
    for number, parameter in enumerate(lists[0] or ()):
        states = [None if arrays is None else arrays[number] for arrays in lists[1:]]
        if parameter.dtype.itemsize == 2:
            widened(rule, parameter, states, [np.float32(constant) for constant in constants])
        else:
            rule(parameter, *states, *[parameter.dtype.type(constant) for constant in constants])


def widened(rule: Rule, parameter: Array, states: Sequence[Any], constants: Sequence[Any]) -> None:
    """A step of a 16-bit parameter, whose gradient is the first of `states`: made in float32, each result rounded once.

    In 16 bits constants of 1e-8 would vanish, and betas and rates lose their digits.
    """
    arrays = [parameter, *states]
    wide: list[Any] = [None if array is None else array.astype(np.float32) for array in arrays]
    rule(*wide, *constants)
    _put_rounded(arrays, wide)


def _pull(p: Array, g: Array, sign: Any, decay: Any) -> Array:
    """The gradient with its sign and the penalty on the parameter."""
    d = g if sign > 0 else -g
    return d + p * decay if decay else d


def _signs(x: Array) -> Array:
    """-1, 0 or 1; 0 for NaN, as in PyTorch."""
    signs: Array = (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)
    return signs


def sgd(
    p: Array,
    g: Array,
    buf: Array | None,
    sign: Any,
    decay: Any,
    momentum: Any,
    take: Any,
    lr: Any,
    nesterov: Any,
    first: Any,
) -> None:
    """Stochastic gradient descent; `buf` holds the momentum, and is set to the gradient by the `first` step."""
    d = _pull(p, g, sign, decay)
    if buf is not None:
        if first:
            buf[...] = d
        else:
            buf *= momentum
            buf += d * take
        d = d + buf * momentum if nesterov else buf
    p -= d * lr


def adam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    top: Array | None,
    sign: Any,
    decay: Any,
    shrink: Any,
    take1: Any,
    keep2: Any,
    take2: Any,
    root: Any,
    eps: Any,
    rate: Any,
) -> None:
    """Adam: the running mean of gradients over the root of that of their squares, or of the largest so far (`top`)."""
    xp = array_namespace(p)
    d = _pull(p, g, sign, decay)
    if shrink != 1:
        p *= shrink
    m += (d - m) * take1
    v *= keep2
    v += d * take2 * d  # in this order large gradients do not overflow
    if top is not None:
        xp.maximum(top, v, out=top)
    denom = xp.sqrt(v if top is None else top) / root + eps
    p -= m / denom * rate


def adagrad(p: Array, g: Array, total: Array, sign: Any, decay: Any, rate: Any, eps: Any) -> None:
    """Adagrad: divide by the root of the sum of squares."""
    d = _pull(p, g, sign, decay)
    total += d * d
    p -= d / (array_namespace(p).sqrt(total) + eps) * rate


def adadelta(
    p: Array, g: Array, square: Array, moved: Array, sign: Any, decay: Any, keep: Any, take: Any, eps: Any, lr: Any
) -> None:
    """Adadelta: the ratio of the running roots of squared moves and squared gradients."""
    d = _pull(p, g, sign, decay)
    square *= keep
    square += d * take * d
    move = array_namespace(p).sqrt(moved + eps) / array_namespace(p).sqrt(square + eps) * d
    moved *= keep
    moved += move * take * move
    p -= move * lr


def adamax(
    p: Array, g: Array, m: Array, top: Array, sign: Any, decay: Any, take1: Any, keep2: Any, eps: Any, rate: Any
) -> None:
    """Adamax: divide the running mean by the decayed largest gradient."""
    d = _pull(p, g, sign, decay)
    m += (d - m) * take1
    top *= keep2
    array_namespace(p).maximum(top, array_namespace(p).abs(d) + eps, out=top)
    p -= m / top * rate


def rmsprop(
    p: Array,
    g: Array,
    square: Array,
    mean: Array | None,
    buf: Array | None,
    sign: Any,
    decay: Any,
    keep: Any,
    take: Any,
    eps: Any,
    momentum: Any,
    lr: Any,
) -> None:
    """RMSprop: divide by the running root of squares; `mean` centers it, `buf` gives momentum."""
    d = _pull(p, g, sign, decay)
    square *= keep
    square += d * take * d
    spread = square
    if mean is not None:
        mean += (d - mean) * take
        spread = square - mean * mean
    move = d / (array_namespace(p).sqrt(spread) + eps)  # rounding may leave a negative spread: NaN, as in PyTorch
    if buf is not None:
        buf *= momentum
        buf += move
        move = buf
    p -= move * lr


def rprop(p: Array, g: Array, prev: Array, size: Array, sign: Any, shrink: Any, grow: Any, low: Any, high: Any) -> None:
    """Rprop: steps of a size that grows while the gradient keeps its sign and shrinks when it turns (no step then)."""
    d = g if sign > 0 else -g
    turn = d * prev
    size *= array_namespace(p).where(turn > 0, grow, array_namespace(p).where(turn < 0, shrink, p.dtype.type(1)))
    size[...] = array_namespace(p).clip(size, low, high)
    prev[...] = array_namespace(p).where(turn < 0, p.dtype.type(0), d)
    p -= _signs(prev) * size


def nadam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    sign: Any,
    decay: Any,
    shrink: Any,
    take1: Any,
    keep2: Any,
    take2: Any,
    inv_bias: Any,
    eps: Any,
    rate_g: Any,
    rate_m: Any,
) -> None:
    """NAdam: Adam whose step looks ahead along the momentum."""
    d = _pull(p, g, sign, decay)
    m += (d - m) * take1
    v *= keep2
    v += d * take2 * d
    denom = array_namespace(p).sqrt(v * inv_bias) + eps
    p *= shrink
    p -= d / denom * rate_g
    p -= m / denom * rate_m


def radam(
    p: Array,
    g: Array,
    m: Array,
    v: Array,
    sign: Any,
    decay: Any,
    shrink: Any,
    take1: Any,
    keep2: Any,
    take2: Any,
    eps: Any,
    rate: Any,
    adaptive: Any,
) -> None:
    """RAdam: Adam, or plain momentum while `adaptive` is 0 (too few steps to know the second mean)."""
    d = _pull(p, g, sign, decay)
    m += (d - m) * take1
    v *= keep2
    v += d * take2 * d
    p *= shrink
    p -= (m / (array_namespace(p).sqrt(v) + eps) if adaptive else m) * rate


def asgd(p: Array, g: Array, mean: Array, sign: Any, decay: Any, shrink: Any, eta: Any, mu: Any) -> None:
    """ASGD: a step of decaying size, and the running mean of the parameters (set to them while mu is 1)."""
    d = _pull(p, g, sign, decay) * eta
    p *= shrink
    p -= d
    if mu == 1:
        mean[...] = p
    else:
        mean += (p - mean) * mu


def lion(p: Array, g: Array, m: Array, sign: Any, shrink: Any, take1: Any, take2: Any, lr: Any) -> None:
    """Lion: the sign of a mix of momentum and gradient."""
    d = g if sign > 0 else -g
    p *= shrink
    p -= _signs(m + (d - m) * take1) * lr
    m += (d - m) * take2


REFERENCES: dict[str, Rule] = {
    "adadelta": adadelta,
    "adagrad": adagrad,
    "adamax": adamax,
    "asgd": asgd,
    "lion": lion,
    "nadam": nadam,
    "radam": radam,
    "rmsprop": rmsprop,
    "rprop": rprop,
}
"""The rules in numpy that `apply` takes, by name."""

RULES: dict[str, Rule] = {**REFERENCES, "adam": adam, "sgd": sgd}
"""All rules; those of `optimizers.py`, whose native form takes other constants, too."""
