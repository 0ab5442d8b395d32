"""Derivatives of functions: `vjp`, `jvp`, `jacobian`, `hessian`, `vhp`, `hvp`, as in torch.autograd.functional."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from resilin.core.autograd.grad import grad
from resilin.core.autograd.grad_mode import enable_grad
from resilin.core.autograd.vmap import vmap
from resilin.core.ops.creation import zeros_like
from resilin.core.ops.shape import permute_dims, stack
from resilin.core.tensor import Tensor, wrap

Fn = Callable[..., Any]


def _tensors(value: Any, what: str, name: str) -> tuple[tuple[Tensor, ...], bool]:
    """A tensor or a tuple of tensors as a tuple, and whether it was a single one. TypeError for anything else."""
    if isinstance(value, Tensor):
        return (value,), True
    if not isinstance(value, tuple):
        raise TypeError(f"{name}: {what} must be a Tensor or a tuple of Tensors, got {type(value).__name__}")
    for position, part in enumerate(value):
        if not isinstance(part, Tensor):
            raise TypeError(f"{name}: {what} must be Tensors, got {type(part).__name__} at position {position}")
    return value, False


def _inputs(inputs: Any, create_graph: bool, name: str) -> tuple[tuple[Tensor, ...], bool]:
    values, single = _tensors(inputs, "inputs", name)
    if create_graph:
        return tuple(t.view_as(t) if t.requires_grad else t.detach().requires_grad_() for t in values), single
    return tuple(t.detach().requires_grad_() for t in values), single


def _outputs(result: Any, name: str, strict: bool) -> tuple[tuple[Tensor, ...], bool]:
    outs, single = _tensors(result, "the outputs of the function", name)
    for position, out in enumerate(outs):
        if strict and not out.requires_grad:
            raise RuntimeError(
                f"{name}: output {position} of the function does not require gradients. With strict=True, outputs must "
                "be computed from the inputs in a differentiable manner"
            )
    return outs, single


def _seeds(v: Any, like: tuple[Tensor, ...], name: str, what: str) -> tuple[Tensor, ...]:
    if v is None:
        if len(like) == 1 and like[0].numel() == 1:
            return (wrap(like[0]._dev.xp.ones_like(like[0]._array), like[0]._dev),)
        raise RuntimeError(f"{name}: v can be None only where the function's {what} is a single element")
    values, _ = _tensors(v, "v", name)
    if len(values) != len(like):
        raise RuntimeError(f"{name}: v has {len(values)} tensors, expected {len(like)}, one for each {what}")
    for position, (a, b) in enumerate(zip(values, like, strict=True)):
        if a.shape != b.shape:
            raise RuntimeError(f"{name}: v[{position}] has shape {tuple(a.shape)}, expected {tuple(b.shape)}")
    return values


def _single_element(outs: tuple[Tensor, ...], single: bool, name: str) -> None:
    if not single:
        raise RuntimeError(f"{name}: the function should return a single Tensor, got {len(outs)}")
    if outs[0].numel() != 1:
        raise RuntimeError(f"{name}: the function should return a single element, got shape {tuple(outs[0].shape)}")


def _out(values: Any, single: bool, create_graph: bool) -> Any:
    kept = tuple(v if create_graph else v.detach() for v in values)
    return kept[0] if single else kept


def vjp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), v^T J): one backward."""
    with enable_grad():
        ins, single_in = _inputs(inputs, create_graph, "vjp")
        outs, single_out = _outputs(func(*ins), "vjp", strict)
        found = _grads(outs, ins, _seeds(v, outs, "vjp", "output"), create_graph, "vjp" * strict)
    return _out(outs, single_out, create_graph), _out(found, single_in, create_graph)


