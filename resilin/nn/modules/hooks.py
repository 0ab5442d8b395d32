"""Hooks of a module: where they are kept, how they are added, and how forward hooks run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from resilin.core.state.hooks import RemovableHandle
from resilin.errors import UsageError
from resilin.nn.modules import backward_hooks
from resilin.nn.modules.global_hooks import ForwardHook, Hook, hooks_of


class StateHook(NamedTuple):
    """A hook of state_dict()."""

    call: Hook
    public: bool  # must return None; a private one may return another dict


class LoadHook(NamedTuple):
    """A hook before load_state_dict()."""

    call: Hook
    with_module: bool


_OF_CALLS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_STATE = ("_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


class Hooked:
    """The hooks of a Module, which is the only class to inherit from it: tables, `register_*`, and calls with hooks."""

    forward: Callable[..., Any]
    _forward_pre_hooks: OrderedDict[int, ForwardHook]
    _forward_hooks: OrderedDict[int, ForwardHook]
    _backward_pre_hooks: OrderedDict[int, Hook]
    _backward_hooks: OrderedDict[int, Hook]
    _state_dict_pre_hooks: OrderedDict[int, Hook]
    _state_dict_hooks: OrderedDict[int, StateHook]
    _load_state_dict_pre_hooks: OrderedDict[int, LoadHook]
    _load_state_dict_post_hooks: OrderedDict[int, Hook]
    _hooked: bool  # whether any forward or backward hook was ever registered: the fast path of calls

    def _make_hook_tables(self) -> None:
        self.__dict__["_hooked"] = False
        for name in (*_OF_CALLS, *_OF_STATE):
            self.__dict__[name] = OrderedDict()

    def _check_hooks(self, state: dict[str, Any]) -> None:
        """UsageError for a state that PyTorch saved with hooks: its tables have another form."""
        if "_hooked" not in state:
            kept = [name for name in (*_OF_CALLS, *_OF_STATE) if self.__dict__[name]]
            if kept:
                raise UsageError(
                    f"{type(self).__name__} was saved by PyTorch with hooks, in {', '.join(kept)}, which are not read: "
                    "remove them before saving, or save a state_dict()"
                )

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; what it returns replaces the arguments (None: unchanged)."""
        return self._add_hook("_forward_pre_hooks", ForwardHook(hook, with_kwargs, False), prepend)

    def register_forward_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns replaces the output (None: unchanged).

        with_kwargs: `hook(module, args, kwargs, output)`. always_call: also when forward or another hook raised.
        """
        return self._add_hook("_forward_hooks", ForwardHook(hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` before the module's backward; it may return a replacement."""
        return self._add_hook("_backward_pre_hooks", hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the module's inputs are known.

        It may return a replacement for grad_input. Entries are None for arguments that are no tensors or need none.
        """
        return self._add_hook("_backward_hooks", hook, prepend)

    def register_backward_hook(self, hook: Hook) -> RemovableHandle:
        """Refused with NotImplementedError: PyTorch's hooks of the last operation only, which it deprecates."""
        raise NotImplementedError("register_backward_hook: use register_full_backward_hook, which sees all inputs")

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before the module's part of a state_dict is collected."""
        return self._add_hook("_state_dict_pre_hooks", hook, False)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after it; the hook changes the dict in place."""
        return self._add_hook("_state_dict_hooks", StateHook(hook, public=True), False)

    def _register_state_dict_hook(self, hook: Hook) -> RemovableHandle:
        """As `register_state_dict_post_hook`, but what the hook returns (None: nothing) replaces the dict."""
        return self._add_hook("_state_dict_hooks", StateHook(hook, public=False), False)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)` before loading."""
        return self._add_hook("_load_state_dict_pre_hooks", LoadHook(hook, with_module=True), False)

    def _register_load_state_dict_pre_hook(self, hook: Hook, with_module: bool = False) -> RemovableHandle:
        """As `register_load_state_dict_pre_hook`; without `with_module` the hook is not given the module."""
        return self._add_hook("_load_state_dict_pre_hooks", LoadHook(hook, with_module), False)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading; it may change the lists in place."""
        return self._add_hook("_load_state_dict_post_hooks", hook, False)

    def _add_hook(self, table: str, hook: Any, prepend: bool) -> RemovableHandle:
        hooks: OrderedDict[int, Any] = self.__dict__[table]
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        if table in _OF_CALLS:
            self.__dict__["_hooked"] = True
        return handle

    def _call_hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called: set[int] = set()
        try:
            args, kwargs = self._run_pre_hooks(args, kwargs)
            backward = backward_hooks.begin(self, args)
            output = self.forward(*(args if backward is None else backward.args), **kwargs)
            for key, hook in hooks_of(self, "_forward_hooks"):
                called.add(key)
                replaced = hook.call(self, args, kwargs, output) if hook.with_kwargs else hook.call(self, args, output)
                output = output if replaced is None else replaced
            return output if backward is None else backward.end(output)
        except Exception:
            for key, hook in hooks_of(self, "_forward_hooks"):
                if hook.always_call and key not in called:
                    hook.call(self, args, kwargs, None) if hook.with_kwargs else hook.call(self, args, None)
            raise

    def _run_pre_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for _, hook in hooks_of(self, "_forward_pre_hooks"):
            if not hook.with_kwargs:
                replaced = hook.call(self, args)
                if replaced is not None:
                    args = replaced if isinstance(replaced, tuple) else (replaced,)
                continue
            replaced = hook.call(self, args, kwargs)
            if replaced is not None:
                if not isinstance(replaced, tuple) or len(replaced) != 2:
                    raise TypeError(
                        f"a forward pre-hook with kwargs must return None or (args, kwargs), got {replaced!r}"
                    )
                args, kwargs = replaced
        return args, kwargs
