"""Hooks of every module: `register_module_*`, and how the hooks of one call or registration are found.

The hooks of all modules run before a module's own. They are for debugging and profiling: each slows every call.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from resilin.core.state.hooks import RemovableHandle

Hook = Callable[..., Any]


class ForwardHook(NamedTuple):
    """A hook of calls, and how it wants to be called."""

    call: Hook
    with_kwargs: bool
    always_call: bool


EVERYWHERE: dict[str, OrderedDict[int, Any]] = {}  # name of a module's table -> hooks; empty until the first is there


def hooks_of(module: Any, table: str) -> list[tuple[int, Any]]:
    """What is to be called for `module`, with the keys of the handles: all modules' hooks, then its own."""
    own = list(module.__dict__[table].items())
    return [*EVERYWHERE[table].items(), *own] if table in EVERYWHERE else own


def registered(table: str, module: Any, name: str, value: Any) -> Any:
    """What `module` keeps under `name` in `table`: hooks may replace `value`, unless it is None."""
    for hook in list(EVERYWHERE.get(table, {}).values()) if value is not None else ():
        replaced = hook(module, name, value)
        value = value if replaced is None else replaced
    return value


def _add(table: str, hook: Any) -> RemovableHandle:
    hooks = EVERYWHERE.setdefault(table, OrderedDict())
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def register_module_forward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, args)` before every module's forward; what it returns replaces the arguments (None: not)."""
    return _add("_forward_pre_hooks", ForwardHook(hook, False, False))


def register_module_forward_hook(
    hook: Hook, *, with_kwargs: bool = False, always_call: bool = False
) -> RemovableHandle:
    """Call `hook(module, args, output)` after every module's forward; what it returns replaces the output (None: not).

    with_kwargs: `hook(module, args, kwargs, output)`. always_call: also when forward or another hook raised.
    """
    return _add("_forward_hooks", ForwardHook(hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_output)` before every module's backward; it may return a replacement."""
    return _add("_backward_pre_hooks", hook)


def register_module_full_backward_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, grad_input, grad_output)` when the gradients of any module's inputs are known; it may return
    a replacement for grad_input."""
    return _add("_backward_hooks", hook)


def register_module_backward_hook(hook: Hook) -> RemovableHandle:
    """Refused with NotImplementedError: PyTorch's hooks of the last operation only, which it deprecates."""
    raise NotImplementedError("register_module_backward_hook: use register_module_full_backward_hook")


def register_module_parameter_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, parameter)` when any module gets a parameter; it may return another one."""
    return _add("_parameters", hook)


def register_module_buffer_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, buffer)` when any module gets a buffer; it may return another one."""
    return _add("_buffers", hook)


def register_module_module_registration_hook(hook: Hook) -> RemovableHandle:
    """Call `hook(module, name, submodule)` when any module gets a sub-module; it may return another one."""
    return _add("_modules", hook)
