"""Runs a formula once on symbols and writes down what it computes as CUDA statements.

The formula is the text that numpy's arrays go through: a rule of an optimizer, an op, its gradient. Each step becomes
one statement, in the order of the formula, so a kernel rounds where numpy rounds, given the same functions. Nothing
here needs CUDA.

A branch on a constant (`if decay`) is decided by the constant's value and noted, so what was written down serves all
constants that decide alike: `Trace.holds` asks. Branches on elements cannot be traced: NotTraced.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from resilin.core.kernels.common import register_namespace

TYPES = {"float32": "float", "float64": "double", "bool": "bool", "int32": "int", "int64": "long long"}
"""numpy's name of a dtype that is computed in -> the type in the kernel."""

_BOOL = np.dtype(bool)


class NotTraced(Exception):
    """The formula does something that has no counterpart for one element."""


class Trace:
    """What a formula did. `forced`: the outcomes of its first branches, in place of what the constants say."""

    def __init__(self, forced: Sequence[bool] = ()) -> None:
        self.statements: list[str] = []
        self.decisions: list[tuple[int, str, float, bool]] = []  # (constant, question, with what, outcome)
        self._forced = forced

    def add(self, dtype: np.dtype[Any], expression: str) -> Symbol:
        """A symbol for the value of `expression`."""
        name = f"v{len(self.statements)}"
        self.statements.append(f"const {type_of(dtype)} {name} = {expression};")
        return Symbol(self, dtype, name)

    def decide(self, place: int, question: str, other: float, value: float) -> bool:
        """The answer to `question` about constant number `place`; noted, and the same when asked again."""
        for found in self.decisions:
            if found[:3] == (place, question, other):
                return found[3]
        asked = len(self.decisions)
        outcome = self._forced[asked] if asked < len(self._forced) else bool(_QUESTIONS[question](value, other))
        self.decisions.append((place, question, other, outcome))
        return outcome

    def holds(self, constants: Sequence[float]) -> bool:
        """Whether these constants decide all branches as the traced ones did."""
        return all(
            bool(_QUESTIONS[question](constants[place], other)) is outcome
            for place, question, other, outcome in self.decisions
        )


_QUESTIONS: dict[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("gt", "lt", "ge", "le", "eq", "ne")
}


def type_of(dtype: np.dtype[Any]) -> str:
    """The kernel's type for a dtype. NotTraced where none is computed in."""
    found = TYPES.get(dtype.name)
    if found is None:
        raise NotTraced(f"nothing is computed in {dtype.name}")
    return found


def literal(value: Any, dtype: np.dtype[Any]) -> str:
    """A number as the kernel writes it, exactly."""
    if dtype.kind == "b":
        return "true" if value else "false"
    if dtype.kind in "iu":
        return f"{int(value)}LL" if dtype.itemsize == 8 else str(int(value))
    with np.errstate(over="ignore"):  # what is too large is infinite
        number = float(dtype.type(value))
    one = "float" if dtype.itemsize == 4 else "double"
    if number != number:
        return f"Numbers<{one}>::nan()"
    if number in (float("inf"), float("-inf")):
        return f"{'-' if number < 0 else ''}Numbers<{one}>::infinity()"
    return f"({number.hex()}{'f' if dtype.itemsize == 4 else ''})"


class Symbol:
    """One element of an array that a formula computes with. Writing in place gives the symbol another value."""

    __array_ufunc__ = None  # numpy's scalars leave their operators to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, dtype: np.dtype[Any], text: str) -> None:
        self.trace, self.dtype, self.text = trace, dtype, text
        self.is_written = False

    def _write(self, value: Symbol) -> Symbol:
        self.text, self.is_written = _converted(value, self.dtype), True
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        if index is not Ellipsis:
            raise NotTraced(f"a part of an array is written: {index!r}")
        self._write(_symbol(self, value))

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        """In another dtype."""
        dtype = np.dtype(dtype)
        if dtype == self.dtype:
            return Symbol(self.trace, dtype, self.text)
        return self.trace.add(dtype, _converted(self, dtype))

    def __bool__(self) -> bool:
        raise NotTraced("a branch on an element")

    def __getattr__(self, name: str) -> Any:
        raise NotTraced(f"an element has no {name}")

    def __neg__(self) -> Symbol:
        return self.trace.add(self.dtype, f"-{self.text}")

    def __abs__(self) -> Symbol:
        return _function("fabs", self)

    def __pow__(self, exponent: Any) -> Any:
        return _power(self, exponent)

    def __rpow__(self, base: Any) -> Any:
        return _power(base, self)

    def __invert__(self) -> Symbol:
        if self.dtype != _BOOL:
            raise NotTraced("bits of an integer")
        return self.trace.add(_BOOL, f"!{self.text}")


