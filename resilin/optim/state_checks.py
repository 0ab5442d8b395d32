"""Whether a saved state fits an optimizer, its groups and its parameters: what can be said before it is loaded.

A state does not say which class it is of, but its groups have the options of that class, and its entries their names.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from numbers import Real
from typing import Any, ClassVar, Protocol

import numpy as np

from resilin.core.argument_checks import flag
from resilin.core.tensor import Tensor
from resilin.errors import UsageError, UsageTypeError

Group = Mapping[str, Any]
_LATER = {"maximize", "foreach", "capturable", "differentiable", "fused", "decoupled_weight_decay"}
"""Options that states of older versions of PyTorch lack."""
_HINTS = ("foreach", "fused", "capturable", "differentiable")
"""Flags that may be None."""
_FLAGS = ("maximize", "nesterov", "amsgrad", "centered", "decoupled_weight_decay", *_HINTS)
_UNKNOWN = (np.dtype(np.longdouble).name, np.dtype(np.clongdouble).name)
_SHOWN = 8


class StatefulOptimizer(Protocol):
    """What is used of an optimizer whose state is to be loaded: its groups, and what its class says of its states."""

    defaults: dict[str, Any]
    param_groups: list[dict[str, Any]]
    _counters: ClassVar[tuple[str, ...]]
    _starts_whole: ClassVar[bool]
    _carries_names: ClassVar[bool]

    @property
    def _kind(self) -> StatefulOptimizer: ...

    def _check_group(self, group: dict[str, Any]) -> None: ...

    def _moment_shapes(self, group: dict[str, Any], param: Tensor) -> Mapping[str, tuple[int, ...] | None]: ...

    def _check_entry(self, where: str, entry: Mapping[str, Any], param: Tensor) -> None: ...


def check(optimizer: StatefulOptimizer, state: Mapping[str, Any], base: type[StatefulOptimizer]) -> None:
    """UsageError unless `optimizer` can take over `state`, whose tensors may be anything that has a shape.

    base: the class of all optimizers.
    """
    where, kind = f"{type(optimizer).__name__}.load_state_dict", optimizer._kind
    if missing := [key for key in ("state", "param_groups") if key not in state]:
        raise UsageError(f"{where}: {missing} missing; got a dict with {sorted(map(str, state))[:8]}")
    check_tree(where, state)
    groups, saved = optimizer.param_groups, state["param_groups"]
    sizes, got = [len(group["params"]) for group in groups], [len(group["params"]) for group in saved]
    if sizes != got:
        raise UsageError(f"{where}: groups of {got} parameters in the state, {sizes} here")
    check_keys(where, state, optimizer._carries_names)
    number = 0
    for place, (group, other) in enumerate(zip(groups, saved, strict=True)):
        _check_options(where, kind, group, other, base)
        _check_values(f"{where}: param_groups[{place}]", kind, group, other)
        options = {**group, **other}
        for key, param in zip(other["params"], group["params"], strict=True):
            entry = state["state"].get(key)
            if entry and (type(entry) is dict or isinstance(entry, Mapping)):
                _check_entry(f"{where}: of parameter {number}", kind, options, entry, param)
            number += 1


def check_tree(where: str, state: Mapping[str, Any]) -> None:
    """UsageTypeError unless `state` is a tree as `state_dict()` gives, whatever its options and entries are."""
    _expect(where, 'state["state"]', state["state"], Mapping, "a dict of entries by parameter")
    saved = state["param_groups"]
    _expect(where, 'state["param_groups"]', saved, list | tuple, "a list of dicts")
    for place, group in enumerate(saved):
        name = f"param_groups[{place}]"
        _expect(where, name, group, Mapping, "a dict")
        if "params" not in group:
            raise UsageError(f'{where}: {name} has no "params", which are the numbers of its parameters')
        _expect(where, f'{name}["params"]', group["params"], list | tuple, "a list of parameters' numbers")
        for number, key in enumerate(group["params"]):
            if type(key) is not int:
                _expect(where, f'{name}["params"][{number}]', key, Hashable, "a parameter's number")
            entry = state["state"].get(key, {})
            if type(entry) is not dict:
                _expect(where, f"state[{key!r:.80}]", entry, Mapping, "a dict of a parameter's state")


def check_keys(where: str, state: Mapping[str, Any], names: bool = True) -> None:
    """UsageError for entries of a state whose parameters are in none of its groups: they would be left out in silence.

    names: those of other things than parameters are carried along; only numbers are refused then, and texts of them.
    """
    known = {key for group in state["param_groups"] for key in group["params"]}
    strange = [key for key in state["state"] if key not in known]
    texts = [key for key in strange if isinstance(key, str) and key.isdecimal() and int(key) in known]
    if names:
        strange = [key for key in strange if isinstance(key, int) or key in texts]
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        hint = (
            ": some are texts of numbers, as JSON has them; make them numbers again, "
            "{int(key): entry for key, entry in state.items()}"
        )
        raise UsageError(
            f"{where}: the state has entries of the parameters {strange[:_SHOWN]}{more}, which are in no group of it"
            f"{hint if texts else ''}"
        )


def _expect(where: str, name: str, value: Any, kind: Any, what: str) -> None:
    if not isinstance(value, kind):
        raise UsageTypeError(f"{where}: {name} must be {what}, got {value!r:.80}")


def _check_options(
    where: str, kind: StatefulOptimizer, group: Group, saved: Iterable[str], base: type[StatefulOptimizer]
) -> None:
    """Options of another class, which has all of its own there, tell of it. What else there is may be of a scheduler, a
    user, or a later version."""
    names = set(saved)
    strange = names - group.keys() - kind.defaults.keys()
    if not strange:
        return
    others = [(other, options & strange) for other, options in _options(base) if options - _LATER <= names]
    most = max((len(told) for _, told in others), default=0)
    if most:
        having = {other: told for other, told in others if len(told) == most}
        roots = sorted(other.__name__ for other in having if not any(parent in having for parent in other.__bases__))
        have = ", ".join(sorted(set().union(*having.values())))
        raise UsageError(
            f"{where}: the state was saved by an optimizer of another kind, as {' or '.join(roots)} is: its groups "
            f"have {have}"
        )


def _check_values(where: str, kind: StatefulOptimizer, group: Group, saved: Group) -> None:
    """What the constructor checks, of the options in the state; not of tensors of which only the shape is known."""
    known = {name: value for name, value in saved.items() if _is_known(value)}
    try:
        check_flags(type(kind).__name__, known)
        kind._check_group({**group, **known, "params": group["params"]})
    except UsageError as error:
        raise type(error)(f"{where}: {error}") from None


def check_flags(where: str, group: Group) -> None:
    """UsageTypeError for options that are no flags in a group, and mean one in all optimizers that have them."""
    for name in _FLAGS:
        value: Any = group.get(name)
        if name in group and not (value is None and name in _HINTS):
            number = isinstance(value, np.ndarray) and not value.ndim
            flag(f"{where}: {name}", value.item() if number else value)


def _is_known(value: Any) -> bool:
    """Whether there are numbers to look at, in tensors too."""
    if isinstance(value, list | tuple):
        return all(map(_is_known, value))
    return hasattr(value, "__float__") or not hasattr(value, "shape")


def is_number(value: Any) -> bool:
    """Whether `value` is a real number, or a tensor of one, which may be described only."""
    dtype = str(getattr(value, "dtype", ""))
    return isinstance(value, Real) or bool(dtype and "complex" not in dtype and math.prod(value.shape) == 1)


def is_zero(value: Any) -> bool:
    """Whether a number is known to be 0."""
    return _is_known(value) and float(value) == 0


def _options(base: type[StatefulOptimizer]) -> Iterator[tuple[type[StatefulOptimizer], set[str]]]:
    """The optimizers that there are, and the options that each is made with."""
    for kind in base.__subclasses__():
        given = inspect.signature(kind).parameters.values()
        named = {each.name for each in given if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
        yield kind, named - {"params"}
        yield from _options(kind)


def _check_entry(
    where: str, kind: StatefulOptimizer, group: dict[str, Any], entry: Mapping[str, Any], param: Tensor
) -> None:
    moments = kind._moment_shapes(group, param)
    if _is_usual(kind, entry, moments):
        kind._check_entry(where, entry, param)
        return
    needed = (*kind._counters, *moments) if kind._starts_whole else ()
    if missing := [name for name in needed if name not in entry]:
        raise UsageError(
            f"{where} there is {', '.join(map(str, entry))}, and no {', '.join(missing)}, which "
            f"{type(kind).__name__} needs: the state was saved by an optimizer of another kind"
        )
    given = (name for name in moments if entry.get(name) is not None)
    for name in dict.fromkeys((*needed, *given)):
        check_value(f"{where}, {name}", entry[name], param if name in moments else None)
    for name, here in moments.items():
        check_shape(f"{where}, {name}", entry.get(name), here, param)
    kind._check_entry(where, entry, param)


def _is_usual(kind: StatefulOptimizer, entry: Mapping[str, Any], moments: Mapping[str, tuple[int, ...] | None]) -> bool:
    """Whether an entry has all counters and moments, tensors that fit: there is nothing to say of it."""
    for name in kind._counters:
        value = entry.get(name)
        if type(value) is not Tensor or value._array.size != 1 or value._array.dtype.kind == "c":
            return False
    for name, here in moments.items():
        value = entry.get(name)
        if type(value) is not Tensor or value._array.shape != here or value._array.dtype.kind != "f":
            return False
    return True


def check_shape(where: str, value: Any, here: tuple[int, ...] | None, param: Tensor) -> None:
    """UsageError for a value of a state of `param` whose shape is another than `here`, as far as both are known."""
    got = shape_of(value)
    if None not in (got, here) and got != here:
        of = "the parameter has" if here == shape_of(param) else "for this parameter it has"
        raise UsageError(
            f"{where} has the shape {list(got or ())} in the state, {of} {list(here or ())} here: it was saved with "
            "another model"
        )


def check_value(where: str, value: Any, param: Tensor | None) -> None:
    """UsageTypeError unless `value` is a tensor whose numbers those of `param` can be; None: it counts, a number."""
    dtype = getattr(value, "dtype", "")
    dtype = str(getattr(dtype, "name", dtype))  # whatever the order of an array's bytes
    if isinstance(value, np.ma.MaskedArray) or dtype in _UNKNOWN:
        fits, expected = False, "a tensor, or an array of a dtype that tensors have and without a mask"
    elif param is not None:
        fits = "float" in dtype or ("complex" in dtype and "complex" in str(param.dtype))
        expected = "a tensor of floating point numbers"
    else:
        fits = is_number(value)
        expected = "a number, or a tensor of one"
    if not fits:
        raise UsageTypeError(f"{where} must be {expected}, got {value!r:.80}")


def shape_of(thing: Any) -> tuple[int, ...] | None:
    """None of what has none, or has none yet."""
    try:
        return tuple(thing.shape)
    except (AttributeError, RuntimeError):
        return None
