"""What surrounds the forward function of an op: numpy's floating point warnings off, bfloat16 computed in float32."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.kernels import pack
from resilin.core.kernels.loader import native

Rule = Callable[..., Any]

_BFLOAT16 = dtypes.bfloat16.np  # one object, as numpy keeps one dtype per registered type: compared by `is`, every call
_FLOAT16 = np.dtype(np.float16)
_FLOAT32 = np.dtype(np.float32)


class _ErrState:
    """Stands in for numpy's context variable of floating point settings where there is none to be found."""

    def set(self, _quiet: Any) -> Any:
        state = np.errstate(all="ignore")
        state.__enter__()
        return state

    def reset(self, state: Any) -> None:
        state.__exit__(None, None, None)


def _settings() -> tuple[Any, Any]:
    """numpy's context variable of floating point settings, and its value that is silent.

    `np.errstate` sets the same variable, but takes longer for it than numpy does to add two small arrays.
    """
    context = contextvars.Context()
    context.run(np.seterr, all="ignore")
    found = list(context.items())
    return found[0] if len(found) == 1 else (_ErrState(), None)


VARIABLE, SILENT = _settings()
"""numpy's context variable of floating point settings, and its value without warnings."""
silence = VARIABLE.set
"""`token = silence(SILENT)` switches numpy's warnings off in this thread; `restore(token)` puts back what was."""
restore = VARIABLE.reset
IN_NATIVE = native is not None and isinstance(VARIABLE, contextvars.ContextVar)
"""Whether native code can do the same."""


ANY = "biufc"  # kinds of dtypes: bool, signed and unsigned integers, floats (bfloat16, too), complex numbers
_NAMES = {"b": "bool", "i": "integer", "f": "floating point", "c": "complex"}


def taking(forward: Rule, name: str, n: int, kinds: str) -> Rule:
    """`forward` of op `name` with `n` tensors; NotImplementedError for a tensor of a dtype of none of `kinds`.

    Ops that are for all kinds, as most of those for few elements, pay nothing for it.
    """
    if kinds == ANY:
        return forward
    taken = kinds.replace("f", "fV")  # V: numpy's name for bfloat16

    def unary(xp: Any, x: Any, *params: Any) -> Any:
        if x.dtype.kind not in taken:
            raise refused(name, x, kinds)
        return forward(xp, x, *params)

    def several(xp: Any, *args: Any) -> Any:
        for x in args[0] if n < 0 else args[:n]:
            dtype = getattr(x, "dtype", None)
            if dtype is not None and dtype.kind not in taken:
                raise refused(name, x, kinds)
        return forward(xp, *args)

    return unary if n == 1 else several


def refused(name: str, x: Any, kinds: str) -> NotImplementedError:
    """What to raise for `x` of a dtype of none of `kinds`."""
    given = str(dtypes.from_numpy(x.dtype)).rpartition(".")[2]
    supported = ", ".join(text for kind, text in _NAMES.items() if kind in kinds)
    return NotImplementedError(f"{name}({given} {list(x.shape)}): not implemented for {given}; it takes {supported}")


def guarded(forward: Rule, n: int, *, quiet: bool, moves: bool, wide: bool = False) -> Rule:
    """`forward` of an op with `n` tensors (-1: a sequence of them) with what its facts ask for."""
    if quiet and not moves:
        return _computing(forward, n, wide)
    silent = _quietly(forward) if quiet else forward
    return silent if moves else _rounded_once(silent, n, wide)


def _quietly(forward: Rule) -> Rule:
    if IN_NATIVE:
        return native.quiet_call(forward, forward, VARIABLE, SILENT, _BFLOAT16, 0, False)

    def run(*args: Any) -> Any:
        token = silence(SILENT)
        try:
            return forward(*args)
        finally:
            restore(token)

    return run


def _computing(forward: Rule, n: int, wide: bool) -> Rule:
    """The common case, both at once; in native code, where there is some."""
    general = _rounded_once(_quietly(forward), n, wide)
    if n > 0 and IN_NATIVE:
        return native.quiet_call(forward, general, VARIABLE, SILENT, _BFLOAT16, n, wide)
    return general


def _rounded_once(forward: Rule, n: int, wide: bool) -> Rule:
    """`forward`, computed in float32 where an input is bfloat16, and rounded to the inputs' dtype once, as in PyTorch.

    numpy does not know that bfloat16 is a float: beside a Python number it would widen, and some functions refuse it.
    With `wide`, so it is with float16 beside a Python number, which numpy would round to float16.
    """

    def run(xp: Any, *args: Any) -> Any:
        inputs = args[0] if n < 0 else args[:n]
        for x in inputs:
            if getattr(x, "dtype", None) is _BFLOAT16:
                return _in_float32(forward, n, inputs, xp, args, _BFLOAT16)
        if wide and _float16_beside_number(inputs):
            return _in_float32(forward, n, inputs, xp, args, _FLOAT16)
        return forward(xp, *args)

    return run


def _float16_beside_number(inputs: Any) -> bool:
    number = any(type(x) is float or type(x) is int for x in inputs)
    return number and any(getattr(x, "dtype", None) == _FLOAT16 for x in inputs)


def _in_float32(forward: Rule, n: int, inputs: Any, xp: Any, args: tuple[Any, ...], half: Any) -> Any:
    given = [x for x in inputs if hasattr(x, "dtype") and x.dtype.kind in "fVc"]
    wide = [pack.astype(x, _FLOAT32) if getattr(x, "dtype", None) == half else x for x in inputs]
    value = forward(xp, wide, *args[1:]) if n < 0 else forward(xp, *wide, *args[n:])
    if any(x.dtype != half for x in given):
        return value
    return tuple(_narrowed(v, half) for v in value) if isinstance(value, tuple) else _narrowed(value, half)


def _narrowed(value: Any, half: Any) -> Any:
    return pack.astype(value, half) if value.dtype == _FLOAT32 else value