class Constant(Symbol):
    """A number that the kernel gets. Asked how it compares with another, it answers, and the trace notes it."""

    def __init__(self, trace: Trace, dtype: np.dtype[Any], place: int, value: float) -> None:
        super().__init__(trace, dtype, f"c{place}")
        self._place, self._value = place, value

    def __bool__(self) -> bool:
        return self.trace.decide(self._place, "ne", 0.0, self._value)


def _symbol(beside: Symbol, value: Any) -> Symbol:
    """`value` as a symbol; a Python number takes the dtype of what is beside it, within its kind, as numpy's do."""
    if isinstance(value, Symbol):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.generic):
        dtype = value.dtype
    elif isinstance(value, bool | int | float):
        dtype = np.result_type(beside.dtype, value)
        dtype = _BOOL if isinstance(value, bool) and beside.dtype == _BOOL else dtype
    else:
        raise NotTraced(f"a {type(value).__name__} beside an element")
    return Symbol(beside.trace, dtype, literal(value, dtype))


def _converted(value: Symbol, dtype: np.dtype[Any]) -> str:
    if value.dtype == dtype:
        return value.text
    if dtype == _BOOL:
        return f"{value.text} != 0"
    return f"static_cast<{type_of(dtype)}>({value.text})"


def _together(*values: Any) -> tuple[np.dtype[Any], list[str]]:
    """The common dtype of symbols and numbers, and their texts in it."""
    first = next((value for value in values if isinstance(value, Symbol)), None)
    if first is None:
        raise NotTraced("numbers alone")
    symbols = [_symbol(first, value) for value in values]
    dtype = np.result_type(*[symbol.dtype for symbol in symbols])
    return dtype, [_converted(symbol, dtype) for symbol in symbols]


def _trace_of(*values: Any) -> Trace:
    return next(value.trace for value in values if isinstance(value, Symbol))


def _arithmetic(sign: str) -> Callable[[Any, Any], Symbol]:
    def apply(a: Any, b: Any) -> Symbol:
        dtype, (left, right) = _together(a, b)
        if dtype == _BOOL or (sign == "/" and dtype.kind != "f"):
            raise NotTraced(f"{sign} of {dtype}")
        return _trace_of(a, b).add(dtype, f"{left} {sign} {right}")

    return apply


def _comparison(name: str, sign: str) -> Callable[[Any, Any], Any]:
    def apply(a: Any, b: Any) -> Any:
        if isinstance(a, Constant) and isinstance(b, int | float):
            return a.trace.decide(a._place, name, float(b), a._value)
        _, (left, right) = _together(a, b)
        return _trace_of(a, b).add(_BOOL, f"{left} {sign} {right}")

    return apply


def _logical(sign: str) -> Callable[[Any, Any], Symbol]:
    def apply(a: Any, b: Any) -> Symbol:
        dtype, (left, right) = _together(a, b)
        if dtype != _BOOL:
            raise NotTraced(f"{sign} of {dtype}")
        return _trace_of(a, b).add(_BOOL, f"{left} {sign} {right}")

    return apply


def _function(stem: str, *values: Any) -> Symbol:
    """A function of CUDA's (and C's) mathematics, whose name ends in f for float."""
    dtype, texts = _together(*values)
    if dtype.kind != "f":
        raise NotTraced(f"{stem} of {dtype}")
    return _trace_of(*values).add(dtype, f"{stem}{'f' if dtype.itemsize == 4 else ''}({', '.join(texts)})")


def _helper(name: str, *values: Any) -> Symbol:
    """A function of `traced.cuh`, for any type."""
    dtype, texts = _together(*values)
    return _trace_of(*values).add(dtype, f"{name}({', '.join(texts)})")


def _into(out: Symbol | None, value: Symbol) -> Symbol:
    return value if out is None else out._write(value)


_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
_COMPARISONS = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
_LOGICAL = {"and": "&&", "or": "||", "xor": "!="}


def _give_operators() -> None:
    for name, sign in {**_ARITHMETIC, **_LOGICAL}.items():
        apply = _arithmetic(sign) if name in _ARITHMETIC else _logical(sign)
        setattr(Symbol, f"__{name}__", lambda a, b, apply=apply: apply(a, b))
        setattr(Symbol, f"__r{name}__", lambda a, b, apply=apply: apply(b, a))
        setattr(Symbol, f"__i{name}__", lambda a, b, apply=apply: a._write(apply(a, b)))
    for name, sign in _COMPARISONS.items():
        setattr(Symbol, f"__{name}__", _comparison(name, sign))


_give_operators()


