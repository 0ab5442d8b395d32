"""Optimizer: groups of parameters, their options and their state. Semantics and layout of torch.optim.Optimizer."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np

from resilin._base import fault_points, trace
from resilin.core.autograd.grad_mode import enable_grad, mode
from resilin.core.ops.errstate import SILENT, restore, silence
from resilin.core.public import error_context
from resilin.core.shard_metadata import is_piece
from resilin.core.state.hooks import RemovableHandle
from resilin.core.tensor import Tensor
from resilin.errors import ResilinError, UsageError, UsageTypeError
from resilin.optim import numpy_state, state_checks

ParamsT: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
Params = ParamsT
Closure = Callable[[], Any]
Group = dict[str, Any]
Hook = Callable[..., Any]
Step = TypeVar("Step", bound=Callable[..., Any])
Lists = Sequence[Sequence[Any] | None]


class _RequiredParameter:
    """The class of `required`."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _RequiredParameter()  # the default of an option that has to be given

ROUNDING = 1e-12  # a rate that a schedule has brought to 0 may be below it by so much: LinearLR ends at -1e-17

_all_pre_hooks: OrderedDict[int, Hook] = OrderedDict()
_all_post_hooks: OrderedDict[int, Hook] = OrderedDict()


def register_optimizer_step_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` before each step of every optimizer; see `Optimizer`."""
    return _add_hook(_all_pre_hooks, hook)


def register_optimizer_step_post_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(optimizer, args, kwargs)` after each step of every optimizer."""
    return _add_hook(_all_post_hooks, hook)


def _hooked(step: Step) -> Step:
    """`step` between its hooks; without them inside another step: one that calls the one it overrides has them once."""

    @functools.wraps(step)
    def with_hooks(*args: Any, **kwargs: Any) -> Any:
        optimizer = args[0]
        if optimizer._stepping:
            return step(*args, **kwargs)
        optimizer._stepping = optimizer._opt_called = True
        try:
            if _all_pre_hooks or optimizer._step_pre_hooks:
                for hook in [*_all_pre_hooks.values(), *optimizer._step_pre_hooks.values()]:
                    replaced = hook(optimizer, args, kwargs)
                    if replaced is not None:
                        args, kwargs = _replacement(optimizer, replaced)
            recorder = trace.recorder
            if recorder is None:
                result = step(*args, **kwargs)
            else:
                token = recorder.begin(_traced(type(optimizer).__name__, "step"), _OPTIMIZER)
                try:
                    result = step(*args, **kwargs)
                finally:
                    recorder.end(token)
            if _all_post_hooks or optimizer._step_post_hooks:
                for hook in [*optimizer._step_post_hooks.values(), *_all_post_hooks.values()]:
                    hook(optimizer, args, kwargs)
            return result
        finally:
            optimizer._stepping = False

    return with_hooks  # type: ignore[return-value]


@functools.cache
def _traced(name: str, method: str) -> str:
    """What a method of the optimizer `name` is called in traces, as in PyTorch's."""
    return f"Optimizer.{method}#{name}.{method}"


_OPTIMIZER = trace.SpanKind.OPTIMIZER


