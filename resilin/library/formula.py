"""Gradients of an operator by its `register_autograd` formula: its call as a node of the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from resilin.core.autograd.function import Function
from resilin.core.tensor import Tensor
from resilin.core.trees import of_kind


class Context:
    """What an operator's `setup_context` keeps for its backward: tensors, and any attribute."""

    def __init__(self, inner: Any, needs_input_grad: tuple[Any, ...]) -> None:
        self._inner = inner
        self.needs_input_grad = needs_input_grad  # a list of bools for a list of tensors

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for backward."""
        self._inner.save_for_backward(*tensors)

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The kept tensors."""
        found: tuple[Any, ...] = self._inner.saved_tensors
        return found

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether backward gets zeros or None for outputs that nothing used."""
        self._inner.set_materialize_grads(value)

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say which outputs get no gradient."""
        self._inner.mark_non_differentiable(*tensors)


class _Call:
    """One call: the operator, its arguments, and the shape of its result."""

    def __init__(self, op: Any, kernel: Callable[..., Any], bound: inspect.BoundArguments, check: Any) -> None:
        self.op, self.kernel, self.check = op, kernel, check
        self.inputs, self.keyword_only = bound.args, bound.kwargs
        self.result: Any = None

    def run(self, ctx: Any) -> tuple[Tensor, ...]:
        self.result = self.check(self.kernel(*self.inputs, **self.keyword_only))
        if self.op.setup_context is not None:
            given = {"inputs": self.inputs, "output": self.result}
            if self.keyword_only:
                given["keyword_only_inputs"] = self.keyword_only
            self.op.setup_context(ctx, **given)
        return tuple(of_kind(Tensor, self.result))


class _Formula(Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.given = Context(ctx, tuple(_needs(value) for value in call.inputs))
        made = call.run(ctx.given)
        call.inputs, call.result = tuple(map(_shape_of, call.inputs)), _shape_of(call.result)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        call = ctx.call
        if call.op.backward is None:
            raise RuntimeError(
                f"Trying to backward through {call.op.name()} but no autograd formula was registered. Please use "
                "register_autograd to add one."
            )
        rest = iter(grads)
        shape = call.result if isinstance(call.result, tuple) else (call.result,)
        found = call.op.backward(ctx.given, *[_filled(part, rest) for part in shape])
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(call.inputs):
            raise RuntimeError(
                f"{call.op.name()}: expected its backward to return {len(call.inputs)} gradients, one for each input, "
                f"got {len(found)}"
            )
        flat = [one for shape, grad in zip(call.inputs, found, strict=True) for one in _gradients(shape, grad)]
        return (None, *flat)


_TENSOR = object()


def _shape_of(value: Any) -> Any:
    """Where a value has tensors: _TENSOR for one, a list or tuple for one with any, None for the rest."""
    if isinstance(value, Tensor):
        return _TENSOR
    return type(value)(map(_shape_of, value)) if isinstance(value, list | tuple) else None


def _filled(shape: Any, rest: Iterator[Any]) -> Any:
    if isinstance(shape, list | tuple):
        return [_filled(part, rest) for part in shape]
    return next(rest) if shape is _TENSOR else None


def _gradients(shape: Any, grad: Any) -> Iterator[Any]:
    if isinstance(shape, list | tuple):
        parts = [None] * len(shape) if grad is None else grad
        for part, one in zip(shape, parts, strict=True):
            yield from _gradients(part, one)
    elif shape is _TENSOR:
        yield grad


def _needs(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_needs(part) for part in value]
    return isinstance(value, Tensor) and value.requires_grad


def run(op: Any, kernel: Callable[..., Any], bound: inspect.BoundArguments, check: Callable[[Any], Any]) -> Any:
    """Return what the kernel gives, recorded with the operator's formula, or with an error for backward without one."""
    call = _Call(op, kernel, bound, check)
    tensors = list(of_kind(Tensor, bound.args))
    shape: list[Any] = []

    made = _Formula.apply(_remembering(call, shape), *tensors)
    rest = iter(made if isinstance(made, tuple) else (made,))
    return _rebuilt(shape[0], rest)


def _remembering(call: _Call, shape: list[Any]) -> _Call:
    """The call, which also leaves its result in `shape`, to be filled with the recorded tensors."""
    inner = call.run

    def run_and_keep(ctx: Any) -> tuple[Tensor, ...]:
        made = inner(ctx)
        shape.append(call.result)
        return made

    call.run = run_and_keep  # type: ignore[method-assign]
    return call


def _rebuilt(result: Any, rest: Iterator[Any]) -> Any:
    if isinstance(result, list | tuple):
        return type(result)([_rebuilt(part, rest) for part in result])
    return next(rest) if isinstance(result, Tensor) else result