def _grads(outs: Any, ins: Any, seeds: Any, create_graph: bool, strict: str = "") -> tuple[Any, ...]:
    """Gradients, zeros where nothing flows; with `strict`, the function's name, that is a RuntimeError."""
    pairs = [(o, s) for o, s in zip(outs, seeds, strict=True) if o.requires_grad]
    found: Any = (None,) * len(ins)
    if pairs:
        found = grad([o for o, _ in pairs], ins, [s for _, s in pairs], True, create_graph, allow_unused=True)
    for position, g in enumerate(found):
        if strict and g is None:
            raise RuntimeError(
                f"{strict}: the function is independent of input {position}: not allowed with strict=True"
            )
        if strict and create_graph and not g.requires_grad:
            raise RuntimeError(
                f"{strict}: the derivative is independent of input {position}: not allowed with strict=True and "
                "create_graph=True"
            )
    return tuple(zeros_like(t) if g is None else g for g, t in zip(found, ins, strict=True))


def jvp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), J v): two backwards, the second through the first (the double-backward trick)."""
    with enable_grad():
        ins, _ = _inputs(inputs, create_graph, "jvp")
        directions = _seeds(v, ins, "jvp", "input")
        outs, single_out = _outputs(func(*ins), "jvp", strict)
        found = _tangents(outs, ins, directions, create_graph, "jvp" * strict)
    return _out(outs, single_out, create_graph), _out(found, single_out, create_graph)


def _tangents(outs: Any, ins: Any, directions: Any, create_graph: bool, strict: str = "") -> tuple[Any, ...]:
    """J v, for v = `directions`."""
    dummies, first = _as_function_of_cotangents(outs, ins, strict)
    return _grads(first, dummies, directions, create_graph)


def _as_function_of_cotangents(outs: Any, ins: Any, strict: str = "") -> tuple[Any, Any]:
    """Cotangents, and the vjp at them: linear in them, so that its own vjp is the jvp."""
    dummies = tuple(zeros_like(o).requires_grad_() for o in outs)
    return dummies, _grads(outs, ins, dummies, True, strict)


def jacobian(
    func: Fn,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian: per output and input a tensor of shape output.shape + input.shape (nested tuples when several).

    Cost:   one forward, and one backward per element of the outputs; with `vectorize` one backward per output, for all
            its elements at once (`vmap`). With "forward-mode", which needs it, a backward and one more per input.
    Raises: TypeError for inputs or outputs that are no tensors; with `strict`, RuntimeError where an output does not
            depend on an input.
    """
    _check_strategy("jacobian", strategy, strict, vectorize)
    with enable_grad():
        ins, single_in = _inputs(inputs, create_graph, "jacobian")
        outs, single_out = _outputs(func(*ins), "jacobian", strict)
        if vectorize:
            blocks = (_rows_at_once if strategy == "reverse-mode" else _columns_at_once)(outs, ins, create_graph)
        else:
            blocks = _rows(outs, ins, create_graph, "jacobian" * strict)
        rows = [_out(parts, single_in, create_graph) for parts in blocks]
    return rows[0] if single_out else tuple(rows)


def _check_strategy(name: str, strategy: str, strict: bool, vectorize: bool) -> None:
    if strategy not in ("forward-mode", "reverse-mode"):
        raise ValueError(f'{name}: strategy must be "forward-mode" or "reverse-mode", got {strategy!r}')
    if strategy == "forward-mode" and not vectorize:
        raise NotImplementedError(f'{name}: "forward-mode" is implemented for vectorize=True')
    if strict and vectorize:
        raise RuntimeError(f"{name}: strict=True and vectorize=True are not supported together")


def _units(like: Tensor) -> Iterator[Tensor]:
    """Tensors of the shape of `like` with a single 1, in row-major order of its place."""
    for place in range(like.numel()):
        one = like._dev.xp.zeros(like._array.shape, like._array.dtype)
        one.reshape(-1)[place] = 1
        yield wrap(one, like._dev)


def _rows(outs: Any, ins: Any, create_graph: bool, strict: str) -> Iterator[list[Tensor]]:
    """Per output the parts of the Jacobian for all inputs, row by row."""
    for out in outs:
        found = [_grads((out,), ins, (one,), create_graph, strict) for one in _units(out)]
        yield [_join([row[i] for row in found], out, source) for i, source in enumerate(ins)]


