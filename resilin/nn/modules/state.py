"""state_dict and load_state_dict: a module's tensors by dotted name, out and in."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn.modules.global_hooks import Hook
from resilin.nn.modules.hooks import LoadHook, StateHook
from resilin.nn.parameter import is_lazy

_EXTRA = "_extra_state"


class Stateful(Protocol):
    """What is used here of a module: its own members, its children, its hooks, and what subclasses override."""

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _non_persistent_buffers_set: set[str]
    _version: int
    _state_dict_pre_hooks: OrderedDict[int, Hook]
    _state_dict_hooks: OrderedDict[int, StateHook]
    _load_state_dict_pre_hooks: OrderedDict[int, LoadHook]
    _load_state_dict_post_hooks: OrderedDict[int, Hook]

    @property
    def _modules(self) -> Mapping[str, Stateful | None]: ...

    def state_dict(self, *, destination: Any, prefix: str, keep_vars: bool) -> dict[str, Any]:
        """Write the state of the module and all below it into `destination`."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None: ...

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None: ...

    def get_extra_state(self) -> Any:
        """Return what is kept in the state beside tensors."""

    def set_extra_state(self, state: Any) -> None:
        """Take back what `get_extra_state` gave."""


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` could not match by name."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class Findings(NamedTuple):
    """What loading has found so far; its lists grow."""

    missing: list[str]
    unexpected: list[str]
    problems: list[str]


def collect(module: Stateful, destination: Any, prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Write the state of `module` and all below it into `destination`, or a new dict; returns it.

    A new one is a plain OrderedDict, as in PyTorch, so that whoever reads pickles safely knows its class. Its
    `_metadata` has the `_version` of every module in it: path -> {"version": ...}.
    """
    if destination is None:
        destination = OrderedDict()
        destination._metadata = OrderedDict()
    metadata = {"version": module._version}
    if hasattr(destination, "_metadata"):
        destination._metadata[prefix[:-1]] = metadata
    for before in module._state_dict_pre_hooks.values():
        before(module, prefix, keep_vars)
    module._save_to_state_dict(destination, prefix, keep_vars)
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook in module._state_dict_hooks.values():
        replaced = hook.call(module, destination, prefix, metadata)
        if replaced is not None and hook.public:
            raise UsageError("a state_dict post-hook must return None; change the dict in place")
        destination = destination if replaced is None else replaced
    result: dict[str, Any] = destination
    return result


def save_own(module: Stateful, destination: dict[str, Any], prefix: str, keep_vars: bool, has_extra: bool) -> None:
    """Write the module's own parameters, persistent buffers and extra state."""
    for name, tensor in _own(module).items():
        destination[prefix + name] = tensor if keep_vars or is_lazy(tensor) else tensor.detach()
    if has_extra:
        destination[prefix + _EXTRA] = module.get_extra_state()


def load(module: Stateful, state_dict: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Read `state_dict` into `module` and all below it."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"load_state_dict: expected a mapping of names to tensors, got {type(state_dict).__name__}")
    metadata = {path: dict(about) for path, about in getattr(state_dict, "_metadata", {}).items()}
    found = Findings([], [], [])
    _load_tree(module, OrderedDict(state_dict), "", metadata, assign, found)
    problems = found.problems
    if strict:
        problems = [*_listing("Missing", found.missing), *_listing("Unexpected", found.unexpected), *problems]
    if problems:
        raise UsageError(f"Error(s) in loading state_dict for {type(module).__name__}:\n\t" + "\n\t".join(problems))
    return IncompatibleKeys(found.missing, found.unexpected)


def _load_tree(
    module: Stateful,
    state: dict[str, Any],
    prefix: str,
    metadata: dict[str, dict[str, Any]],
    assign: bool,
    found: Findings,
) -> None:
    about = metadata.get(prefix[:-1], {})
    if assign:
        about["assign_to_params_buffers"] = True
    module._load_from_state_dict(state, prefix, about, True, found.missing, found.unexpected, found.problems)
    for name, child in module._modules.items():
        if child is not None:
            path = f"{prefix}{name}."
            below = OrderedDict((key, value) for key, value in state.items() if key.startswith(path))
            _load_tree(child, below, path, metadata, assign, found)
    for hook in module._load_state_dict_post_hooks.values():
        if hook(module, IncompatibleKeys(found.missing, found.unexpected)) is not None:
            raise UsageError("a load_state_dict post-hook must return None; change the lists of keys in place")


def load_own(
    module: Stateful,
    state: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
    strict: bool,
    found: Findings,
    has_extra: bool,
) -> None:
    """Read the module's own parameters, persistent buffers and extra state."""
    for hook in module._load_state_dict_pre_hooks.values():
        hook.call(*(module,) * hook.with_module, state, prefix, metadata, strict, *found)
    own = _own(module)
    for name, tensor in own.items():
        key = prefix + name
        if key in state:
            problem = _take(module, name, tensor, state[key], metadata.get("assign_to_params_buffers", False))
            found.problems.extend([] if problem is None else [problem.format(key=key)])
        elif strict:
            found.missing.append(key)
    extra = prefix + _EXTRA
    if has_extra and extra in state:
        module.set_extra_state(state[extra])
    elif has_extra and strict:
        found.missing.append(extra)
    if strict:
        found.unexpected.extend(
            key
            for key in state
            if key.startswith(prefix) and _is_unexpected(key[len(prefix) :], module, own, has_extra)
        )


def _is_unexpected(name: str, module: Stateful, own: dict[str, Tensor], has_extra: bool) -> bool:
    if name == _EXTRA:
        return not has_extra
    first, *below = name.split(".", 1)
    return first not in (module._modules if below else own)


def _own(module: Stateful) -> dict[str, Tensor]:
    """The module's own parameters and persistent buffers."""
    members: dict[str, Tensor | None] = dict(module._parameters)
    hidden = module._non_persistent_buffers_set
    members.update((name, buffer) for name, buffer in module._buffers.items() if name not in hidden)
    return {name: tensor for name, tensor in members.items() if tensor is not None}


def _take(module: Stateful, name: str, own: Tensor, given: Any, assign: bool) -> str | None:
    """Copy or take the tensor `given` for `own`; what is wrong with it, with {key} for its name, if something is."""
    if not isinstance(given, Tensor):
        return f'While copying the parameter named "{{key}}", expected a Tensor, got {type(given).__name__}'
    if is_lazy(given) and not is_lazy(own):
        return (
            "{key}: the state_dict's parameter is uninitialized: call `forward` of the module that it comes from first"
        )
    if not is_lazy(own):
        if own._array.shape == () and given._array.shape == (1,):
            given = given[0]  # of files from before there were tensors without dimensions
        if own._array.shape != given._array.shape:
            return (
                f"size mismatch for {{key}}: copying a param with shape {tuple(given.shape)} from checkpoint, "
                f"the shape in current model is {tuple(own.shape)}."
            )
    if given.is_meta and not own.is_meta and not assign:
        return 'While copying the parameter named "{key}": Cannot copy out of meta tensor; no data!'
    with no_grad():
        if not is_lazy(own) and not assign and own.is_meta and not given.is_meta:
            warnings.warn(
                f"for {name}: copying from a non-meta parameter in the checkpoint to a meta parameter in the current "
                "model, which is a no-op. (Did you mean to pass `assign=True` to assign items in the state dictionary "
                "to their corresponding key in the module instead of copying them in place?)",
                stacklevel=2,
            )
        if assign:
            _assign(module, name, own, given)
        elif not is_lazy(given):
            own.copy_(given)
    return None


def _assign(module: Stateful, name: str, own: Tensor, given: Tensor) -> None:
    if isinstance(own, Parameter):
        if not isinstance(given, Parameter):
            given = Parameter(given.detach(), requires_grad=own.requires_grad)
        module._parameters[name] = given
        given.requires_grad_(own.requires_grad)
    else:
        module._buffers[name] = given


def _listing(what: str, names: list[str]) -> list[str]:
    return [f"{what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in names) + ". "] if names else []
