"""The op registry: one declaration is forward, gradient rule, facts and sample inputs.

    @op(samples=lambda r: [(r(3, 4),), (r(3, 4), 0)])
    def logsumexp(xp, x, axis=-1):
        '''log(sum(exp(x))) along `axis`.'''
        ...

    @logsumexp.vjp
    def _(xp, g, y, x, axis=-1):      # g: gradient of the output, y: the output, then the inputs and parameters
        return xp.expand_dims(g, axis) * xp.exp(x - xp.expand_dims(y, axis))

Arguments without a default are tensors, the others parameters. `xp` is the array namespace of the device, so the same
text serves every backend; with `create_graph` it is the namespace of the ops themselves (`TENSOR_XP`) and the rule is
recorded, which is why rules are written with functional operations only. A rule's arguments whose names begin with an
underscore are not saved. The engine undoes broadcasting and dtype promotion, no rule does.

A fused kernel replaces an op on one device type with `override`; the declared form stays the reference and the rule
of second derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.autograd.grad_mode import mode
from resilin.core.autograd.tape import Pick, is_differentiable, mark_view, record, same_memory
from resilin.core.device import CPU, add_to_namespaces, device, different_devices
from resilin.core.tensor import Tensor, wrap
from resilin.errors import ResilinError

Rule = Callable[..., Any]

OPS: dict[str, Op] = {}
TENSOR_XP = SimpleNamespace()  # the ops as an array namespace over Tensors


class Impl:
    """One implementation: `forward(xp, *arrays, *params)` and a joint rule.

    The rule is `vjp(xp, needs, g, y, *inputs, *params)`, with the residual after `y` when forward gives one.
    """

    __slots__ = ("forward", "residual", "vjp")

    def __init__(self, forward: Rule, vjp: Rule | None, residual: bool = False) -> None:
        self.forward, self.vjp, self.residual = forward, vjp, residual


class Op:
    """A declared operation. `call(*tensors, *params)` runs and records it."""

    def __init__(self, name: str, forward: Rule, facts: dict[str, Any]) -> None:
        names, defaults = _arguments(forward)
        self.name = name
        self.__doc__ = forward.__doc__
        self.n: int = facts.pop("tensors", sum(d is _REQUIRED for d in defaults[1:]))
        self.arguments, self.defaults = names[1:], defaults[1:]
        self.view: bool = facts.pop("view", False)
        self.outputs: int = facts.pop("outputs", 1)
        self.differentiable: bool = facts.pop("differentiable", True)
        self.complex: bool = facts.pop("complex", False)
        self.deterministic: bool = facts.pop("deterministic", True)
        self.dtypes: str = facts.pop("dtypes", "floating")
        self.samples: Callable[[Any], list[tuple[Any, ...]]] | None = facts.pop("samples", None)
        self.reference: Rule | None = facts.pop("reference", None)
        self.quiet: bool = facts.pop("quiet", not self.view)
        self.floats: bool = facts.pop("floats", False)
        self.elementwise: bool = facts.pop("elementwise", False)
        self.order: int = facts.pop("order", 2)
        self.moves: bool = facts.pop("moves", self.view)
        if facts:
            raise TypeError(f"op {name!r}: unknown facts {sorted(facts)}")
        quiet = _quietly(forward) if self.quiet else forward
        self.generic = Impl(quiet if self.moves else _rounded_once(quiet, self.n), None)
        self.impls: dict[str, Impl] = {}
        self.saves_any = False
        self._rules: dict[int, Rule] = {}
        self._kept: dict[tuple[bool, ...], tuple[tuple[bool, ...], bool]] = {}
        self._joint_keeps: list[tuple[tuple[bool, ...], bool]] = []
        self.call: Callable[..., Any] = _make_call(self)

    def __repr__(self) -> str:
        return f"<op {self.name}({', '.join(self.arguments)})>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def vjp(self, rule: Rule | int) -> Any:
        """Declare the gradient rule of the only tensor input, or with `@op.vjp(i)` that of input `i`."""
        if isinstance(rule, int):
            return functools.partial(self._add_rule, rule)
        return self._add_rule(0, rule)

    def _add_rule(self, index: int, rule: Rule) -> Rule:
        self._rules[index] = rule
        rules = tuple(self._rules.get(i) for i in range(self.n))
        self.generic.vjp = _join(rules)
        self._note_saves(_keeps_of(rule, self.n, skip=2))
        return rule

    def vjp_all(self, rule: Rule) -> Rule:
        """Declare one rule for all inputs: `rule(xp, needs, g, y, *inputs, *params)` gives a tuple of gradients."""
        self.generic.vjp = rule
        keeps = _keeps_of(rule, self.n, skip=3)
        self._joint_keeps.append(keeps)
        self._note_saves(keeps)
        return rule

    def vjp_sequence(self, rule: Rule) -> Rule:
        """Declare the rule of an op on a sequence: `rule(xp, needs, g, inputs, *params)` gives a list of gradients.

        With `_inputs` as the name of its fourth argument, nothing is saved and it gets shapes and dtypes only.
        """
        self.saves_any = not _arguments(rule)[0][3].startswith("_")
        self.generic.vjp = lambda xp, needs, g, _y, *rest: rule(xp, needs, g, rest[: len(needs)], *rest[len(needs) :])
        return rule

    def _note_saves(self, keeps: tuple[tuple[bool, ...], bool]) -> None:
        self._kept.clear()
        self.saves_any = self.saves_any or any(keeps[0]) or keeps[1]

    def override(
        self, device_type: str, forward: Rule, vjp: Rule, *, residual: bool = False, quiet: bool = True
    ) -> None:
        """Run `forward` and the joint `vjp` on devices of this type; see `Impl`."""
        self.impls[device_type] = Impl(_quietly(forward) if quiet else forward, vjp, residual)
        keeps = _keeps_of(vjp, self.n, skip=4 if residual else 3)
        self._joint_keeps.append(keeps)
        self._note_saves(keeps)

    def keeps(self, needs: tuple[bool, ...]) -> tuple[tuple[bool, ...], bool]:
        """Which inputs, and whether the output, must be saved when `needs` says which inputs want gradients."""
        found = self._kept.get(needs)
        if found is None and self.n < 0:
            found = self._kept[needs] = ((self.saves_any,) * len(needs), False)
        if found is None:
            parts = [_keeps_of(rule, self.n, skip=2) for i, rule in self._rules.items() if needs[i]]
            parts += self._joint_keeps
            inputs = tuple(any(part[0][i] for part in parts) for i in range(len(needs)))
            found = self._kept[needs] = (inputs, any(part[1] for part in parts))
        return found

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, defaults filled in. TypeError names the op and the argument."""
        if len(args) > len(self.arguments):
            raise TypeError(f"{self.name}() takes {len(self.arguments)} arguments, got {len(args)}")
        values = list(args)
        for name, default in zip(self.arguments[len(args) :], self.defaults[len(args) :], strict=True):
            value = kwargs.pop(name, default)
            if value is _REQUIRED:
                raise TypeError(f"{self.name}() needs argument {name!r}")
            values.append(value)
        if kwargs:
            raise TypeError(f"{self.name}() got an unexpected argument {next(iter(kwargs))!r}")
        return tuple(values)