def _replacement(optimizer: Optimizer, replaced: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(replaced, tuple) and len(replaced) == 2:
        return replaced
    raise ResilinError(
        f"{type(optimizer).__name__}.step: a hook before it must return None or (args, kwargs), where args begin with "
        f"the optimizer; got {replaced!r}"
    )


class Optimizer:
    """Base of optimizers: subclasses define `_update(group)`, which applies one step to one group.

    params:    tensors, (name, tensor) pairs, or dicts with a "params" entry and options of their own (groups).
    defaults:  options of groups that do not give their own.

    `param_groups` and `state` (by parameter) may be read and changed as in PyTorch. A subclass may as well define a
    `step` of its own; hooks run around it, too. Copies of an optimizer have no hooks.
    """

    _counters: ClassVar[tuple[str, ...]] = ()
    """States of a parameter that are 0-dim float32 tensors; numbers in states that are loaded become such."""
    _starts_whole: ClassVar[bool] = True
    """Whether a parameter that has any state has all of it: counters, and what `_moments` names."""
    _carries_names: ClassVar[bool] = True
    """Whether `state` may hold what is of no parameter, under names: it is loaded and saved, too."""
    _has_twins = False  # whether a group names a parameter more than once
    _twins_in_turn: ClassVar[bool] = True
    """Whether a parameter that is named twice is moved the second time from the state that the first time left."""
    _stepping = False  # inside step()
    _opt_called = False  # whether there was a step: schedulers want one before their own

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "step" in cls.__dict__:
            cls.step = _hooked(cls.step)  # type: ignore[method-assign]

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            raise TypeError("params must be an iterable of tensors or dicts, got one tensor: put it in a list")
        self.defaults = defaults
        self.state: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[Group] = []
        self._make_hooks()
        if isinstance(params, set | frozenset):
            raise TypeError("parameters must be ordered, a set has no order: pass a list")
        if not isinstance(params, Iterable):
            raise TypeError(f"params must be an iterable of tensors or dicts, got {type(params).__name__}")
        entries: list[Any] = list(params)
        if not entries:
            raise UsageError(f"{type(self).__name__}: got no parameters")
        for group in entries if isinstance(entries[0], dict) else [{"params": entries}]:
            self.add_param_group(dict(group))

    def _make_hooks(self) -> None:
        self._step_pre_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._step_post_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._state_dict_pre_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._state_dict_post_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._load_pre_hooks: OrderedDict[int, Hook] = OrderedDict()
        self._load_post_hooks: OrderedDict[int, Hook] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.endswith("_hooks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make_hooks()
        self.__dict__.update(state)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group: a dict with "params" and any options; the others get their defaults."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, got {type(param_group).__name__}")
        params, names = _read_params(param_group["params"])
        group = {**param_group, "params": params}
        if names is not None:
            group["param_names"] = names
        for name, default in self.defaults.items():
            if default is required and name not in group:
                raise UsageError(f"parameter group didn't specify a value of required optimization parameter {name}")
            group.setdefault(name, default)
        _check_common(type(self).__name__, group)
        self._check_group(group)
        taken = {id(tensor) for other in self.param_groups for tensor in other["params"]}
        if any(id(tensor) in taken for tensor in params):
            raise UsageError(f"{type(self).__name__}: some parameters appear in more than one parameter group")
        if len({id(tensor) for tensor in params}) != len(params):
            self._meet_twins()
        if any((names is None) is ("param_names" in other) for other in self.param_groups):
            how = "without" if names is None else "with"
            raise UsageError(f"{type(self).__name__}: a group {how} names joins others; name all groups or none")
        self.param_groups.append(group)

    def _meet_twins(self) -> None:
        """Say that a group names a parameter twice: it is moved twice in each step, as in PyTorch."""
        self._has_twins = True
        warnings.warn(
            f"{type(self).__name__}: optimizer contains a parameter group with duplicate parameters, which every step "
            "moves as often as they are named; in future, this will cause an error",
            UserWarning,
            stacklevel=error_context.level_of_user(),
        )

    def _check_group(self, group: Group) -> None:
        """Raise UsageError for options of `group` that make no sense; subclasses override it."""

    def _check_numbers(self, group: Group, *names: str) -> None:
        for name in names:
            if not state_checks.is_number(group[name]):
                raise UsageTypeError(f"{type(self).__name__}: {name} must be a number, got {group[name]!r:.80}")

    def _check_not_negative(self, group: Group, *names: str) -> None:
        self._check_numbers(group, *names)
        for name in names:
            least = -ROUNDING if name == "lr" else 0
            if math.isnan(number := float(group[name])):
                raise UsageError(f"{type(self).__name__}: {name} must be a number of at least 0, got {group[name]}")
            if number < least:
                raise UsageError(f"{type(self).__name__}: {name} must not be negative, got {group[name]}")

    def _check_several(self, group: Group, name: str, what: str, count: int) -> None:
        """UsageTypeError unless an option is a list or tuple of `count` numbers."""
        values = group[name]
        if not (isinstance(values, list | tuple) and len(values) == count and all(map(state_checks.is_number, values))):
            got = f"{len(values)}: {values!r:.80}" if isinstance(values, list | tuple) else f"{values!r:.80}"
            raise UsageTypeError(f"{type(self).__name__}: {name} must be {what}, got {got}")

    def _check_betas(self, group: Group) -> None:
        self._check_several(group, "betas", what := "two numbers in [0, 1)", 2)
        if not all(0 <= float(beta) < 1 for beta in group["betas"]):
            raise UsageError(f"{type(self).__name__}: betas must be {what}, got {group['betas']}")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every parameter's gradient, or set it to zero in place."""
        recorder = trace.recorder
        if recorder is None:
            self._zero_grad(set_to_none)
            return
        token = recorder.begin(_traced(type(self).__name__, "zero_grad"), _OPTIMIZER)
        try:
            self._zero_grad(set_to_none)
        finally:
            recorder.end(token)

    def _zero_grad(self, set_to_none: bool) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter._grad = None
                elif parameter._grad is not None:
                    parameter._grad = parameter._grad.detach()
                    parameter._grad.zero_()
                if is_piece(parameter):
                    parameter.drop_accumulated()  # on the whole parameter, which no group has

    @_hooked
    def step(self, closure: Closure | None = None) -> Any:
        """Update every parameter with a gradient, in place. Returns the loss of `closure` (called first) or None."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        recorded, mode.grad = mode.grad, False
        token = silence(SILENT)  # infinities and NaN go their way without a word, as in native code
        try:
            for group in self.param_groups:
                fault_points.reached("optimizer")
                for each in (group,) if not (self._has_twins and self._twins_in_turn) else _without_twins(group):
                    self._update(each)
            fault_points.reached("optimizer")
        except KeyError as error:
            raise UsageError(
                f"{type(self).__name__}.step: a parameter's state or options have no {error}; was the state that "
                "was loaded saved by another optimizer?"
            ) from error
        finally:
            restore(token)
            mode.grad = recorded
        return loss

    def _update(self, group: Group) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define _update(group)")

    def register_step_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` before each step; a pair it returns replaces args and kwargs.

        They are what `step` was called with: args begin with the optimizer.
        """
        return _add_hook(self._step_pre_hooks, hook)

    def register_step_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(optimizer, args, kwargs)` after each step."""
        return _add_hook(self._step_post_hooks, hook)

    def register_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` before `state_dict()` collects. prepend: before the hooks already there."""
        return _add_hook(self._state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` after it; what it returns (unless None) replaces the dict."""
        return _add_hook(self._state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer, state_dict)` before loading; what it returns (unless None) is loaded instead."""
        return _add_hook(self._load_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(optimizer)` after loading."""
        return _add_hook(self._load_post_hooks, hook, prepend)

    def state_dict(self) -> dict[str, Any]:
        """`{"state": {number: {...}}, "param_groups": [...]}`: parameters are replaced by their numbers, in order.

        Tensors in it share memory with the optimizer's.
        """
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self)
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for parameter in group["params"]:
                numbers.setdefault(id(parameter), len(numbers))
            packed = {name: value for name, value in group.items() if name != "params"}
            groups.append({**packed, "params": [numbers[id(parameter)] for parameter in group["params"]]})
        state: dict[Any, Any] = {}
        for key, value in self.state.items():  # what has another key than a parameter may be anything
            state[numbers[id(key)] if isinstance(key, Tensor) else key] = copy.copy(value)
        packed_state = {"state": state, "param_groups": groups}
        for hook in list(self._state_dict_post_hooks.values()):
            replaced = hook(self, packed_state)
            packed_state = packed_state if replaced is None else replaced
        return packed_state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take over options and (a copy of) the state, or nothing. Its tensors may be numpy arrays.

        Raises UsageError when the groups do not match in size, their options are none that the constructor takes,
        entries have numbers that are in no group, or the state is of another kind of optimizer or of other shapes,
        TypeError for what is no state.
        """
        check_state_dict(self, state_dict)
        for hook in list(self._load_pre_hooks.values()):
            replaced = hook(self, dict(state_dict))
            state_dict = state_dict if replaced is None else replaced
        state_checks.check(self, state_dict, Optimizer)
        self._load(numpy_state.with_tensors(self, state_dict))
        for hook in list(self._load_post_hooks.values()):
            hook(self)

    def check_loadable(self, state_dict: Mapping[str, Any]) -> None:
        """What `load_state_dict` raises for a state that does not fit, before anything is changed.

        For its tensors anything that has a shape will do: checkpoints ask before they read. A state that hooks change
        before it is loaded is not looked at.
        """
        check_state_dict(self, state_dict)
        if not self._load_pre_hooks:
            state_checks.check(self, state_dict, Optimizer)

    @property
    def _kind(self) -> Optimizer:
        """The optimizer whose options and states are meant: this one, unless it is one around another."""
        return self

    def _moments(self, group: Group) -> tuple[str, ...]:
        """Names of the states of a parameter that have its shape, in a group with these options."""
        return ()

    def _moment_shapes(self, group: Group, param: Tensor) -> dict[str, tuple[int, ...] | None]:
        """Of the states of `param` that are arrays, in a group with these options: their shapes. None: none yet."""
        return dict.fromkeys(self._moments(group), state_checks.shape_of(param))

    def _check_entry(self, where: str, entry: Mapping[str, Any], param: Tensor) -> None:
        """Raise UsageError for a state of `param` that no step can go on from; subclasses override it."""

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        saved = list(state_dict["param_groups"])
        parameters: dict[Any, Tensor] = {}
        options = []
        for group, other in zip(self.param_groups, saved, strict=True):
            parameters.update(zip(other["params"], group["params"], strict=True))
            taken = {name: copy.deepcopy(value) for name, value in other.items() if name != "params"}
            if "param_names" in group:
                taken["param_names"] = group["param_names"]
            options.append(taken)
        loaded: defaultdict[Any, Any] = defaultdict(dict)
        own = {id(value) for entry in self.state.values() if isinstance(entry, dict) for value in entry.values()}
        for number, entry in state_dict["state"].items():
            parameter = parameters.get(number)
            key: Any = number if parameter is None else parameter
            loaded[key] = _own_copy(entry, "", parameter, own)
            for name in () if parameter is None else self._counters:
                if isinstance(entry.get(name), int | float):  # older versions of PyTorch saved numbers
                    loaded[key][name] = Tensor._wrap(np.full((), entry[name], np.float32))
        self.state = loaded  # only now: what fails above leaves everything as it was
        for group, taken in zip(self.param_groups, options, strict=True):
            group.update(taken)

    def __repr__(self) -> str:
        groups = []
        for number, group in enumerate(self.param_groups):
            options = [f"    {key}: {group[key]}\n" for key in sorted(group) if key not in ("params", "param_names")]
            groups.append(f"Parameter Group {number}\n{''.join(options)}")
        return f"{type(self).__name__} (\n" + "\n".join(groups) + ")"


def check_state_dict(owner: Any, state_dict: Any) -> None:
    """TypeError for what `owner.state_dict()` cannot have given."""
    if not isinstance(state_dict, Mapping):
        where, got = type(owner).__name__, type(state_dict).__name__
        raise TypeError(f"{where}.load_state_dict: expected the dict that state_dict() gave, got {got}")


def _check_common(where: str, group: Group) -> None:
    """Options with one meaning in all optimizers."""
    lr = group.get("lr")
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise UsageError(f"{where}: lr given as a tensor must have one element, got shape {list(lr.shape)}")
    state_checks.check_flags(where, group)
    if group.get("foreach") and group.get("fused"):
        raise UsageError(f"{where}: foreach and fused cannot both be True; every step is one native call anyway")
    if group.get("differentiable"):
        raise NotImplementedError(
            f"{where}: differentiable=True is not supported: steps are made in place, outside the graph; "
            "to differentiate through an update, write it with tensor operations"
        )
    if group.get("capturable"):
        raise NotImplementedError(
            f"{where}: capturable=True is not supported: it serves the capture of CUDA graphs, which resilin has not"
        )


def _without_twins(group: Group) -> list[Group]:
    """Groups that name each parameter once, to be updated one after the other: a parameter that is named again is
    moved again, from where it then is."""
    rounds: list[list[Tensor]] = []
    seen: defaultdict[int, int] = defaultdict(int)
    for tensor in group["params"]:
        number = seen[id(tensor)]
        seen[id(tensor)] += 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(tensor)
    return [{**group, "params": params} for params in rounds]


def _read_params(params: Any) -> tuple[list[Tensor], list[str] | None]:
    """The tensors of a group, and their names when (name, tensor) pairs were given."""
    if isinstance(params, set | frozenset):
        raise TypeError("parameters must be ordered, a set has no order: pass a list")
    entries = [params] if isinstance(params, Tensor) else list(params)
    names = [entry[0] for entry in entries if isinstance(entry, tuple)] or None
    if names is not None and len(names) != len(entries):
        raise UsageError("a group must hold either tensors or (name, tensor) pairs, not both")
    tensors = entries if names is None else [entry[1] for entry in entries]
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"an optimizer updates tensors, got {type(tensor).__name__}")
        if not tensor.is_leaf:
            raise UsageError("an optimizer updates leaf tensors only; this one was computed by an operation")
    return tensors, names


