"""Full backward hooks of modules: identity functions around a module's inputs and outputs that see the gradients.

  args ──► [_Boundary in] ──► forward ──► [_Boundary out] ──► output
grad_input ◄── hooks run ◄──────────────◄── grad_output noted
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from resilin.core.autograd.function import Function
from resilin.core.tensor import Tensor
from resilin.nn.modules.global_hooks import hooks_of

_Grads = tuple[Tensor | None, ...]


class _Boundary(Function):
    """Identity on several tensors; `seen(grads)` gets all their gradients at once and may replace them."""

    @staticmethod
    def forward(ctx: Any, seen: Callable[[_Grads], _Grads], *tensors: Tensor) -> Any:
        ctx.seen = seen
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return (None, *ctx.seen(grads))


class _Call:
    """One call of a module with backward hooks."""

    def __init__(self, module: Any, args: tuple[Any, ...]) -> None:
        self._module = module
        self._grad_output: _Grads | None = None  # until the gradients of the output came by
        self._places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
        self._count = len(args)
        self._wrapped = any(args[i].requires_grad for i in self._places)
        self.args = args
        if self._wrapped:
            self.args = _wrap(args, self._places, self._input_grads)

    def end(self, output: Any) -> Any:
        """The module's output, so wrapped that its gradients are seen."""
        self.args = ()  # their graph holds this call: nothing of it may stay here
        single = isinstance(output, Tensor)
        outputs = (output,) if single else output
        if not isinstance(outputs, tuple | list):
            warnings.warn(
                "For backward hooks to be called, module output should be a Tensor or a tuple of Tensors but received "
                f"{type(output).__name__}",
                stacklevel=2,
            )
            return output
        places = [i for i, item in enumerate(outputs) if isinstance(item, Tensor)]
        if not any(outputs[i].requires_grad for i in places):
            return output

        def seen(grads: _Grads) -> _Grads:
            return self._output_grads(grads, places, len(outputs))

        wrapped = _wrap(tuple(outputs), places, seen)
        if single:
            return wrapped[0]
        return type(outputs)(*wrapped) if hasattr(outputs, "_fields") else type(outputs)(wrapped)

    def _output_grads(self, grads: _Grads, places: list[int], count: int) -> _Grads:
        full = _spread(grads, places, count)
        for _, hook in hooks_of(self._module, "_backward_pre_hooks"):
            full = _replace(full, hook(self._module, full), "backward pre-hook")
        self._grad_output = full
        if not self._wrapped:  # no input needs a gradient: the hooks run now, as in PyTorch
            for _, hook in hooks_of(self._module, "_backward_hooks"):
                if hook(self._module, (None,) * self._count, full) is not None:
                    raise RuntimeError(
                        "a backward hook replaced grad_input, but no input of the module needs a gradient"
                    )
        return tuple(full[i] for i in places)

    def _input_grads(self, grads: _Grads) -> _Grads:
        if self._grad_output is None:
            return grads
        full = _spread(grads, self._places, self._count)
        for _, hook in hooks_of(self._module, "_backward_hooks"):
            full = _replace(full, hook(self._module, full, self._grad_output), "backward hook")
        return tuple(full[i] for i in self._places)


def begin(module: Any, args: tuple[Any, ...]) -> _Call | None:
    """Start a call: None when the module has no backward hooks, else its arguments wrapped."""
    if not hooks_of(module, "_backward_hooks") and not hooks_of(module, "_backward_pre_hooks"):
        return None
    return _Call(module, args)


def _wrap(items: tuple[Any, ...], places: list[int], seen: Callable[[_Grads], _Grads]) -> tuple[Any, ...]:
    wrapped = _Boundary.apply(seen, *(items[i] for i in places))
    result = list(items)
    for i, tensor in zip(places, wrapped if isinstance(wrapped, tuple) else (wrapped,), strict=True):
        result[i] = tensor
    return tuple(result)


def _spread(grads: _Grads, places: list[int], count: int) -> _Grads:
    full: list[Tensor | None] = [None] * count
    for i, grad in zip(places, grads, strict=True):
        full[i] = grad
    return tuple(full)


def _replace(old: _Grads, new: Any, what: str) -> _Grads:
    if new is None:
        return old
    new = new if isinstance(new, tuple) else (new,)
    if len(new) != len(old):
        raise RuntimeError(f"a {what} returned {len(new)} gradients, {len(old)} were expected")
    return tuple(new)
