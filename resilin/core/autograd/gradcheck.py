"""Gradient checks against finite differences, in a random direction: one number per order, whatever the shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin.core.autograd.function import FunctionNode
from resilin.core.autograd.grad import grad
from resilin.core.autograd.grad_mode import enable_grad, no_grad
from resilin.core.autograd.tape import Pick
from resilin.core.autograd.transforms import linearize
from resilin.core.autograd.vmap import vmap
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
    moved = [wrap(t._array + step * d, t._dev) for t, d in zip(chosen, directions, strict=True)]
    for t in moved:
        t._rg = True  # a function may ask its arguments for gradients itself
    with enable_grad():
        outs = _outs(_of_chosen(fn, inputs, chosen)(*moved))
    return [np.array(o._array) for o in outs]


def _of_chosen(fn: Fn, inputs: Sequence[Tensor], chosen: list[Tensor]) -> Fn:
    """`fn` as a function of the inputs that want gradients."""

    def call(*given: Tensor) -> Any:
        moved = {id(t): value for t, value in zip(chosen, given, strict=True)}
        return fn(*(moved.get(id(t), t) for t in inputs))

    return call


def _check_forward(fn: Fn, inputs: Sequence[Tensor], *, eps: float, atol: float, rtol: float, batched: bool) -> None:
    """Compare the jvp in a random direction with finite differences, and with `batched` a vmapped jvp with single ones,
    or GradcheckError."""
    random = np.random.default_rng(3)
    chosen = [t for t in inputs if t.requires_grad]
    points = tuple(t.detach() for t in chosen)
    value, push = linearize(lambda *given: tuple(_outs(_of_chosen(fn, inputs, chosen)(*given))), *points)
    directions = [[_direction(random, t._array) for t in chosen] for _ in range(2)]
    pushed = [push(*(wrap(d, t._dev) for d, t in zip(one, chosen, strict=True))) for one in directions]
    ends = [_shifted(fn, inputs, chosen, directions[0], step) for step in (eps, -eps)]
    for number, (tangent, up, down) in enumerate(zip(pushed[0], *ends, strict=True)):
        weights = _direction(random, value[number]._array)
        found, numerical = _inner(weights, tangent._array), _inner(weights, (up - down) / (2 * eps))
        if not np.isclose(found, numerical, rtol=rtol, atol=atol):
            raise GradcheckError(
                f"forward mode, output {number}, along a random direction: analytical {found:.10g}, numerical "
                f"{numerical:.10g} (inputs {[tuple(t.shape) for t in inputs]}, eps {eps})"
            )
    if batched:
        rows = [wrap(np.stack(column), t._dev) for column, t in zip(zip(*directions, strict=True), chosen, strict=True)]
        _compare_batch("forward mode", vmap(push)(*rows), pushed, atol, rtol)


def _check_batched(fn: Fn, tensors: Sequence[Tensor], atol: float, rtol: float) -> None:
    """GradcheckError when a backward of two cotangents at once gives others than two backwards."""
    chosen = [t for t in tensors if t.requires_grad]
    with enable_grad():
        outs = [o for o in _outs(fn(*tensors)) if o.requires_grad]
    if not outs:
        return
    random = np.random.default_rng(5)
    seeds = [[wrap(_direction(random, o._array), o._dev) for o in outs] for _ in range(2)]
    each = [grad(outs, chosen, one, True, allow_unused=True, materialize_grads=True) for one in seeds]
    rows = [wrap(np.stack([s._array for s in column]), column[0]._dev) for column in zip(*seeds, strict=True)]
    found = grad(outs, chosen, rows, True, allow_unused=True, is_grads_batched=True, materialize_grads=True)
    _compare_batch("batched backward", found, each, atol, rtol)


def _compare_batch(what: str, found: Any, each: Sequence[Any], atol: float, rtol: float) -> None:
    for part, *single in zip(found, *each, strict=True):
        if not np.allclose(part._array, np.stack([one._array for one in single]), rtol=rtol, atol=atol):
            raise GradcheckError(f"{what}: a batch gives other results than its samples, shape {tuple(part.shape)}")


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
    so `check_grad_dtypes` has nothing to find. `check_undefined_grad`: a Function of several outputs must be right when
    only one of them is used, too.
    With `nondet_tol`, a second backward may differ from the first by that much in each element. `check_forward_ad`
    compares jvps as well; the batched checks compare vmapped derivatives with single ones.
    Raises: GradcheckError unless `raise_exception` is False; NotImplementedError for masked layouts.
    """
    if masked:
        raise NotImplementedError("gradcheck: masked: only gradients of strided tensors")
    if not (check_backward_ad or check_forward_ad):
        raise ValueError("gradcheck: check_backward_ad or check_forward_ad must be True: nothing is left to check")
    if check_batched_forward_grad and not check_forward_ad:
        raise ValueError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    values = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    if not any(isinstance(t, Tensor) and t.requires_grad for t in values):
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them have requires_grad=True."
        )
    tensors = [t for t in values if isinstance(t, Tensor)]
    for tensor in tensors:
        if not isinstance(tensor._array, np.ndarray):
            raise NotImplementedError(f"gradcheck: inputs must be on the CPU, got one on {tensor._dev}; use .cpu()")
        if tensor.requires_grad and any(n > 1 and not s for n, s in zip(tensor.shape, tensor.stride(), strict=True)):
            raise RuntimeError(
                f"gradcheck: an input of shape {tuple(tensor.shape)} has a dimension with stride 0, whose elements "
                "cannot be varied one by one. Call .contiguous() on it before"
            )

    def on_tensors(*given: Tensor) -> Any:
        rest = iter(given)
        return func(*(next(rest) if isinstance(v, Tensor) else v for v in values))

    try:
        for seed in range(2 * check_backward_ad):
            check_direction(on_tensors, tensors, eps=eps, atol=atol, rtol=rtol, seed=seed)
        _check_repeated(on_tensors, tensors, nondet_tol)
        if check_undefined_grad and check_backward_ad:
            _check_undefined(on_tensors, tensors, atol, rtol)
        if check_forward_ad:
            batched = check_batched_forward_grad
            _check_forward(on_tensors, tensors, eps=eps, atol=atol, rtol=rtol, batched=batched)
        if check_batched_grad:
            _check_batched(on_tensors, tensors, atol, rtol)
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