class _Fitting:
    """See `fitting`. No generator: every step of an optimizer passes here."""

    __slots__ = ("_arrays", "_parameters", "_where")

    def __init__(self, where: str, parameters: Sequence[Tensor], names: Sequence[str], lists: Lists) -> None:
        self._where, self._parameters, self._arrays = where, parameters, (names, lists)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, ValueError | IndexError):
            return
        for name, values in zip(*self._arrays, strict=True):
            for number, (parameter, value) in enumerate(zip(self._parameters, values or (), strict=False)):
                if value.shape != parameter._array.shape:
                    raise UsageError(
                        f"{self._where}: {name} of shape {list(value.shape)} does not fit parameter {number} of shape "
                        f"{list(parameter.shape)}; was it loaded from another model?"
                    ) from error
        for number, parameter in enumerate(self._parameters):
            if not getattr(parameter._array.flags, "writeable", True):
                raise UsageError(
                    f"{self._where}: parameter {number} cannot be written to: it was made by expand() or from a "
                    "read-only array; give the optimizer a clone() of it"
                ) from error


def fitting(where: str, parameters: Sequence[Tensor], names: Sequence[str], lists: Lists) -> _Fitting:
    """Around a kernel's call: when it fails, say which gradient or state has another shape than its parameter, or which
    parameter is read-only. names: of what the arrays of each list are."""
    return _Fitting(where, parameters, names, lists)


def _own_copy(value: Any, name: Any, parameter: Tensor | None, own: set[int]) -> Any:
    """A copy of `value`, whose tensors (but a `step`) get the dtype and device of `parameter`, whose state it is.

    own: ids of tensors that the optimizer has already, and keeps: who fills these and loads them needs no second copy.
    """
    if isinstance(value, Tensor):
        if id(value) in own:
            return value
    elif isinstance(value, dict):
        return {key: _own_copy(item, key, parameter, own) for key, item in value.items()}
    elif type(value) in (list, tuple):
        return type(value)([_own_copy(item, None, parameter, own) for item in value])
    else:
        return copy.deepcopy(value)
    if parameter is None or name == "step" or not parameter.is_floating_point():
        return value.detach().clone()
    return value.detach().to(dtype=parameter.dtype, device=parameter.device).clone()


def _add_hook(hooks: OrderedDict[int, Hook], hook: Hook, prepend: bool = False) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle
