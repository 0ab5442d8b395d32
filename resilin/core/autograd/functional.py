"""Derivatives of functions: `vjp`, `jvp`, `jacobian`, `hessian`, `vhp`, `hvp`, as in torch.autograd.functional."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core.autograd.grad import grad
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.ops.creation import zeros_like
from resilin.core.ops.shape import concat
from resilin.core.tensor import Tensor, wrap

Fn = Callable[..., Any]


def _inputs(inputs: Any, create_graph: bool) -> tuple[tuple[Tensor, ...], bool]:
    single = isinstance(inputs, Tensor)
    values = (inputs,) if single else tuple(inputs)
    if create_graph:
        return tuple(t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in values), single
    return tuple(t.detach().requires_grad_() for t in values), single


def _outputs(result: Any) -> tuple[tuple[Tensor, ...], bool]:
    single = isinstance(result, Tensor)
    return ((result,) if single else tuple(result)), single


def _seeds(v: Any, like: tuple[Tensor, ...], what: str) -> tuple[Tensor, ...]:
    if v is None:
        if len(like) == 1 and like[0].numel() == 1:
            return (wrap(np.ones_like(like[0]._array), like[0]._dev),)
        raise RuntimeError(f"v can be left out only when the function's {what} is a single element")
    values = (v,) if isinstance(v, Tensor) else tuple(v)
    for a, b in zip(values, like, strict=True):
        if a.shape != b.shape:
            raise RuntimeError(f"v has shape {tuple(a.shape)}, expected {tuple(b.shape)}")
    return values


def _out(values: Any, single: bool, create_graph: bool) -> Any:
    kept = tuple(v if create_graph else v.detach() for v in values)
    return kept[0] if single else kept


def vjp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), v^T J): one backward."""
    with enable_grad():
        ins, single_in = _inputs(inputs, create_graph)
        outs, single_out = _outputs(func(*ins))
        found = _grads(outs, ins, _seeds(v, outs, "output"), create_graph, strict)
    return _out(outs, single_out, create_graph), _out(found, single_in, create_graph)


def _grads(outs: Any, ins: Any, seeds: Any, create_graph: bool, strict: bool = False) -> tuple[Any, ...]:
    pairs = [(o, s) for o, s in zip(outs, seeds, strict=True) if o.requires_grad]
    if not pairs:
        if strict:
            raise RuntimeError("the output of the function is independent of its inputs")
        return tuple(zeros_like(t) for t in ins)
    found = grad([o for o, _ in pairs], ins, [s for _, s in pairs], True, create_graph, allow_unused=True)
    if strict and any(g is None for g in found):
        raise RuntimeError("the output of the function is independent of one of its inputs")
    return tuple(zeros_like(t) if g is None else g for g, t in zip(found, ins, strict=True))


def jvp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), J v): two backwards, the second through the first (the double-backward trick)."""
    with enable_grad():
        ins, _ = _inputs(inputs, create_graph)
        outs, single_out = _outputs(func(*ins))
        directions = _seeds(v, ins, "input")
        dummies = tuple(zeros_like(o).requires_grad_() for o in outs)
        first = _grads(outs, ins, dummies, True, strict)
        found = _grads(first, dummies, directions, create_graph)
    return _out(outs, single_out, create_graph), _out(found, single_out, create_graph)


def jacobian(
    func: Fn,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian: per output and input a tensor of shape output.shape + input.shape (nested tuples when several)."""
    with enable_grad():
        ins, single_in = _inputs(inputs, create_graph)
        outs, single_out = _outputs(func(*ins))
        rows = []
        for out in outs:
            columns: list[list[Tensor]] = [[] for _ in ins]
            flat = out.reshape(-1)
            for i in range(flat.numel()):
                one = np.zeros(flat._array.shape, flat._array.dtype)
                one[i] = 1
                for column, g in zip(
                    columns, _grads((flat,), ins, (wrap(one, flat._dev),), create_graph, strict), strict=True
                ):
                    column.append(g.reshape(1, *g.shape))
            parts = [_join(c, out, t) for c, t in zip(columns, ins, strict=True)]
            rows.append(_out(parts, single_in, create_graph))
    return rows[0] if single_out else tuple(rows)


def _join(column: list[Tensor], out: Tensor, source: Tensor) -> Tensor:
    if not column:
        return wrap(np.zeros((*out._array.shape, *source._array.shape), source._array.dtype), source._dev)
    joined: Tensor = concat.call(column, 0, (1,) * len(column))
    return joined.reshape(*out.shape, *source.shape)  # type: ignore[no-any-return]


def hessian(func: Fn, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False) -> Any:
    """The matrix of second derivatives of a function with one element; nested tuples for several inputs."""
    single = isinstance(inputs, Tensor)

    def first(*values: Tensor) -> Any:
        value = func(*values)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise RuntimeError("hessian: the function must give a single tensor with one element")
        found = _grads((value.reshape(()),), values, (wrap(np.ones((), value._array.dtype), value._dev),), True, strict)
        return found[0] if single else found

    return jacobian(first, inputs, create_graph, strict)


def vhp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), v^T H)."""
    with enable_grad():
        ins, single_in = _inputs(inputs, create_graph)
        outs, _ = _outputs(func(*ins))
        first = _grads(outs, ins, _seeds(None, outs, "output"), True, strict)
        found = _grads(first, ins, _seeds(v, ins, "input"), create_graph)
    return _out(outs, True, create_graph), _out(found, single_in, create_graph)


hvp = vhp  # the Hessian is symmetric
