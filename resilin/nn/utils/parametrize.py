"""Parametrization: a parameter or buffer of a module is computed from others whenever it is read.

module.weight ──property──► module.parametrizations.weight() = p1(p0(original))
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Parameter, Tensor
from resilin.nn.modules.container import ModuleDict, ModuleList
from resilin.nn.modules.module import Module

_cache: dict[tuple[int, str], Any] = {}  # values of parametrized tensors while `cached` is open
_caching = [0]  # how many `cached` are open


@contextmanager
def cached() -> Iterator[None]:
    """Within this context each parametrized tensor is computed once, when it is first read."""
    _caching[0] += 1
    try:
        yield
    finally:
        _caching[0] -= 1
        if not _caching[0]:
            _cache.clear()


class ParametrizationList(ModuleList):
    """The parametrizations of one tensor, in order, and what they start from.

    original: the tensor they start from, or original0, original1, ... when the first one takes several.
    unsafe: results are not compared with the tensor they replace.
    """

    original: Any

    def __init__(self, modules: Sequence[Module], original: Tensor, unsafe: bool = False) -> None:
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        with no_grad():
            new = _invert(modules, original)
        self.is_tensor = isinstance(new, Tensor)
        if self.is_tensor:
            _same("right_inverse", new, original, shapes=False, unsafe=unsafe)
            original.data = new.detach()
            _place(self, "original", original)
        else:
            if not isinstance(new, Sequence) or not all(isinstance(part, Tensor) for part in new):
                raise ValueError(f"right_inverse must return a Tensor or a sequence of them, got {type(new).__name__}")
            self.ntensors = len(new)
            for number, part in enumerate(new):
                value = part.detach().clone()
                kept = Parameter(value, original.requires_grad) if isinstance(original, Parameter) else value
                _place(self, f"original{number}", kept)
        if not unsafe:
            _same("a parametrization", self(), original, shapes=True, unsafe=False)

    def right_inverse(self, value: Tensor) -> None:
        """Set the originals so that the parametrized tensor is `value`, as far as the parametrizations can be undone.

        Raises: RuntimeError when one has no right_inverse.
        """
        with no_grad():
            for module in reversed(list(self)):
                if not hasattr(module, "right_inverse"):
                    raise RuntimeError(
                        f"parametrization {type(module).__name__} does not implement right_inverse, "
                        "so that the tensor cannot be assigned"
                    )
                value = module.right_inverse(value)
            news = [value] if self.is_tensor else list(value)
            for old, new in zip(self._originals(), news, strict=True):
                _same("right_inverse", new, old, shapes=False, unsafe=self.unsafe)
                old.data = new.detach().clone() if new.is_leaf else new.detach()

    def _originals(self) -> list[Any]:
        if self.is_tensor:
            return [self.original]
        return [getattr(self, f"original{number}") for number in range(self.ntensors)]

    def forward(self) -> Tensor:
        """The parametrized tensor."""
        first, *others = list(self)
        value: Tensor = first(*self._originals())
        for module in others:
            value = module(value)
        return value


def _invert(modules: Sequence[Module], value: Any) -> Any:
    for module in reversed(list(modules)):
        if hasattr(module, "right_inverse"):
            try:
                value = module.right_inverse(value)
            except NotImplementedError:  # says that it has none: the value itself is where it starts
                continue
    return value


def _place(owner: Module, name: str, value: Tensor) -> None:
    if isinstance(value, Parameter):
        owner.register_parameter(name, value)
    else:
        owner.register_buffer(name, value)


def _same(what: str, got: Any, expected: Tensor, *, shapes: bool, unsafe: bool) -> None:
    """ValueError unless `got` can stand for `expected`."""
    if not isinstance(got, Tensor):
        raise ValueError(f"{what} must return a tensor, got {type(got).__name__}")
    if not unsafe and got.dtype != expected.dtype:
        raise ValueError(f"{what} may not change the dtype, got {got.dtype}, expected {expected.dtype}; or unsafe=True")
    if shapes and got.shape != expected.shape:
        raise ValueError(
            f"{what} may not change the shape, got {tuple(got.shape)}, expected {tuple(expected.shape)}; or unsafe=True"
        )


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether `module` has a parametrized tensor, or one of this name."""
    lists = module.__dict__.get("_modules", {}).get("parametrizations")
    if not isinstance(lists, ModuleDict):
        return False
    return bool(len(lists)) if tensor_name is None else tensor_name in lists


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """Compute `module.<tensor_name>` as parametrization(original) from now on; again: after those it has.

    The tensor becomes `module.parametrizations.<tensor_name>.original`; a parametrization with `right_inverse` says
    where to start, and makes assigning the tensor possible. A right_inverse that gives several tensors has a forward
    that takes as many: they are original0, original1, ...
    Raises: ValueError when the module has no such tensor, or dtype or shape would change (unless unsafe).
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        parts: Any = module.parametrizations[tensor_name]
        if not unsafe:
            before = getattr(module, tensor_name)
            _same("a parametrization", parametrization(before), before, shapes=True, unsafe=False)
        parts.append(parametrization)
        parts.unsafe = parts.unsafe or unsafe
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ValueError(
            f"Module '{type(module).__name__}' does not have a parameter, a buffer, or a parametrized element "
            f"with name '{tensor_name}'"
        )
    found = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        module.__class__ = _parametrized_class(type(module))
        module.parametrizations = ModuleDict()
    setattr(type(module), tensor_name, _property(tensor_name))
    module.parametrizations[tensor_name] = found
    return module


def _parametrized_class(cls: type[Module]) -> type[Module]:
    """A class of its own for one module, where properties can be put."""
    return type(f"Parametrized{cls.__name__}", (cls,), {"__deepcopy__": _deepcopy, "__reduce_ex__": _refuse_pickling})


def _deepcopy(module: Module, memo: dict[int, Any]) -> Module:
    cls = type(module)
    own = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    made: Module = object.__new__(type(cls.__name__, cls.__bases__, own))
    memo[id(module)] = made
    made.__dict__.update(copy.deepcopy(module.__dict__, memo))
    return made


def _refuse_pickling(module: Module, protocol: Any) -> Any:
    raise RuntimeError("Serialization of parametrized modules is only supported through state_dict()")


def _property(name: str) -> property:
    def read(module: Any) -> Any:
        if not _caching[0]:
            return module.parametrizations[name]()
        key = id(module), name
        if key not in _cache:
            _cache[key] = module.parametrizations[name]()
        return _cache[key]

    def write(module: Any, value: Tensor) -> None:
        module.parametrizations[name].right_inverse(value)

    return property(read, write)


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make `module.<tensor_name>` a plain tensor again: with its present value, or the original one.

    Raises: ValueError when it is not parametrized, or has several originals and leave_parametrized=False.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {type(module).__name__} does not have a parametrization on {tensor_name}")
    parts: Any = module.parametrizations[tensor_name]
    if not parts.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms of a "
            "sequence of tensors."
        )
    first = parts._originals()[0]
    original = first
    if leave_parametrized:
        with no_grad():
            value = getattr(module, tensor_name).detach().clone()
        if parts.is_tensor:
            original.data = value
        else:
            original = Parameter(value, first.requires_grad) if isinstance(first, Parameter) else value
    delattr(type(module), tensor_name)
    del module.parametrizations[tensor_name]
    _place(module, tensor_name, original)
    if not is_parametrized(module):
        del module.parametrizations
        module.__class__ = type_before_parametrizations(module, parametrized=True)
    return module


def type_before_parametrizations(module: Module, parametrized: bool | None = None) -> type[Module]:
    """The class of `module` as it was before any parametrization."""
    wrapped = is_parametrized(module) if parametrized is None else parametrized
    return type(module).__bases__[0] if wrapped else type(module)