def _power(a: Any, b: Any) -> Any:
    """a ** b; the exponents that numpy takes by products and roots are taken so."""
    by_steps = _POWERS.get(b) if isinstance(b, int | float) and a.dtype.kind == "f" else None
    return _function("pow", a, b) if by_steps is None else by_steps(a)


_POWERS: dict[float, Callable[[Any], Any]] = {
    2: lambda x: x * x,
    1: lambda x: x.astype(x.dtype),
    0.5: lambda x: _function("sqrt", x),
    -1: lambda x: 1 / x,
}

FORMULAS: dict[str, Callable[..., Any]] = {}
"""Formulas that others may name as functions of their namespace: `f(xp, *symbols)`. The op registry adds its own."""


class Namespace:
    """The functions of an array namespace that have a counterpart for one element. NotTraced for any other."""

    pi, e, inf, nan, newaxis = np.pi, np.e, np.inf, np.nan, None

    def __init__(self) -> None:
        self._entered: list[str] = []  # formulas that are being traced, the inner ones last

    def __getattr__(self, name: str) -> Any:
        stem, helper, formula = _FUNCTIONS.get(name), _HELPERS.get(name), FORMULAS.get(name)
        if stem is not None:
            return lambda *values, out=None: _into(out, _function(stem, *values))
        if helper is not None:
            return lambda *values, out=None: _into(out, _helper(helper, *values))
        if formula is not None:
            return lambda *values: self._nested(name, formula, values)
        raise NotTraced(f"{name} has no counterpart for one element")

    def _nested(self, name: str, formula: Callable[..., Any], values: Sequence[Any]) -> Any:
        if name in self._entered:  # it is the library's function of that name
            raise NotTraced(f"{name} has no counterpart for one element")
        self._entered.append(name)
        try:
            return formula(self, *values)
        finally:
            self._entered.pop()

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        """Of two values one."""
        if not isinstance(condition, Symbol) or condition.dtype != _BOOL:
            raise NotTraced("where without a condition")
        if not isinstance(a, Symbol) and not isinstance(b, Symbol):
            raise NotTraced("where of two numbers")
        dtype, (left, right) = _together(a, b)
        return condition.trace.add(dtype, f"{condition.text} ? {left} : {right}")

    def clip(self, x: Any, low: Any, high: Any) -> Any:
        """Between two values."""
        return _helper("minimum", _helper("maximum", x, low), high)

    def astype(self, x: Any, dtype: Any) -> Any:
        """In another dtype."""
        return x.astype(dtype)

    def conj(self, x: Any) -> Any:
        """Itself: nothing complex is traced."""
        return x

    def full_like(self, x: Any, value: float) -> Any:
        """A number, in the dtype of an element."""
        return Symbol(x.trace, x.dtype, literal(value, x.dtype))

    def zeros_like(self, x: Any) -> Any:
        """0."""
        return self.full_like(x, 0)

    def ones_like(self, x: Any) -> Any:
        """1."""
        return self.full_like(x, 1)

    def negative(self, x: Any) -> Any:
        """-x."""
        return -x

    def square(self, x: Any) -> Any:
        """x * x."""
        return x * x

    def reciprocal(self, x: Any) -> Any:
        """1 / x."""
        return 1 / x

    def power(self, a: Any, b: Any) -> Any:
        """a ** b."""
        return _power(a, b)

    def isnan(self, x: Any) -> Any:
        """Whether it is no number."""
        return x != x

    def isfinite(self, x: Any) -> Any:
        """Whether it is a number and not infinite."""
        return (x - x) == 0

    def isinf(self, x: Any) -> Any:
        """Whether it is infinite."""
        return (x == np.inf) | (x == -np.inf)

    def logical_and(self, a: Any, b: Any) -> Any:
        """Both."""
        return a & b

    def logical_or(self, a: Any, b: Any) -> Any:
        """One or both."""
        return a | b

    def logical_not(self, a: Any) -> Any:
        """Not."""
        return ~a


_FUNCTIONS = {
    **{name: name for name in ("sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "hypot")},
    **{name: name for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "rint", "fmod")},
    **{name: name for name in ("fmax", "fmin", "copysign", "erf", "erfc")},
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "tan2", "sinh", "cosh", "tanh")},
    **{"abs": "fabs", "absolute": "fabs", "fabs": "fabs"},
}
"""numpy's name of a function -> the stem of CUDA's."""

_HELPERS = {"maximum": "maximum", "minimum": "minimum", "sign": "sign_of", "remainder": "remainder_of"}

NAMESPACE = Namespace()
register_namespace(Symbol, NAMESPACE, elements=False)
register_namespace(Constant, NAMESPACE, elements=False)