def op(forward: Rule | None = None, **facts: Any) -> Any:
    """Declare an operation; see the module's text. Facts:

    `tensors` number of tensor inputs (default: arguments without a default; -1: the first argument is a sequence of
    tensors), `elementwise` (scalars and promotion are
    handled), `floats` (integers are converted to the default dtype first), `quiet` (numpy's floating point warnings are
    off; the default except for views), `view`, `outputs` (0: as many as it gives), `moves` (elements are moved or
    converted, not computed with, so bfloat16 needs no float32; the default for views), `differentiable`, `complex`,
    `deterministic`, `dtypes` ("full": not of 16 bits), `order` of derivatives that tests check,
    `samples(r)` (argument tuples; `r(*shape)` draws an array), `reference` (the same on numpy arrays).
    """

    def declare(fn: Rule) -> Op:
        name = fn.__name__.rstrip("_")
        if name in OPS:
            raise RuntimeError(f"op {name!r} is declared twice")
        made = OPS[name] = Op(name, fn, facts)
        setattr(TENSOR_XP, name, made.call)
        add_to_namespaces(name, made.generic.forward)
        return made

    return declare if forward is None else declare(forward)


def override(name: str, device: str, forward: Rule, vjp: Rule, *, residual: bool = False, quiet: bool = True) -> None:
    """Replace op `name` on one device type by a fused kernel; with `residual`, `forward` returns (y, residual).

    `quiet=False` saves the cost of switching numpy's floating point warnings off, for a forward that gives none.
    """
    OPS[name].override(device, forward, vjp, residual=residual, quiet=quiet)


