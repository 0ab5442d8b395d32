"""Module: a tree of parameters, buffers and sub-modules with a forward function. Semantics of torch.nn.Module."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

from resilin.core import dtype as dtypes
from resilin.core.hooks import RemovableHandle
from resilin.core.ops.creation import empty_like
from resilin.core.tensor import Parameter, Tensor
from resilin.nn.modules import backward_hooks, state
from resilin.nn.modules.state import IncompatibleKeys

Hook = Callable[..., Any]


class _ForwardHook(NamedTuple):
    call: Hook
    with_kwargs: bool
    always_call: bool


class Module:
    """Base of all layers and models: assign parameters, buffers and modules as attributes and define `forward`.

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(784, 10)
            def forward(self, x):
                return self.fc(x)

    Names, order of registration (which is the order of `parameters()` and `state_dict()`) and hooks are PyTorch's.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent: set[str]
    _forward_pre_hooks: OrderedDict[int, _ForwardHook]
    _forward_hooks: OrderedDict[int, _ForwardHook]
    _backward_pre_hooks: OrderedDict[int, Hook]
    _backward_hooks: OrderedDict[int, Hook]
    _state_dict_pre_hooks: OrderedDict[int, Hook]
    _state_dict_hooks: OrderedDict[int, Hook]
    _load_pre_hooks: OrderedDict[int, Hook]
    _load_post_hooks: OrderedDict[int, Hook]
    _hooked: bool  # whether any forward or backward hook was ever registered: the fast path of calls

    def __init__(self) -> None:
        fields = self.__dict__
        fields["training"] = True
        fields["_hooked"] = False
        fields["_non_persistent"] = set()
        for name in ("_parameters", "_buffers", "_modules"):
            fields[name] = {}
        for name in _HOOK_TABLES:
            fields[name] = OrderedDict()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it. Call the module itself, so that hooks run."""
        raise NotImplementedError(f"{type(self).__name__} must define forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooked:
            return self._call_hooked(args, kwargs)
        return self.forward(*args, **kwargs)

    # ---- attributes ------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        fields = self.__dict__
        if "_modules" not in fields:
            if isinstance(value, Parameter | Module):
                raise AttributeError(f"{type(self).__name__}: call super().__init__() before assigning {name!r}")
            object.__setattr__(self, name, value)
            return
        if isinstance(value, Parameter):
            self._forget(name, keep="_parameters")
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            self._forget(name, keep="_modules")
            fields["_modules"][name] = value
        elif name in fields["_parameters"]:
            _expect(type(self), name, value, "a Parameter")
            fields["_parameters"][name] = None
        elif name in fields["_modules"]:
            _expect(type(self), name, value, "a Module")
            fields["_modules"][name] = None
        elif name in fields["_buffers"]:
            if value is not None and not isinstance(value, Tensor):
                _expect(type(self), name, value, "a Tensor")
            fields["_buffers"][name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__  # every access to a parameter comes here: unrolled, 0.2 us less per access
        if "_modules" in fields:
            if name in fields["_parameters"]:
                return fields["_parameters"][name]
            if name in fields["_modules"]:
                return fields["_modules"][name]
            if name in fields["_buffers"]:
                return fields["_buffers"][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                self._non_persistent.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._parameters, *self._buffers, *self._modules})

    def _forget(self, name: str, keep: str) -> None:
        """Remove `name` from every place but the table `keep`, where it is about to be written."""
        self.__dict__.pop(name, None)
        for table in {"_parameters", "_buffers", "_modules"} - {keep}:
            self.__dict__[table].pop(name, None)
        self._non_persistent.discard(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; None reserves the name, so that it is known to be absent (as a Linear without bias)."""
        self._check_name(name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"register_parameter({name!r}): expected a Parameter or None, got {type(param).__name__}")
        if param is not None and param.grad_fn is not None:
            raise ValueError(f"register_parameter({name!r}): a parameter must be a leaf; detach() it first")
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that belongs to the module's state but is not trained; not persistent: not in state_dict()."""
        self._check_name(name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"register_buffer({name!r}): expected a Tensor or None, got {type(tensor).__name__}")
        self._buffers[name] = tensor
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a sub-module under `name`."""
        self._check_name(name, "_modules")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"add_module({name!r}): expected a Module or None, got {type(module).__name__}")
        self._modules[name] = module

    register_module = add_module

    def _check_name(self, name: str, table: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}: call super().__init__() before registering {name!r}")
        if not isinstance(name, str):
            raise TypeError(f"names of parameters, buffers and modules are strings, got {type(name).__name__}")
        if not name or "." in name:
            raise KeyError(f"a name must not be empty or contain '.', got {name!r}")
        if hasattr(self, name) and name not in self.__dict__[table]:
            raise KeyError(f"{type(self).__name__} already has an attribute {name!r}")

    def get_submodule(self, target: str) -> Module:
        """The module at the dotted path `target`; "" is this one. AttributeError says which part is missing."""
        module: Module = self
        for part in target.split(".") if target else ():
            found = getattr(module, part, None)
            if not isinstance(found, Module):
                raise AttributeError(f"{type(module).__name__} has no module {part!r} (looking for {target!r})")
            module = found
        return module

    def set_submodule(self, target: str, module: Module) -> None:
        """Put `module` at the dotted path `target`, whose parent must exist."""
        path, _, name = target.rpartition(".")
        if not name:
            raise ValueError("set_submodule: the path must not be empty")
        setattr(self.get_submodule(path), name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at the dotted path `target`."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer at the dotted path `target`."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return found

    # ---- walking ---------------------------------------------------------------------------------------------------

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with their dotted paths, parents first."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules with their names, each once."""
        seen: set[Module] = set()
        for name, module in self._modules.items():
            if module is not None and module not in seen:
                seen.add(module)
                yield name, module

    def children(self) -> Iterator[Module]:
        """Direct sub-modules, each once."""
        return (module for _, module in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with their dotted names, in order of registration; a shared one under its first name."""
        return self._named_members("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters, each once, in order of registration."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Buffers with their dotted names, in order of registration."""
        return self._named_members("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Buffers, each once, in order of registration."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def _named_members(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in modules:
            for name, member in module.__dict__[table].items():
                if member is None or id(member) in seen:
                    continue
                if remove_duplicate:
                    seen.add(id(member))
                yield (f"{path}.{name}" if path else name), member

    # ---- changing the whole tree -----------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """Put the tree into training mode (dropout, batch statistics), or out of it."""
        if not isinstance(mode, bool):
            raise ValueError(f"train(mode): expected a bool, got {type(mode).__name__}")
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """`train(False)`."""
        return self.train(False)

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call `fn` with every module, children first."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set `requires_grad` of every parameter."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every parameter's gradient, or set it to zero in place."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad = parameter.grad.detach()
                parameter.grad.zero_()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert parameters and buffers in place; arguments as `Tensor.to`. A dtype changes floats only."""

        for wanted in (*args, kwargs.get("dtype")):
            if isinstance(wanted, dtypes.dtype) and not (wanted.is_floating_point or wanted.is_complex):
                raise TypeError(
                    f"nn.Module.to only accepts floating point or complex dtypes, but got desired dtype={wanted}"
                )

        def convert(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point() or tensor.is_complex():
                converted: Tensor = tensor.to(*args, **kwargs)
                return converted
            moved = [arg for arg in args if not isinstance(arg, dtypes.dtype)]
            left = {key: value for key, value in kwargs.items() if key != "dtype"}
            kept: Tensor = tensor.to(*moved, **left) if moved or left else tensor
            return kept

        return self._apply(convert)

    def float(self) -> Self:
        """Convert floating point parameters and buffers to float32."""
        return self.to(dtypes.float32)

    def double(self) -> Self:
        """Convert floating point parameters and buffers to float64."""
        return self.to(dtypes.float64)

    def half(self) -> Self:
        """Convert floating point parameters and buffers to float16."""
        return self.to(dtypes.float16)

    def bfloat16(self) -> Self:
        """Convert floating point parameters and buffers to bfloat16."""
        return self.to(dtypes.bfloat16)

    def cpu(self) -> Self:
        """Move parameters and buffers to the CPU."""
        return self.to("cpu")

    def cuda(self, device: int | None = None) -> Self:
        """Move parameters and buffers to a GPU (default: the first)."""
        return self.to("cuda" if device is None else f"cuda:{device}")

    def type(self, dst_type: Any) -> Self:
        """Convert all parameters and buffers, integers too, to the dtype `dst_type`."""
        return self._apply(lambda tensor: tensor.type(dst_type))

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """Move parameters and buffers to `device` without their values: new memory, to be written before it is read."""
        return self._apply(lambda tensor: empty_like(tensor, device=device), recurse)

    def share_memory(self) -> Self:
        """Refused with NotImplementedError: processes do not see one another's writes to parameters."""
        raise NotImplementedError(
            "share_memory: parameters written by one process are not seen by others; train with "
            "DistributedDataParallel, or send state_dict() to the other process"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Replace the value of every parameter and buffer by `fn` of it; parameters keep their identity."""
        for parameter in self.parameters(recurse):
            parameter.data = fn(parameter.data)
            if parameter.grad is not None:
                parameter._grad = fn(parameter.grad.detach())
        done: dict[int, Tensor] = {}
        for module in self.modules() if recurse else (self,):
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    done.setdefault(id(buffer), fn(buffer))
                    module._buffers[name] = done[id(buffer)]
        return self

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name: detached tensors that share memory with the module's.

        keep_vars: the parameters themselves instead.
        """
        return state.collect(self, OrderedDict() if destination is None else destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy `state_dict` into the module's parameters and buffers.

        strict: names must match exactly. assign: take the tensors themselves instead of copying their values.
        Returns the missing and unexpected names. Raises: UsageError that lists every missing and unexpected name
        (strict) and every shape that differs; what fits has been loaded then, as in PyTorch.
        """
        return state.load(self, state_dict, strict, assign)

    def get_extra_state(self) -> Any:
        """Override together with `set_extra_state` to keep something that is not a tensor in `state_dict()`."""
        raise NotImplementedError(f"{type(self).__name__} overrides set_extra_state but not get_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Take back what `get_extra_state` gave."""
        raise NotImplementedError(f"{type(self).__name__} overrides get_extra_state but not set_extra_state")

    # ---- hooks -----------------------------------------------------------------------------------------------------

    def register_forward_pre_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args)` before forward; what it returns replaces the arguments (None: unchanged)."""
        return self._add_hook("_forward_pre_hooks", _ForwardHook(hook, with_kwargs, False), prepend)

    def register_forward_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> RemovableHandle:
        """Call `hook(module, args, output)` after forward; what it returns replaces the output (None: unchanged).

        with_kwargs: `hook(module, args, kwargs, output)`. always_call: also when forward or another hook raised.
        """
        return self._add_hook("_forward_hooks", _ForwardHook(hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_output)` before the module's backward; it may return a replacement."""
        return self._add_hook("_backward_pre_hooks", hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> RemovableHandle:
        """Call `hook(module, grad_input, grad_output)` when the gradients of the module's inputs are known.

        It may return a replacement for grad_input. Entries are None for arguments that are no tensors or need none.
        """
        return self._add_hook("_backward_hooks", hook, prepend)

    def register_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before the module's part of a state_dict is collected."""
        return self._add_hook("_state_dict_pre_hooks", hook, False)

    def register_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` after it; the hook changes the dict in place."""
        return self._add_hook("_state_dict_hooks", hook, False)

    def register_load_state_dict_pre_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, metadata, strict, missing, unexpected, errors)` before loading."""
        return self._add_hook("_load_pre_hooks", hook, False)

    def register_load_state_dict_post_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` after loading; it may change the lists in place."""
        return self._add_hook("_load_post_hooks", hook, False)

    def _add_hook(self, table: str, hook: Any, prepend: bool) -> RemovableHandle:
        hooks: OrderedDict[int, Any] = self.__dict__[table]
        handle = RemovableHandle(hooks)
        hooks[handle.id] = hook
        if prepend:
            hooks.move_to_end(handle.id, last=False)
        if table in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
            self.__dict__["_hooked"] = True
        return handle

    def _call_hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        called: set[int] = set()
        try:
            args, kwargs = self._run_pre_hooks(args, kwargs)
            backward = backward_hooks.begin(self, args)
            output = self.forward(*(args if backward is None else backward.args), **kwargs)
            for key, hook in list(self._forward_hooks.items()):
                called.add(key)
                replaced = hook.call(self, args, kwargs, output) if hook.with_kwargs else hook.call(self, args, output)
                output = output if replaced is None else replaced
            return output if backward is None else backward.end(output)
        except Exception:
            for key, hook in list(self._forward_hooks.items()):
                if hook.always_call and key not in called:
                    hook.call(self, args, kwargs, None) if hook.with_kwargs else hook.call(self, args, None)
            raise

    def _run_pre_hooks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        for hook in list(self._forward_pre_hooks.values()):
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

    # ---- printing --------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What `repr` shows of the module itself."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = extra.split("\n") if extra else []
        children = [f"({name}): {_indent(repr(module))}" for name, module in self._modules.items()]
        if not children and len(lines) <= 1:
            return f"{self._get_name()}({extra})"
        return f"{self._get_name()}(\n  " + "\n  ".join(itertools.chain(lines, children)) + "\n)"


_HOOK_TABLES = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_pre_hooks",
    "_load_post_hooks",
)


def _expect(owner: type, name: str, value: Any, what: str) -> None:
    if value is not None:
        raise TypeError(f"{owner.__name__}.{name} holds {what}: assign {what} or None, not {type(value).__name__}")


def _indent(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])
