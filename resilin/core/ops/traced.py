"""Elementwise ops on devices that launch kernels: an op, and its gradient, in one launch instead of one a step.

The ops' own text is traced (kernels/cuda/tracing.py). What cannot be, and what is one step for the array library
anyway, runs as declared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from resilin.core.autograd.rule_inputs import Meta, is_wide, wide
from resilin.core.device import before_registration
from resilin.core.kernels.cuda import elementwise
from resilin.core.kernels.cuda.tracing import FORMULAS, NAMESPACE
from resilin.core.ops.errstate import is_half
from resilin.core.ops.registry import OPS, Impl, Op

ALSO = ("relu", "gelu")  # work element by element, too; their only argument is no pair that is promoted
STRICT = ("relu",)  # run by our kernel also where it is one step: they keep the order of axes, the library does not


def _install(backend: Any) -> None:
    """Give the ops that no kernel overrides theirs."""
    if not hasattr(backend.xp, "launch"):
        return
    _name_formulas()
    for op in OPS.values():
        if _is_elementwise(op) and backend.type not in op.impls:
            op.impls[backend.type] = _implementation(op)


def _name_formulas() -> None:
    """Let formulas use one another."""
    FORMULAS.update({op.name: op.formula for op in OPS.values() if _is_elementwise(op) and not op.host})


def _is_elementwise(op: Op) -> bool:
    return (op.elementwise or op.name in ALSO) and op.n > 0 and op.outputs == 1


def _formula(op: Op) -> Callable[..., Any]:
    """What is traced: the op's text, or the kernel's own function where the text is for the host."""
    return functools.partial(_called, op.name) if op.host else op.formula


def _called(name: str, xp: Any, *values: Any) -> Any:
    return getattr(xp, name)(*values)


def _implementation(op: Op) -> Impl:
    rule = None if op.generic.vjp is None else _rule(op, op.generic.vjp)
    return Impl(_forward(op), rule, saves=op.generic.saves)


def _forward(op: Op) -> Callable[..., Any]:
    n, name, formula, otherwise = op.n, op.name, _formula(op), op.generic.forward
    least = 1 if name in STRICT else 2

    def run(xp: Any, *args: Any) -> Any:
        found = _apply(xp, name, args[:n], args[n:], lambda *symbols: formula(NAMESPACE, *symbols), least, op.exponent)
        return otherwise(xp, *args) if found is None else found[0]

    return run


def _rule(op: Op, declared: Callable[..., Any]) -> Callable[..., Any]:
    n, name = op.n, f"{op.name}_grad"

    def run(xp: Any, needs: Any, g: Any, y: Any, *args: Any) -> Any:
        values = (g, y, *args[:n])
        found = _apply(
            xp,
            name,
            tuple([None if type(value) is Meta else value for value in values]),
            args[n:],
            functools.partial(_gradients, declared, needs, NAMESPACE),
            1 if op.name in STRICT else 2,
            op.exponent,
            needs,
        )
        if found is not None:
            return found
        if op.generic.wide and is_half(g) and is_wide(op.generic.wide, g):
            values = tuple(map(wide, values))
        return declared(xp, needs, *values, *args[n:])

    return run


def _apply(
    xp: Any,
    name: str,
    values: tuple[Any, ...],
    params: tuple[Any, ...],
    formula: Callable[..., Any],
    least: int,
    fixed: bool,
    needs: Any = (),
) -> Any:
    """`elementwise.apply` with the op's parameters, and where numbers are `fixed` (exponents) with those, written into
    the kernel."""
    numbers = tuple([value if fixed and type(value) in (int, float) else None for value in values])
    given = tuple([None if number is not None else value for number, value in zip(numbers, values, strict=True)])

    def with_parameters(*symbols: Any) -> Any:
        chosen = [one if number is None else number for one, number in zip(symbols, numbers, strict=True)]
        return formula(*chosen, *params)

    if not hasattr(xp, "launch") or not _is_hashable(params):
        return None
    return elementwise.apply(xp, name, (params, numbers, needs), with_parameters, given, least)


def _is_hashable(params: tuple[Any, ...]) -> bool:
    try:
        hash(params)
    except TypeError:
        return False
    return True


def _formulas() -> Iterator[tuple[str, Callable[..., Any], int]]:
    """(name, formula, number of arrays) of every op with its default parameters, and of its gradient."""
    _name_formulas()
    for op in OPS.values():
        if not _is_elementwise(op):
            continue
        params = op.defaults[op.n :]
        yield op.name, functools.partial(_with, _formula(op), params), op.n
        if op.generic.vjp is not None:
            rule = functools.partial(_gradients, op.generic.vjp, (True,) * op.n)
            yield f"{op.name}_grad", functools.partial(_with, rule, params), op.n + 2


def _with(formula: Callable[..., Any], params: tuple[Any, ...], *symbols: Any) -> Any:
    return formula(NAMESPACE, *symbols, *params)


def _gradients(declared: Callable[..., Any], needs: tuple[bool, ...], xp: Any, *args: Any) -> tuple[Any, ...]:
    return tuple(declared(xp, needs, *args))


before_registration(_install)
elementwise.ALL.append(_formulas)
