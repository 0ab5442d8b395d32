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
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np

from resilin.core import determinism
from resilin.core.autograd.rule_inputs import wide
from resilin.core.backends.meta.operations import by_shape
from resilin.core.device import add_to_namespaces
from resilin.core.ops.calling import make_call
from resilin.core.ops.errstate import ANY, ON_DEVICES, ON_HOST, guarded, guarded_kernel, is_half, taking, widened
from resilin.core.ops.on_host import on_host

Rule = Callable[..., Any]

OPS: dict[str, Op] = {}
TENSOR_XP = SimpleNamespace()  # the ops as an array namespace over Tensors


class Impl:
    """One implementation: `forward(xp, *arrays, *params)` and a joint rule.

    The rule is `vjp(xp, needs, g, y, *inputs, *params)`, with the residual after `y` when forward gives one. `wide`: of
    16-bit floats it gets float32 (`guarding.ON_HOST`: of those of the host). `adds`: the rule takes `before`, what
    waits already as the gradient of the first input, and its gradient is the sum of both.
    """

    __slots__ = ("adds", "before_rule", "forward", "kept", "residual", "saves", "vjp", "wide")

    def __init__(
        self,
        forward: Rule,
        vjp: Rule | None,
        residual: bool = False,
        saves: Any = None,
        wide: bool | str = False,
        adds: bool = False,
    ) -> None:
        self.forward, self.vjp, self.residual, self.wide = forward, vjp, residual, wide
        self.saves = saves  # what its rule reads besides what the declared ones do: (of each input, of the output)
        self.adds = adds
        self.kept: dict[tuple[bool, ...], tuple[tuple[bool, ...], bool]] = {}  # see Op.keeps
        self.before_rule: Callable[[], None] | None = None  # called where `op.generic.vjp` runs in place of `vjp`


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
        self.takes: str = facts.pop("takes", "fc" if self.dtypes == "full" else ANY)
        self.samples: Callable[[Any], list[tuple[Any, ...]]] | None = facts.pop("samples", None)
        self.reference: Rule | None = facts.pop("reference", None)
        self.quiet: bool = facts.pop("quiet", not self.view)
        self.floats: bool = facts.pop("floats", False)
        self.elementwise: bool = facts.pop("elementwise", False)
        self.wide_numbers: bool = facts.pop("wide_numbers", False)
        self.exponent: bool = facts.pop("exponent", False)
        self.order: int = facts.pop("order", 2)
        self.moves: bool = facts.pop("moves", self.view)
        self.narrow: bool | str = facts.pop("narrow", self.moves)
        self.single: bool | str = facts.pop("single", self.narrow)
        self.host: str = facts.pop("host", "")
        self.at_once: bool = facts.pop("at_once", False)
        self.loop: str = facts.pop("loop", "")
        self.formula = forward  # as it was declared
        known = forward if self.deterministic else _varying(forward, name)
        forward = by_shape(forward, name, bool(self.host and self.elementwise))
        kernel, refuses = facts.pop("kernel", None), facts.pop("refuses", False)
        if facts:
            raise TypeError(f"op {name!r}: unknown facts {sorted(facts)}")
        if not refuses:
            forward = taking(forward, name, self.n, self.takes)
        if self.host:
            forward = on_host(forward, name)
        if not self.deterministic:
            forward = _varying(forward, name)
        facts_of_16_bits = {"single": self.single, "wide_numbers": self.wide_numbers}
        loops = {"loop": self.loop, "kinds": self.takes, "known": known, "kernel": _in_native(kernel)}
        guard = guarded(forward, self.n, quiet=self.quiet, moves=self.moves, **facts_of_16_bits, **loops)
        self.generic = Impl(guard, None, wide=_not(self.narrow))
        self.impls: dict[str, Impl] = {}
        self.saves_any = False
        self._rules: dict[int, Rule] = {}
        self.call: Callable[..., Any] = make_call(self)

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
        self.generic.saves = _keeps_of(rule, self.n, skip=3)
        self._note_saves(self.generic.saves)
        return rule

    def vjp_sequence(self, rule: Rule) -> Rule:
        """Declare the rule of an op on a sequence: `rule(xp, needs, g, inputs, *params)` gives a list of gradients.

        With `_inputs` as the name of its fourth argument, nothing is saved and it gets shapes and dtypes only.
        """
        self.saves_any = not _arguments(rule)[0][3].startswith("_")
        self.generic.vjp = lambda xp, needs, g, _y, *rest: rule(xp, needs, g, rest[: len(needs)], *rest[len(needs) :])
        return rule

    def _note_saves(self, keeps: tuple[tuple[bool, ...], bool]) -> None:
        for impl in (self.generic, *self.impls.values()):
            impl.kept.clear()
        self.saves_any = self.saves_any or any(keeps[0]) or keeps[1]

    def override(
        self,
        device_type: str,
        forward: Rule,
        vjp: Rule,
        *,
        residual: bool = False,
        quiet: bool = True,
        adds: bool = False,
        halves: bool = False,
        kernel: Rule | None = None,
    ) -> None:
        """Run `forward` and the joint `vjp` on devices of this type; see `Impl`."""
        known, forward = forward, taking(forward, self.name, self.n, self.takes)
        saves = _keeps_of(vjp, self.n, skip=4 if residual else 3)
        wide = device_type == "cpu" and not halves and self.generic.wide  # a device's kernels compute so themselves
        native = {"kinds": self.takes, "known": known, "kernel": _in_native(kernel)}
        guard = guarded_kernel(forward, self.n, quiet=quiet, wide=bool(wide), residual=residual, **native)
        self.impls[device_type] = Impl(guard, vjp, residual, saves, wide, adds)
        self._note_saves(saves)

    def keeps(self, needs: tuple[bool, ...], impl: Impl) -> tuple[tuple[bool, ...], bool]:
        """Which inputs, and whether the output, `impl` must save when `needs` says which inputs want gradients.

        The declared rules count for every implementation: they give the second derivatives.
        """
        found = impl.kept.get(needs)
        if found is None and self.n < 0:
            found = impl.kept[needs] = ((self.saves_any,) * len(needs), False)
        if found is None:
            parts = [_keeps_of(rule, self.n, skip=2) for i, rule in self._rules.items() if needs[i]]
            parts += [saves for saves in {self.generic.saves, impl.saves} if saves is not None]
            inputs = tuple(any(part[0][i] for part in parts) for i in range(len(needs)))
            found = impl.kept[needs] = (inputs, any(part[1] for part in parts))
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
    tensors), `elementwise` (scalars and promotion are handled), `exponent` (a number as second operand must fit the
    dtype of integers), `host` (why tensors of other devices are computed on the CPU, see `on_host.py`), `at_once`
    (its rule shares most work between the inputs' gradients: never one without the others), `loop` (the name of numpy's
    function, or of ours in `native/elementwise`, that is all of its forward: native code runs its loops), `kernel` (a
    native function of the same arguments but `xp`, asked before the forward: None is no answer), `floats`
    (integers are converted to the default dtype first, and a number beside them is used as it is), `quiet` (numpy's
    floating point warnings are off; the default except for views), `view`, `outputs` (0: as many as it gives),
    `moves` (elements are moved or converted, not computed with, so 16-bit floats need no float32; the default for
    views), `single` (forward is one step, which the array library rounds once for float16), `narrow` (its rules are,
    too, and get 16-bit floats as they are; `errstate.ON_DEVICES` in both: with a device's library, not with numpy;
    `errstate.BY_KERNEL` in `single`: with the host's function, too),
    `wide_numbers` (a Python number beside 16-bit floats is used in float32, not rounded to them),
    `differentiable`, `complex`, `deterministic` (False: on every device; what
    varies on one is listed by its backend), `dtypes` ("full": not of 16 bits), `takes` (the kinds of
    dtypes it is for, others are refused: b bool, i and u integers, f floats, c complex; the default is all, "fc"
    with "full"), `refuses` (the forward itself raises for others, so nothing is asked before it), `order` of
    derivatives that tests check, `samples(r)` (argument tuples; `r(*shape)` draws an array), `reference` (the same
    on numpy arrays).
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


def override(
    name: str,
    device: str,
    forward: Rule,
    vjp: Rule,
    *,
    residual: bool = False,
    quiet: bool = True,
    adds: bool = False,
    halves: bool = False,
    kernel: Rule | None = None,
) -> None:
    """Replace op `name` on one device type by a fused kernel; with `residual`, `forward` returns (y, residual).

    adds: see `Impl`. halves: both take 16-bit floats as they are, and round once what they compute in float32.
    kernel: a native function of the same arguments but `xp`, asked before `forward`, where None is no answer.

    `quiet=False` saves the cost of switching numpy's floating point warnings off, for a forward that gives none.
    """
    OPS[name].override(device, forward, vjp, residual=residual, quiet=quiet, adds=adds, halves=halves, kernel=kernel)


def accelerate(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
    """Run op `name`, of one tensor, on the CPU by native `forward(x, *params)` and `backward(g, x, *params)`.

    Both take 16-bit floats as they are. Where one answers None, its declared form runs, whose rule must not read the
    output.
    """
    declared = OPS[name].generic

    def run(xp: Any, x: Any, *params: Any) -> Any:
        y = forward(x, *params) if isinstance(x, np.ndarray) else None  # a rule may have made a scalar of it
        return declared.forward(xp, x, *params) if y is None else y

    def rule(xp: Any, needs: Any, g: Any, _y: Any, x: Any, *params: Any) -> Any:
        dx = backward(g, x, *params) if isinstance(g, np.ndarray) and isinstance(x, np.ndarray) else None
        if dx is not None:
            return (dx,)
        if declared.wide:
            g, x = widened(g), widened(x)
        return declared.vjp(xp, needs, g, None, x, *params)  # type: ignore[misc]

    override(name, "cpu", run, rule, quiet=False, halves=True, kernel=forward)


def step_of_halves(name: str, *steps: Any) -> None:
    """On the CPU, where the gradient of op `name` is of arrays of 16 bits, compute it by one step, which rounds once.

    The gradient of input i is `steps[i](xp, g, y, *inputs)`; None, and all else, is left to the declared rule.
    """
    declared = OPS[name]
    rule = declared.generic.vjp

    def run(xp: Any, needs: Any, g: Any, y: Any, *args: Any) -> Any:
        if not is_half(g):
            return rule(xp, needs, g, y, *args)  # type: ignore[misc]
        alike = all([is_half(x) and x.shape == g.shape for x in args])  # else a sum follows, which is of float32
        rest = tuple([need and not (alike and step) for need, step in zip(needs, steps, strict=True)])
        wider = map(wide, args)
        slow = rule(xp, rest, widened(g), widened(y), *wider) if any(rest) else needs  # type: ignore[misc]
        return tuple(
            [
                None if not need else found if is_slow else step(xp, g, y, *args)
                for need, is_slow, found, step in zip(needs, rest, slow, steps, strict=True)
            ]
        )

    impl = Impl(declared.generic.forward, run, saves=declared.generic.saves)
    declared.impls["cpu"] = impl
    declared._note_saves(((False,) * declared.n, False))


def _in_native(kernel: Any) -> Any:
    """A kernel, if it is one of native code; None else."""
    return None if isinstance(kernel, FunctionType) else kernel


def _not(narrow: bool | str) -> bool | str:
    return ON_HOST if narrow == ON_DEVICES else not narrow


def is_complex(x: Any) -> bool:
    """Whether an array, or a tensor where a rule is recorded, or a number beside one, is complex."""
    if isinstance(x, int | float | complex):
        return isinstance(x, complex)
    kind: str = getattr(x.dtype, "np", x.dtype).kind
    return kind == "c"


def _varying(forward: Rule, name: str) -> Rule:
    def run(xp: Any, *args: Any) -> Any:
        determinism.check(name, "all", "its declaration says so")
        return forward(xp, *args)

    return run


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
