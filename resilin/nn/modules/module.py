"""Module: a tree of parameters, buffers and sub-modules with a forward function. Semantics of torch.nn.Module."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from resilin.core.public import error_context
from resilin.core.state.write_log import LOGS, before_assignment
from resilin.core.tensor import Parameter, Tensor
from resilin.nn.modules import state
from resilin.nn.modules.conversion import Convertible
from resilin.nn.modules.global_hooks import (
    EVERYWHERE,
    register_module_backward_hook,
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
    registered,
)
from resilin.nn.modules.hooks import Hooked
from resilin.nn.modules.state import IncompatibleKeys
from resilin.nn.modules.utils import _addindent  # noqa: F401 - programs print their own modules with it
from resilin.nn.parameter import Buffer

__all__ = [
    "Module",
    "register_module_backward_hook",
    "register_module_buffer_registration_hook",
    "register_module_forward_hook",
    "register_module_forward_pre_hook",
    "register_module_full_backward_hook",
    "register_module_full_backward_pre_hook",
    "register_module_module_registration_hook",
    "register_module_parameter_registration_hook",
]

_IncompatibleKeys = IncompatibleKeys  # PyTorch's name


class Module(Convertible, Hooked):
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
    _non_persistent_buffers_set: set[str]
    _version: int = 1  # of its state, for `_load_from_state_dict`, which gets that of what it loads as local_metadata
    call_super_init: bool = False  # whether __init__ goes on to the next class with its arguments

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if (args or kwargs) and not self.call_super_init:
            unexpected = f"argument {next(iter(kwargs))!r}" if kwargs else f"{len(args)} arguments"
            raise TypeError(f"{type(self).__name__}: Module.__init__() got unexpected {unexpected}")
        fields = self.__dict__
        fields["training"] = True
        fields["_non_persistent_buffers_set"] = set()
        for name in ("_parameters", "_buffers", "_modules"):
            fields[name] = {}
        self._make_hook_tables()
        if self.call_super_init:
            super().__init__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it. Call the module itself, so that hooks run."""
        raise NotImplementedError(f"{type(self).__name__} must define forward()")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._hooked or EVERYWHERE:
            return self._call_hooked(args, kwargs)
        try:
            return self.forward(*args, **kwargs)
        except AttributeError as error:
            made = error_context.wrong_argument(type(self).__name__, (*args, *kwargs.values()), error)
            if made is error:
                raise
            raise made from error

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
            fields["_modules"][name] = registered("_modules", self, name, value)
        elif isinstance(value, Buffer):
            self._forget(name, keep="_buffers")
            self.register_buffer(name, value, value.persistent)
        elif name in fields["_parameters"]:
            _expect(type(self), name, value, "a Parameter")
            fields["_parameters"][name] = None
        elif name in fields["_modules"]:
            _expect(type(self), name, value, "a Module")
            fields["_modules"][name] = None
        elif name in fields["_buffers"]:
            if value is not None and not isinstance(value, Tensor):
                _expect(type(self), name, value, "a Tensor")
            if LOGS:
                before_assignment(fields["_buffers"], name)
            fields["_buffers"][name] = registered("_buffers", self, name, value)
        else:
            if LOGS:
                before_assignment(fields, name)
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
                self._non_persistent_buffers_set.discard(name)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._parameters, *self._buffers, *self._modules})

    def _forget(self, name: str, keep: str) -> None:
        """Remove `name` from every place but the table `keep`, where it is about to be written."""
        self.__dict__.pop(name, None)
        for table in {"_parameters", "_buffers", "_modules"} - {keep}:
            self.__dict__[table].pop(name, None)
        self._non_persistent_buffers_set.discard(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter; None reserves the name, so that it is known to be absent (as a Linear without bias)."""
        self._check_name(name, "_parameters")
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(f"register_parameter({name!r}): expected a Parameter or None, got {type(param).__name__}")
        if param is not None and param.grad_fn is not None:
            raise ValueError(f"register_parameter({name!r}): a parameter must be a leaf; detach() it first")
        self._parameters[name] = registered("_parameters", self, name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that belongs to the module's state but is not trained; not persistent: not in state_dict()."""
        self._check_name(name, "_buffers")
        if tensor is not None and not isinstance(tensor, Tensor):
            raise TypeError(f"register_buffer({name!r}): expected a Tensor or None, got {type(tensor).__name__}")
        before_assignment(self._buffers, name)
        self._buffers[name] = registered("_buffers", self, name, tensor)
        (self._non_persistent_buffers_set.discard if persistent else self._non_persistent_buffers_set.add)(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a sub-module under `name`."""
        self._check_name(name, "_modules")
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"add_module({name!r}): expected a Module or None, got {type(module).__name__}")
        self._modules[name] = registered("_modules", self, name, module)

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

    def set_submodule(self, target: str, module: Module, strict: bool = False) -> None:
        """Put `module` at the dotted path `target`, whose parent must exist; strict: it must replace a module."""
        path, _, name = target.rpartition(".")
        if not name:
            raise ValueError("set_submodule: the path must not be empty")
        if not isinstance(module, Module):
            raise ValueError(f"set_submodule({target!r}): expected a Module, got {type(module).__name__}")
        parent = self.get_submodule(path)
        if (strict or hasattr(parent, name)) and not isinstance(getattr(parent, name, None), Module):
            raise AttributeError(f"{type(parent).__name__} has no module {name!r} to replace (setting {target!r})")
        setattr(parent, name, module)

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at the dotted path `target`."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    def get_buffer(self, target: str) -> Tensor | None:
        """The buffer at the dotted path `target`; None where that is registered as absent."""
        path, _, name = target.rpartition(".")
        buffers = self.get_submodule(path)._buffers
        if name not in buffers:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return buffers[name]

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

    def modules(self, remove_duplicate: bool = True) -> Iterator[Module]:
        """This module and all below it, each once or as often as it occurs."""
        return (module for _, module in self.named_modules(remove_duplicate=remove_duplicate))

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
        self.training = mode
        for module in self.children():  # one at a time: some have a `train` of their own
            module.train(mode)
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

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name: detached tensors that share memory with the module's.

        keep_vars: the parameters themselves instead.
        """
        return state.collect(self, destination, prefix, keep_vars)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copy `state_dict` into the module's parameters and buffers.

        strict: names must match exactly. assign: take the tensors themselves instead of copying their values;
        parameters keep `requires_grad`.
        Returns the missing and unexpected names. Raises: UsageError that lists every missing and unexpected name
        (strict) and every shape that differs; what fits has been loaded then, as in PyTorch.
        """
        return state.load(self, state_dict, strict, assign)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Write this module's own state, without its sub-modules', into `destination`; subclasses may override it."""
        has_extra = type(self).get_extra_state is not Module.get_extra_state
        state.save_own(self, destination, prefix, keep_vars, has_extra)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Read this module's own state, without its sub-modules', from `state_dict`; subclasses may override it.

        Names and problems found are added to the lists. local_metadata: the `version` of the module that was saved.
        """
        has_extra = type(self).set_extra_state is not Module.set_extra_state
        found = state.Findings(missing_keys, unexpected_keys, error_msgs)
        state.load_own(self, state_dict, prefix, local_metadata, strict, found, has_extra)

    def get_extra_state(self) -> Any:
        """Override together with `set_extra_state` to keep something that is not a tensor in `state_dict()`."""
        raise NotImplementedError(f"{type(self).__name__} overrides set_extra_state but not get_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Take back what `get_extra_state` gave."""
        raise NotImplementedError(f"{type(self).__name__} overrides get_extra_state but not set_extra_state")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._make_hook_tables()  # a module that PyTorch saved has others
        self.__dict__.update(state)
        self._check_hooks(state)

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


def _expect(owner: type, name: str, value: Any, what: str) -> None:
    if value is not None:
        raise TypeError(f"{owner.__name__}.{name} holds {what}: assign {what} or None, not {type(value).__name__}")


def _indent(text: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *("  " + line for line in rest)])
