"""state_dict and load_state_dict: a module's tensors by dotted name, out and in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError

if TYPE_CHECKING:
    from resilin.nn.modules.module import Module

_EXTRA = "_extra_state"


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` could not match by name."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def collect(module: Module, destination: dict[str, Any], prefix: str, keep_vars: bool) -> dict[str, Any]:
    """Write the state of `module` and all below it into `destination`."""
    for hook in module._state_dict_pre_hooks.values():
        hook(module, prefix, keep_vars)
    for name, tensor in _own(module):
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    if _has_extra(module):
        destination[prefix + _EXTRA] = module.get_extra_state()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
    for hook in module._state_dict_hooks.values():
        if hook(module, destination, prefix, {}) is not None:
            raise UsageError("a state_dict post-hook must return None; change the dict in place")
    return destination


def load(module: Module, state_dict: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Read `state_dict` into `module` and all below it."""
    if not isinstance(state_dict, Mapping):
        raise TypeError(f"load_state_dict: expected a mapping of names to tensors, got {type(state_dict).__name__}")
    state = dict(state_dict)
    keys = IncompatibleKeys([], [])
    problems: list[str] = []
    known: set[str] = set()
    with no_grad():
        _load_tree(module, state, "", _Loading(strict, assign, keys, problems, known))
    keys.unexpected_keys.extend(key for key in state if key not in known and key not in keys.unexpected_keys)
    _run_post_hooks(module, keys)
    if strict:
        problems = [*_listing("missing", keys.missing_keys), *_listing("unexpected", keys.unexpected_keys), *problems]
    if problems:
        raise UsageError(f"load_state_dict for {type(module).__name__}:\n  " + "\n  ".join(problems))
    return keys


class _Loading(NamedTuple):
    strict: bool
    assign: bool
    keys: IncompatibleKeys
    problems: list[str]
    known: set[str]


def _load_tree(module: Module, state: dict[str, Any], prefix: str, loading: _Loading) -> None:
    keys, problems = loading.keys, loading.problems
    for hook in module._load_pre_hooks.values():
        hook(module, state, prefix, {}, loading.strict, keys.missing_keys, keys.unexpected_keys, problems)
    for name, tensor in _own(module):
        key = prefix + name
        loading.known.add(key)
        if key not in state:
            keys.missing_keys.append(key)
        elif problem := _mismatch(tensor, state[key]):
            problems.append(f"{key}: {problem}")
        elif loading.assign:
            _assign(module, name, tensor, state[key])
        else:
            tensor.copy_(state[key])
    if _has_extra(module):
        loading.known.add(prefix + _EXTRA)
        if prefix + _EXTRA in state:
            module.set_extra_state(state[prefix + _EXTRA])
        else:
            keys.missing_keys.append(prefix + _EXTRA)
    for name, child in module._modules.items():
        if child is not None:
            _load_tree(child, state, f"{prefix}{name}.", loading)


def _own(module: Module) -> Iterator[tuple[str, Tensor]]:
    """The module's own parameters and persistent buffers."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            yield name, parameter
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent:
            yield name, buffer


def _has_extra(module: Module) -> bool:
    # looked up by name: importing Module's own methods here would be a cycle
    return any(
        "get_extra_state" in cls.__dict__
        for cls in type(module).__mro__
        if cls.__module__ != "resilin.nn.modules.module"
    )


def _mismatch(expected: Tensor, got: Any) -> str | None:
    if not isinstance(got, Tensor):
        return f"expected a Tensor, got {type(got).__name__}"
    if tuple(expected.shape) != tuple(got.shape):
        return f"shape {tuple(got.shape)} in the state_dict, {tuple(expected.shape)} in the module"
    return None


def _assign(module: Module, name: str, old: Tensor, new: Tensor) -> None:
    if isinstance(old, Parameter):
        module._parameters[name] = (
            new if isinstance(new, Parameter) else Parameter(new.detach(), requires_grad=old.requires_grad)
        )
    else:
        module._buffers[name] = new


def _run_post_hooks(module: Module, keys: IncompatibleKeys) -> None:
    for child in module._modules.values():
        if child is not None:
            _run_post_hooks(child, keys)
    for hook in module._load_post_hooks.values():
        if hook(module, keys) is not None:
            raise UsageError("a load_state_dict post-hook must return None; change the lists of keys in place")


def _listing(what: str, names: Iterable[str]) -> list[str]:
    names = list(names)
    return [f"{what}: " + ", ".join(names)] if names else []
