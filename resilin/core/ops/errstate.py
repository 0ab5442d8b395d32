"""What surrounds the functions of an op: numpy's floating point warnings off, 16-bit floats computed in float32."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.kernels import pack
from resilin.core.kernels.loader import native

Rule = Callable[..., Any]
_F = TypeVar("_F", bound=Rule)

_BFLOAT16 = dtypes.bfloat16.np  # one object, as numpy keeps one dtype per registered type: compared by `is`, every call
_FLOAT16 = np.dtype(np.float16)
_NO_DTYPE = object()
FLOAT32 = np.dtype(np.float32)


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
if native is not None:
    native.set_bfloat16(_BFLOAT16)


ON_DEVICES, ON_HOST = "devices", "host"
"""Of the facts `single` and `narrow`: so it is with a device's library, and not with numpy."""
BY_KERNEL = "kernel"
"""Of the fact `single`: as `ON_DEVICES`, and the host's function takes both kinds of 16-bit floats and rounds once."""
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


def guarded(
    forward: Rule,
    n: int,
    *,
    quiet: bool,
    moves: bool,
    single: bool | str = False,
    wide_numbers: bool = False,
    loop: str = "",
    kinds: str = ANY,
    known: Rule | None = None,
    kernel: Rule | None = None,
) -> Rule:
    """`forward` of an op with `n` tensors (-1: a sequence of them) with what its facts ask for.

    `loop` names the function that is all of it, for which native code has loops, of dtypes of these `kinds`. `known` is
    what runs for arrays of numpy's of these kinds, without a look at them; a native `kernel` is asked before it.
    """
    if quiet and not moves:
        loops = (getattr(np, loop, None) if loop else None, loop, kinds, kernel)
        return _computing(forward, known or forward, n, single, wide_numbers, loops)
    if kernel and n > 0 and IN_NATIVE:
        facts = (_NO_DTYPE, n, True, False, None, "", kinds, kernel)
        return native.quiet_call(known or forward, forward, VARIABLE, SILENT, *facts)
    silent = quietly(forward) if quiet else forward
    return silent if moves else _rounded_once(silent, n, single, wide_numbers)


def guarded_kernel(
    forward: Rule,
    n: int,
    *,
    quiet: bool,
    wide: bool,
    residual: bool,
    kinds: str = ANY,
    known: Rule | None = None,
    kernel: Rule | None = None,
) -> Rule:
    """A kernel for such an op. `wide`: of 16-bit floats it gets float32, and its result is rounded to the dtype of its
    first tensor; its residual stays float32. For the rest see `guarded`."""
    silent = quietly(forward) if quiet else forward
    general = _kernel_rounded_once(silent, n, residual) if wide else silent
    if n > 0 and IN_NATIVE and (wide or kernel):  # asks each tensor for its dtype in native code: most have 32 bits
        narrow = (_BFLOAT16, n, False) if wide else (_NO_DTYPE, n, True)
        return native.quiet_call(known or forward, general, VARIABLE, SILENT, *narrow, False, None, "", kinds, kernel)
    return general


def quietly(function: _F) -> _F:
    """Decorate a function of any arguments that computes with numpy beside ops: what overflows does so in silence."""
    if IN_NATIVE:
        call = native.quiet_call(function, function, VARIABLE, SILENT, _BFLOAT16, 0, True, False)
        return functools.update_wrapper(call, function)  # type: ignore[return-value]

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        token = silence(SILENT)
        try:
            return function(*args, **kwargs)
        finally:
            restore(token)

    return run  # type: ignore[return-value]


def _computing(
    forward: Rule, known: Rule, n: int, single: bool | str, wide_numbers: bool, loops: tuple[Any, ...]
) -> Rule:
    """The common case, both at once; in native code, where there is some."""
    general = _rounded_once(quietly(forward), n, single, wide_numbers)
    if n > 0 and IN_NATIVE:
        if single == BY_KERNEL:  # no array has a dtype that `general` would have to take
            return native.quiet_call(known, general, VARIABLE, SILENT, _NO_DTYPE, n, True, wide_numbers, *loops)
        facts = (n, single is True, wide_numbers, *loops)
        return native.quiet_call(known, general, VARIABLE, SILENT, _BFLOAT16, *facts)
    return general