def _check_undefined(fn: Fn, tensors: Sequence[Tensor], atol: float, rtol: float) -> None:
    """GradcheckError when a Function whose other outputs have no gradient fails, or gives another than with zeros."""
    chosen = [t for t in tensors if t.requires_grad]
    with enable_grad():
        outs = [o for o in _outs(fn(*tensors)) if o.requires_grad]
    nodes = [o.grad_fn.edges[0] if isinstance(o.grad_fn, Pick) else None for o in outs]
    for out, node in zip(outs, nodes, strict=True):
        if not isinstance(node, FunctionNode):
            continue
        weights = [wrap(np.ones_like(o._array) * (o is out), o._dev) for o in outs]
        whole = grad(outs, chosen, weights, True, allow_unused=True, materialize_grads=True)
        try:
            alone = grad(out, chosen, wrap(np.ones_like(out._array), out._dev), True, materialize_grads=True)
        except Exception as error:
            raise GradcheckError(
                f"{node.name()}: expected backward function to handle undefined output grads (None), where other "
                "outputs are not used, as set_materialize_grads(False) asks for"
            ) from error
        for one, other in zip(alone, whole, strict=True):
            if not np.allclose(one._array, other._array, rtol=rtol, atol=atol, equal_nan=True):
                raise GradcheckError(f"{node.name()}: undefined output grads (None) give other gradients than zeros")


def gradgradcheck(
    func: Fn,
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """`gradcheck` of the gradient itself: second derivatives, by another backward (`check_rev_over_rev`) and in forward
    mode (`check_fwd_over_rev`).

    The gradient is that for `grad_outputs`, or for random weights of the outputs, whose elements lie apart in memory
    with `gen_non_contig_grad_outputs`.
    """
    values = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    return gradcheck(
        first_derivative(func, values, grad_outputs, apart=gen_non_contig_grad_outputs),
        values,
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
        masked=masked,
    )


def first_derivative(
    func: Fn, values: Sequence[Any], grad_outputs: Any = None, *, create_graph: bool = True, apart: bool = False
) -> Fn:
    """The function that gives the gradients of `func` at fixed random output weights, differentiable itself unless
    `create_graph` is False. With `apart`, the weights are not contiguous."""
    with no_grad():
        shapes = _outs(func(*values))
    random = np.random.default_rng(7)
    weights = [wrap(_direction(random, o._array), o._dev) for o in shapes]
    if apart:
        weights = [wrap(np.repeat(w._array[..., None], 2, -1)[..., 0], w._dev) for w in weights]
    if grad_outputs is not None:
        weights = [grad_outputs] if isinstance(grad_outputs, Tensor) else list(grad_outputs)

    def derivative(*given: Any) -> Any:
        chosen = [t for t in given if isinstance(t, Tensor) and t.requires_grad]
        pairs = [(o, w) for o, w in zip(_outs(func(*given)), weights, strict=True) if o.requires_grad]
        found = grad([o for o, _ in pairs], chosen, [w for _, w in pairs], True, create_graph, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return derivative
