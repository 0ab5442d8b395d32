"""Gradient checks against finite differences, in a random direction: one number per order, whatever the shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin.core.autograd.grad import grad
from resilin.core.autograd.grad_mode import enable_grad, no_grad
from resilin.core.tensor import Tensor, wrap

Fn = Callable[..., Any]


class GradcheckError(RuntimeError):
    """An analytical gradient differs from the numerical one."""


def _outs(result: Any) -> list[Tensor]:
    values = [result] if isinstance(result, Tensor) else list(result)
    return [v for v in values if isinstance(v, Tensor) and v._array.dtype.kind in "fc"]


def _direction(random: np.random.Generator, like: Any) -> Any:
    d = random.standard_normal(like.shape)
    return (d + 1j * random.standard_normal(like.shape) if like.dtype.kind == "c" else d).astype(like.dtype)


def _inner(a: Any, b: Any) -> float:
    """The real inner product, which for complex arrays is Re(sum(conj(a) * b))."""
    return float(np.real(np.vdot(a, b)))


def check_direction(fn: Fn, inputs: Sequence[Tensor], *, eps: float, atol: float, rtol: float, seed: int = 0) -> None:
    """Compare <vjp(w), d> with <w, (f(x + eps d) - f(x - eps d)) / (2 eps)> for random w and d, or GradcheckError."""
    random = np.random.default_rng(seed)
    chosen = [t for t in inputs if t.requires_grad]
    with enable_grad():
        outs = [o for o in _outs(fn(*inputs))]
    weights = [_direction(random, o._array) for o in outs]
    directions = [_direction(random, t._array) for t in chosen]
    pairs = [(o, wrap(w, o._dev)) for o, w in zip(outs, weights, strict=True) if o.requires_grad]
    if pairs:
        found = grad([o for o, _ in pairs], chosen, [w for _, w in pairs], True, allow_unused=True)
    else:
        found = (None,) * len(chosen)
    analytical = sum(_inner(g._array, d) for g, d in zip(found, directions, strict=True) if g is not None)
    ends = [_shifted(fn, inputs, chosen, directions, step) for step in (eps, -eps)]
    numerical = sum(_inner(w, (up - down) / (2 * eps)) for w, up, down in zip(weights, *ends, strict=True))
    if not np.isclose(analytical, numerical, rtol=rtol, atol=atol):
        raise GradcheckError(
            f"gradient along a random direction: analytical {analytical:.10g}, numerical {numerical:.10g} "
            f"(inputs {[tuple(t.shape) for t in inputs]}, eps {eps})"
        )


def _shifted(fn: Fn, inputs: Sequence[Tensor], chosen: list[Tensor], directions: list[Any], step: float) -> list[Any]:
    moved = {id(t): wrap(t._array + step * d, t._dev) for t, d in zip(chosen, directions, strict=True)}
    arguments = [moved.get(id(t), t) for t in inputs]
    for t in moved.values():
        t._rg = True  # a function may ask its arguments for gradients itself
    with enable_grad():
        outs = _outs(fn(*arguments))
    return [np.array(o._array) for o in outs]


def gradcheck(
    func: Fn,
    inputs: Tensor | Sequence[Tensor],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Whether `func`'s gradients agree with finite differences along random directions. Use float64 inputs.

    Always compares directions, as PyTorch's `fast_mode` does; a gradient has its input's dtype whatever the function,
    so `check_grad_dtypes` has nothing to find, nor has `check_undefined_grad`: rules never see an undefined gradient.
    With `nondet_tol`, a second backward may differ from the first by that much in each element.
    Raises: GradcheckError unless `raise_exception` is False; NotImplementedError for forward mode, batched gradients
            and masked layouts.
    """
    wanted = {
        "check_batched_grad": check_batched_grad,
        "check_batched_forward_grad": check_batched_forward_grad,
        "check_forward_ad": check_forward_ad,
        "masked": masked,
    }
    refused = [name for name, value in wanted.items() if value]
    if refused:
        raise NotImplementedError(f"gradcheck: {', '.join(refused)}: only backward's gradients of strided tensors")
    if not check_backward_ad:
        raise NotImplementedError("gradcheck: check_backward_ad=False would leave nothing to check")
    values = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if not any(isinstance(t, Tensor) and t.requires_grad for t in values):
        raise ValueError("gradcheck expects at least one input tensor to require gradient")
    tensors = [t for t in values if isinstance(t, Tensor)]

    def on_tensors(*given: Tensor) -> Any:
        rest = iter(given)
        return func(*(next(rest) if isinstance(v, Tensor) else v for v in values))

    try:
        for seed in range(2):
            check_direction(on_tensors, tensors, eps=eps, atol=atol, rtol=rtol, seed=seed)
        _check_repeated(on_tensors, tensors, nondet_tol)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _check_repeated(fn: Fn, tensors: Sequence[Tensor], tolerance: float) -> None:
    """GradcheckError when a second forward and backward gives other gradients."""
    chosen = [t for t in tensors if t.requires_grad]
    with enable_grad():
        outs = [o for o in _outs(fn(*tensors)) if o.requires_grad]
    if not outs:
        return
    random = np.random.default_rng(7)
    weights = [wrap(_direction(random, o._array), o._dev) for o in outs]
    runs = [grad(outs, chosen, weights, True, allow_unused=True) for _ in range(2)]
    for first, second in zip(*runs, strict=True):
        if first is not None and not np.allclose(first._array, second._array, rtol=0, atol=tolerance, equal_nan=True):
            raise GradcheckError(
                f"backward is not reentrant: repeated, it gives gradients of shape {tuple(first.shape)} that differ by "
                f"more than nondet_tol={tolerance}"
            )


def gradgradcheck(func: Fn, inputs: Any, grad_outputs: Any = None, **options: Any) -> bool:
    """`gradcheck` of the gradient itself: second derivatives."""
    values = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    return gradcheck(first_derivative(func, values, grad_outputs), values, **options)


def first_derivative(func: Fn, values: Sequence[Any], grad_outputs: Any = None, *, create_graph: bool = True) -> Fn:
    """The function that gives the gradients of `func` at fixed random output weights, differentiable itself unless
    `create_graph` is False."""
    with no_grad():
        shapes = _outs(func(*values))
    random = np.random.default_rng(7)
    weights = [wrap(_direction(random, o._array), o._dev) for o in shapes]
    if grad_outputs is not None:
        weights = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)

    def derivative(*given: Any) -> Any:
        chosen = [t for t in given if isinstance(t, Tensor) and t.requires_grad]
        pairs = [(o, w) for o, w in zip(_outs(func(*given)), weights, strict=True) if o.requires_grad]
        found = grad([o for o, _ in pairs], chosen, [w for _, w in pairs], True, create_graph, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return derivative