def _rounded_once(forward: Rule, n: int, single: bool | str, wide_numbers: bool) -> Rule:
    """`forward`, computed in float32 where an input has 16 bits, and rounded to the inputs' dtype once, as in PyTorch.

    float16 of a `single` step is left to the array library, which does the same, but for `wide_numbers` where a Python
    number is beside it, which numpy would round to float16. Of bfloat16 numpy does not know that it is a float: beside
    a Python number it would widen, and some functions refuse it.
    """
    other = _BFLOAT16 if single is True else _FLOAT16
    everywhere = single != ON_DEVICES
    if single == BY_KERNEL:
        return _rounded_by_kernel(forward, n)

    def unary(xp: Any, x: Any, *params: Any) -> Any:
        dtype = getattr(x, "dtype", None)
        if dtype is _BFLOAT16 or (dtype is other and (everywhere or isinstance(x, np.ndarray))):
            return _narrowed(forward(xp, pack.astype(x, FLOAT32), *params), dtype)
        return forward(xp, x, *params)

    def run(xp: Any, *args: Any) -> Any:
        inputs = args[0] if n < 0 else args[:n]
        for x in inputs:
            dtype = getattr(x, "dtype", None)
            if dtype is _BFLOAT16 or (dtype is other and (everywhere or isinstance(x, np.ndarray))):
                return _in_float32(forward, n, inputs, xp, args)
        if wide_numbers and _float16_beside_number(inputs):
            return _in_float32(forward, n, inputs, xp, args)
        return forward(xp, *args)

    return unary if n == 1 else run


def _rounded_by_kernel(forward: Rule, n: int) -> Rule:
    """As `_rounded_once` for a function of `n` tensors that does it itself on the host, and for float16 on devices."""

    def run(xp: Any, *args: Any) -> Any:
        for x in args[:n]:
            if getattr(x, "dtype", None) is _BFLOAT16 and not isinstance(x, np.ndarray):
                return _in_float32(forward, n, args[:n], xp, args)
        return forward(xp, *args)

    return run


def is_half(x: Any) -> bool:
    """Whether `x` is an array of float16 or bfloat16."""
    dtype = getattr(x, "dtype", None)
    return dtype is _BFLOAT16 or dtype is _FLOAT16


def widened(x: Any) -> Any:
    """An array of 16-bit floats as float32; anything else as it is."""
    return pack.astype(x, FLOAT32) if is_half(x) else x


def put_rounded(array: Any, value: Any) -> None:
    """Write `value`, float32, into `array`, rounded to its dtype; what is too large becomes infinite without a word."""
    array[...] = pack.astype(value, array.dtype)


def scale(array: Any, factor: float) -> None:
    """Multiply `array` in place by a number, which is not rounded to 16 bits first."""
    if is_half(array):
        put_rounded(array, widened(array) * np.float32(factor))
    else:
        array *= array.real.dtype.type(factor)


def _float16_beside_number(inputs: Any) -> bool:
    number = any(type(x) is float or type(x) is int for x in inputs)
    return number and any(getattr(x, "dtype", None) is _FLOAT16 for x in inputs)


def _in_float32(forward: Rule, n: int, inputs: Any, xp: Any, args: tuple[Any, ...]) -> Any:
    target, wide = None, []
    for x in inputs:
        dtype = getattr(x, "dtype", None)
        if dtype is _BFLOAT16 or dtype is _FLOAT16:
            wide.append(pack.astype(x, FLOAT32))
        else:
            wide.append(x)
        if dtype is not target and dtype is not None and dtype.kind in "fVc":
            target = dtype if target is None else FLOAT32  # of several, one has 32 bits or more: so has the result
    value = forward(xp, wide, *args[1:]) if n < 0 else forward(xp, *wide, *args[n:])
    return _narrowed(value, target)


def _narrowed(value: Any, dtype: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_narrowed(part, dtype) for part in value)
    return pack.astype(value, dtype) if value.dtype is FLOAT32 and dtype is not FLOAT32 else value


def _kernel_rounded_once(forward: Rule, n: int, residual: bool) -> Rule:
    def run(xp: Any, x: Any, *args: Any) -> Any:
        if not is_half(x):
            return forward(xp, x, *args)
        value = forward(xp, widened(x), *map(widened, args[: n - 1]), *args[n - 1 :])
        return (_narrowed(value[0], x.dtype), *value[1:]) if residual else _narrowed(value, x.dtype)

    return run