_BFLOAT16 = dtypes.bfloat16.np  # one object, as numpy keeps one dtype per registered type: compared by `is`, every call
_REQUIRED: Any = object()  # stands for the default of an argument that has none


def _arguments(fn: Rule) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and defaults of a function's positional arguments (and *rest), without inspect's cost at import."""
    code: Any = fn.__code__
    defaults = fn.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    padded = (_REQUIRED,) * (len(names) - len(defaults)) + defaults
    if code.co_flags & 4:  # *rest
        return code.co_varnames[: code.co_argcount + 1], (*padded, ())
    return names, padded


def _keeps_of(rule: Rule, n: int, skip: int) -> tuple[tuple[bool, ...], bool]:
    names = _arguments(rule)[0]
    keep_y = not names[skip if skip < 4 else 3].startswith("_")
    first = skip + 1
    return tuple(not name.startswith("_") for name in names[first : first + n]), keep_y


def _join(rules: tuple[Rule | None, ...]) -> Rule:
    if len(rules) == 1:
        only: Any = rules[0]
        return lambda xp, needs, g, *rest: (only(xp, g, *rest),)
    if len(rules) == 2:
        first: Any = rules[0]
        second: Any = rules[1]
        return lambda xp, needs, g, *rest: (
            first(xp, g, *rest) if needs[0] else None,
            second(xp, g, *rest) if needs[1] else None,
        )
    return lambda xp, needs, g, *rest: tuple(
        rule(xp, g, *rest) if need and rule else None for rule, need in zip(rules, needs, strict=True)
    )


def _quietly(forward: Rule) -> Rule:
    errstate = np.errstate

    def quiet(*args: Any) -> Any:
        with errstate(all="ignore"):
            return forward(*args)

    return quiet


def _rounded_once(forward: Rule, n: int) -> Rule:
    """`forward`, computed in float32 where an input is bfloat16, and rounded to the inputs' dtype once, as in PyTorch.

    numpy does not know that bfloat16 is a float: beside a Python number it would widen, and some functions refuse it.
    """

    def forward_or_wider(xp: Any, *args: Any) -> Any:
        inputs = args[0] if n < 0 else args[:n]
        for x in inputs:
            if getattr(x, "dtype", None) is _BFLOAT16:
                break
        else:
            return forward(xp, *args)
        given = [x for x in inputs if hasattr(x, "dtype") and x.dtype.kind in "fVc"]
        wide = [x.astype(np.float32) if getattr(x, "dtype", None) is _BFLOAT16 else x for x in inputs]
        value = forward(xp, wide, *args[1:]) if n < 0 else forward(xp, *wide, *args[n:])
        if any(x.dtype is not _BFLOAT16 for x in given):
            return value
        return tuple(map(_narrowed, value)) if isinstance(value, tuple) else _narrowed(value)

    return forward_or_wider


def _narrowed(value: Any) -> Any:
    return value.astype(_BFLOAT16) if value.dtype == np.float32 else value


def _make_call(op: Op) -> Callable[..., Any]:
    if op.elementwise and op.n == 1:
        call = _unary(op)
    elif op.elementwise and op.n == 2:
        call = _binary(op)
    elif op.n < 0:
        call = _sequence(op)
    else:
        call = _general(op)
    call.__name__ = call.__qualname__ = op.name
    call.__doc__ = op.__doc__
    return call


def _unary(op: Op) -> Callable[..., Any]:
    generic, impls, floats, differentiable = op.generic, op.impls, op.floats, op.differentiable
    many = len(op.arguments) > 1

    def call(x: Any, *params: Any, **kwargs: Any) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"{op.name}(): expected a Tensor, got {type(x).__name__}")
        if many:
            params = op.bind((x, *params), kwargs)[1:]
        dev, array = x._dev, x._array
        if floats and array.dtype.kind in "iub":
            array = array.astype(dtypes.default_np())
        impl = impls.get(dev.type, generic)
        try:
            value = impl.forward(dev.xp, array, *params)
        except _ARRAY_ERRORS as error:
            raise op_error(op, (array,), params, error) from None
        residual = None
        if impl.residual:
            value, residual = value
        out = wrap(np.asarray(value) if isinstance(value, np.generic) else value, dev)
        if (x._rg or x._view is not None) and differentiable and mode.grad and x.requires_grad:
            record(op, impl, out, (x,), params, residual)
        return out

    return call


def _binary(op: Op) -> Callable[..., Any]:
    generic, floats, differentiable = op.generic, op.floats, op.differentiable
    forward = generic.forward

    def call(a: Any, b: Any) -> Tensor:
        if isinstance(a, Tensor):
            dev, x = a._dev, a._array
            if isinstance(b, Tensor):
                y = b._array
                if b._dev is not dev:
                    raise different_devices(op.name, dev, b._dev)
                if x.dtype is not y.dtype:
                    x, y = common(x, y)
            else:
                x, y, b = weak(x, b, op.name)
        elif isinstance(b, Tensor):
            dev, y = b._dev, b._array
            y, x, a = weak(y, a, op.name)
        else:
            raise TypeError(f"{op.name}(): expected a Tensor, got {type(a).__name__} and {type(b).__name__}")
        if floats and (x if isinstance(a, Tensor) else y).dtype.kind in "iub":
            x, y = to_float(x), to_float(y)
        try:
            value = forward(dev.xp, x, y)
        except _ARRAY_ERRORS as error:
            raise op_error(op, (x, y), (), error) from None
        out = wrap(np.asarray(value) if isinstance(value, np.generic) else value, dev)
        if differentiable and mode.grad and wants(a, b):
            record(op, generic, out, (a, b), (), None)
        return out

    return call


def wants(a: Any, b: Any) -> bool:
    """Whether either argument is a tensor that requires gradients."""
    return (isinstance(a, Tensor) and (a._rg or (a._view is not None and a.requires_grad))) or (
        isinstance(b, Tensor) and (b._rg or (b._view is not None and b.requires_grad))
    )


def common(x: Any, y: Any) -> tuple[Any, Any]:
    """Both arrays in their common dtype."""
    target = dtypes.promote_np(x.dtype, y.dtype)
    return (x if x.dtype == target else x.astype(target)), (y if y.dtype == target else y.astype(target))


def weak(x: Any, number: Any, where: str) -> tuple[Any, Any, Any]:
    """An array beside a Python number: the number never widens the array within its kind."""
    if isinstance(number, np.generic):
        number = number.item()
    if isinstance(number, np.ndarray):
        return (*common(x, number), number)
    if not isinstance(number, int | float | complex):
        raise TypeError(f"{where}(): expected a Tensor or a number, got {type(number).__name__}")
    kind = x.dtype.kind
    if kind in "iub" and not isinstance(number, int):
        x = x.astype(dtypes.default_np())
    elif kind == "b" and not isinstance(number, bool):
        x = x.astype(np.int64)
    elif kind in "iu" and not isinstance(number, bool):
        info = np.iinfo(x.dtype)
        if not info.min <= number.real <= info.max:  # wraps around, as conversion to the dtype does
            return x, np.array(number, np.int64).astype(x.dtype), number
    elif kind == "V" and not isinstance(number, complex):  # numpy does not know that bfloat16 is a float
        return x, np.asarray(number, x.dtype), number
    return x, number, number


def to_float(x: Any) -> Any:
    """An integer array or number in the default dtype; others unchanged."""
    if isinstance(x, int | float | complex):
        return x
    return x.astype(dtypes.default_np()) if x.dtype.kind in "iub" else x


_ARRAY_ERRORS = (ValueError, TypeError, IndexError)


def op_error(op: Op, arrays: Any, params: Any, error: Exception) -> Exception:
    """PyTorch's type of error for what the array library says of an op's arguments, naming op, shapes and dtypes.

    IndexError stays one, a wrong type of a parameter stays a TypeError, everything else is a RuntimeError. Errors that
    are resilin's own already pass as they are.
    """
    if isinstance(error, ResilinError):
        return error
    given = [f"{_dtype_name(x)} {list(x.shape)}" if hasattr(x, "shape") else repr(x) for x in arrays if x is not None]
    if op.n == 2 and len(given) == 2 and "broadcast" in str(error):
        return RuntimeError(
            f"{op.name}: the shapes {tuple(arrays[0].shape)} and {tuple(arrays[1].shape)} cannot be broadcast: "
            "counted from the right, lengths must be equal or 1"
        )
    if op.n < 0:
        return RuntimeError(f"{op.name}(): shapes {', '.join(given)} do not fit together: {error}")
    others = [
        f"{name}={value!r}"
        for name, value in zip(op.arguments[max(op.n, 1) :], params, strict=False)
        if value is None or isinstance(value, bool | int | float | str | tuple)
    ]
    text = f"{op.name}({', '.join(given + others)}): {error}"
    if isinstance(error, IndexError) and not isinstance(error, ValueError):
        return IndexError(text)
    return (
        TypeError(text)
        if isinstance(error, TypeError) and "numpy" not in text and "ufunc" not in text
        else (RuntimeError(text))
    )


def _dtype_name(array: Any) -> str:
    try:
        return str(dtypes.from_numpy(array.dtype)).rpartition(".")[2]
    except TypeError:
        return str(array.dtype)


def _general(op: Op) -> Callable[..., Any]:
    n, total, defaults = op.n, len(op.arguments), op.defaults
    generic, impls = op.generic, op.impls

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = op.bind(args, kwargs)
        elif len(args) < total:
            args = op.bind(args, {}) if len(args) < n else args + defaults[len(args) :]
        inputs, params = args[:n], args[n:]
        dev: device | None = None
        arrays = []
        recorded = False
        for value in inputs:
            if isinstance(value, Tensor):
                if dev is None:
                    dev = value._dev
                elif value._dev is not dev:
                    raise different_devices(op.name, dev, value._dev)
                arrays.append(value._array)
                if value._rg or (value._view is not None and value.requires_grad):
                    recorded = True
            else:
                arrays.append(value)
        dev = dev or CPU
        impl = impls.get(dev.type, generic)
        try:
            value = impl.forward(dev.xp, *arrays, *params)
        except _ARRAY_ERRORS as error:
            raise op_error(op, arrays, params, error) from None
        residual = None
        if impl.residual:
            value, residual = value
        recorded = recorded and op.differentiable and mode.grad
        if op.outputs != 1:
            return _several(op, impl, value, dev, inputs, params, recorded, residual)
        out = wrap(np.asarray(value) if isinstance(value, np.generic) else value, dev)
        if op.view and same_memory(value, arrays[0]):
            mark_view(out, inputs[0], op, params)
        if recorded and is_differentiable(value):
            record(op, impl, out, inputs, params, residual)
        return out

    return call


def _sequence(op: Op) -> Callable[..., Any]:
    def call(tensors: Any, *params: Any) -> Tensor:
        inputs = tuple(tensors)
        if not inputs:
            raise RuntimeError(f"{op.name}(): expected a non-empty list of Tensors")
        dev = inputs[0]._dev
        arrays = [value._array for value in inputs]
        for value in inputs:
            if value._dev is not dev:
                raise different_devices(op.name, dev, value._dev)
        target = functools.reduce(dtypes.promote_np, (array.dtype for array in arrays))
        arrays = [array if array.dtype == target else array.astype(target) for array in arrays]
        try:
            value = op.generic.forward(dev.xp, arrays, *params)
        except _ARRAY_ERRORS as error:
            raise op_error(op, arrays, params, error) from None
        out = wrap(value, dev)
        if mode.grad and any(v._rg or (v._view is not None and v.requires_grad) for v in inputs):
            record(op, op.generic, out, inputs, params, None)
        return out

    return call


def _several(
    op: Op, impl: Impl, values: Any, dev: device, inputs: Any, params: Any, recorded: bool, residual: Any
) -> tuple[Tensor, ...]:
    outs = tuple(wrap(value, dev) for value in values)
    if recorded:
        carrier = wrap(values[0], dev)
        record(op, impl, carrier, inputs, params, residual)
        carrier._node.outputs = len(outs)
        for index, out in enumerate(outs):
            if is_differentiable(out._array):
                out._node, out._rg = Pick(carrier._node, index), True
    return outs