def _basis(like: Tensor) -> Tensor:
    """All of `_units`, stacked."""
    count = like.numel()
    eye = like._dev.xp.eye(count, dtype=like._array.dtype)
    return wrap(eye.reshape(count, *like._array.shape), like._dev)


def _rows_at_once(outs: Any, ins: Any, create_graph: bool) -> Iterator[list[Tensor]]:
    """The same with one backward for all elements of an output."""
    for out in outs:
        backward = vmap(lambda one, out=out: _grads((out,), ins, (one,), create_graph), randomness="same")
        found = backward(_basis(out)) if out.numel() else [_join([], out, source) for source in ins]
        yield [part.reshape((*out.shape, *source.shape)) for part, source in zip(found, ins, strict=True)]


def _columns_at_once(outs: Any, ins: Any, create_graph: bool) -> Iterator[list[Tensor]]:
    """The same, column by column: all columns of an input at once."""
    dummies, first = _as_function_of_cotangents(outs, ins)
    columns: list[Any] = []
    for i, source in enumerate(ins):

        def tangents(one: Tensor, i: int = i) -> tuple[Any, ...]:
            directions = [one if k == i else zeros_like(t) for k, t in enumerate(ins)]
            return _grads(first, dummies, directions, create_graph)

        columns.append(vmap(tangents, (0,), randomness="same")(_basis(source)) if source.numel() else None)
    for number, out in enumerate(outs):
        parts = [
            _join([], t, out) if found is None else found[number].reshape((*t.shape, *out.shape))
            for found, t in zip(columns, ins, strict=True)
        ]
        yield [_turned(part, source.ndim) for part, source in zip(parts, ins, strict=True)]


def _turned(part: Tensor, count: int) -> Tensor:
    """The first `count` dimensions put behind the others."""
    order = (*range(count, part.ndim), *range(count))
    return permute_dims.call(part, order)  # type: ignore[no-any-return]


def _join(column: list[Tensor], out: Tensor, source: Tensor) -> Tensor:
    if not column:
        zeros = source._dev.xp.zeros
        return wrap(zeros((*out._array.shape, *source._array.shape), source._array.dtype), source._dev)
    joined: Tensor = stack.call(column, 0)
    return joined.reshape((*out.shape, *source.shape))


def hessian(
    func: Fn,
    inputs: Any,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The matrix of second derivatives of a function with one element; nested tuples for several inputs.

    Cost: as `jacobian` of the gradient.
    """
    _check_strategy("hessian", outer_jacobian_strategy, strict, vectorize)
    single = isinstance(inputs, Tensor)

    def first(*values: Tensor) -> Any:
        outs, alone = _outputs(func(*values), "hessian", strict)
        _single_element(outs, alone, "hessian")
        found = _grads(outs, values, _seeds(None, outs, "hessian", "output"), True, "hessian" * strict)
        return found[0] if single else found

    return jacobian(first, inputs, create_graph, strict, vectorize, outer_jacobian_strategy)


def vhp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), v^T H)."""
    return _hessian_product("vhp", func, inputs, v, create_graph, strict)


def hvp(func: Fn, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """(func(*inputs), H v), which is v^T H: the Hessian is symmetric."""
    return _hessian_product("hvp", func, inputs, v, create_graph, strict)


def _hessian_product(name: str, func: Fn, inputs: Any, v: Any, create_graph: bool, strict: bool) -> tuple[Any, Any]:
    with enable_grad():
        ins, single_in = _inputs(inputs, create_graph, name)
        seeds = _seeds(v, ins, name, "input")
        outs, single_out = _outputs(func(*ins), name, strict)
        _single_element(outs, single_out, name)
        first = _grads(outs, ins, _seeds(None, outs, name, "output"), True, name * strict)
        found = _grads(first, ins, seeds, create_graph, name * strict)
    return _out(outs, True, create_graph), _out(found, single_in, create_graph)
