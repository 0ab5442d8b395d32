"""Checkpointing: keep a function's inputs instead of its intermediate results, and run it again in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from resilin.core import rng
from resilin.core.autograd import engine
from resilin.core.autograd.function import Function
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.tensor import Tensor


class _Checkpoint(Function):
    @staticmethod
    def forward(ctx: Any, fn: Any, keep_rng: bool, *args: Any) -> Any:
        ctx.fn, ctx.state = fn, rng.default_generator().clone_state() if keep_rng else None
        ctx.places = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        ctx.args = [None if isinstance(a, Tensor) else a for a in args]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        return fn(*args)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        args = list(ctx.args)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        generator = rng.default_generator()
        now = generator.clone_state()
        if ctx.state is not None:
            generator.restore(ctx.state)
        try:
            with enable_grad():
                outputs = ctx.fn(*args)
        finally:
            if ctx.state is not None:
                generator.restore(now)
        outs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [(o, g) for o, g in zip(outs, grads, strict=True) if isinstance(o, Tensor) and o.requires_grad]
        if pairs:
            engine.backward([o for o, _ in pairs], [g for _, g in pairs])
        return (None, None, *(a.grad if isinstance(a, Tensor) else None for a in args))


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """`function(*args)` whose intermediate results are not kept: backward runs it again, with the same random numbers.

    Gradients reach tensors among `args` and parameters that `function` uses. As with any Function, nothing is recorded
    unless a tensor in `args` requires gradients; otherwise the call is made plainly, which is always right.
    """
    if kwargs:
        inner = function

        def function(*values: Any) -> Any:
            return inner(*values, **kwargs)

    if not any(isinstance(a, Tensor) and a.requires_grad for a in args):
        return function(*args)
    return _Checkpoint.apply(function, preserve_rng_state, *args)
