"""Operators by name: a schema, kernels by device, and a formula for gradients. How a call finds what to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from resilin.core.autocast import casting
from resilin.core.autocast import state as autocast
from resilin.core.autograd.function import run_batched
from resilin.core.autograd.grad_mode import is_grad_enabled, no_grad
from resilin.core.batching.active import ACTIVE, Unbatchable, batched_in
from resilin.core.public import dispatch
from resilin.core.tensor import Tensor
from resilin.core.trees import of_kind
from resilin.errors import UsageError
from resilin.library import formula
from resilin.library.schema import Schema, parsed

ANY_DEVICE, COMPOSITE, AUTOGRAD, FAKE = "any device", "composite", "autograd", "meta"
AUTOCAST = {"cpu": "autocast cpu", "cuda": "autocast cuda"}  # by the type of devices
# PyTorch's dispatch keys, and its device types, by what they are here
_KEYS = {
    "": ANY_DEVICE,
    "default": ANY_DEVICE,
    "BackendSelect": ANY_DEVICE,
    "CompositeExplicitAutograd": ANY_DEVICE,
    "CompositeExplicitAutogradNonFunctional": ANY_DEVICE,
    "CompositeImplicitAutograd": COMPOSITE,
    "Autograd": AUTOGRAD,
    "AutogradCPU": AUTOGRAD,
    "AutogradCUDA": AUTOGRAD,
    "Autocast": AUTOCAST["cuda"],
    "AutocastCPU": AUTOCAST["cpu"],
    "AutocastCUDA": AUTOCAST["cuda"],
    "Meta": FAKE,
    "CPU": "cpu",
    "CUDA": "cuda",
}
_LOCK = threading.Lock()
OPERATORS: dict[str, Operator] = {}  # by "namespace::name"; guarded by _LOCK
# What a package says of operators that would have come with a library for PyTorch's C++: kept for who defines them
_AWAITED: dict[str, Callable[..., Any]] = {}  # kernels without values, by name; guarded by _LOCK
refused_libraries: list[str] = []  # the paths of those libraries


def key_of(dispatch_key: str) -> str:
    """What a dispatch key or a type of devices means here; other ones are types of devices."""
    return _KEYS.get(dispatch_key, dispatch_key.lower())


class Operator:
    """An operator: called, it runs the kernel for its arguments. `default` and other overloads are itself."""

    def __init__(self, qualname: str, schema: Schema, *, is_custom: bool) -> None:
        self._qualname, self._schema, self._is_custom = qualname, schema, is_custom
        self.kernels: dict[str, Callable[..., Any]] = {}
        self.disabled: set[str] = set()  # types of devices whose kernels are not used
        self.backward: Callable[..., Any] | None = None
        self.setup_context: Callable[..., Any] | None = None
        self.vmap: Callable[..., Any] | None = None  # (info, in_dims, *args, **kwargs) -> (output, out_dims)
        self.__name__ = self.__qualname__ = qualname.replace("::", ".")
        self.__module__ = "resilin.ops"

    @property
    def default(self) -> Operator:
        """The operator itself, which has one overload."""
        return self

    def overloads(self) -> list[str]:
        """Return the names of the overloads."""
        return ["default"]

    def name(self) -> str:
        """Return its full name, "namespace::name"."""
        return self._qualname

    def __repr__(self) -> str:
        return f"<operator {self._qualname}{self._schema.text}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = dispatch.overriding([*args, *kwargs.values()]) if dispatch.enabled() else []
        if found or dispatch.is_changed():
            return dispatch.offer(self, found, args, kwargs) if found else self.run(args, kwargs)
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the kernel for these arguments; where gradients are asked for, with the formula."""
        try:
            bound = self._schema.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise RuntimeError(f"{self._qualname}{self._schema.text}: {error}") from None
        self._schema.take(bound, self._qualname)
        batched = ACTIVE and batched_in((*bound.args, *bound.kwargs.values()))
        if batched and self.vmap is not None:
            return run_batched(f"{self._qualname}'s vmap function", self.vmap, bound.args, bound.kwargs)
        bound.apply_defaults()
        tensors = list(of_kind(Tensor, (*bound.args, *bound.kwargs.values())))
        for kind in autocast.here.enabled:
            casting_kernel = self.kernels.get(AUTOCAST[kind])
            if casting_kernel is not None and any(tensor.device.type == kind for tensor in tensors):
                with casting.without(kind):
                    return casting_kernel(*bound.args, **bound.kwargs)
        if AUTOGRAD in self.kernels:
            return self.kernels[AUTOGRAD](*bound.args, **bound.kwargs)
        kernel, is_composite = self._kernel(tensors)
        is_recorded = is_composite or not (self._is_custom or self.backward)
        if is_recorded:
            return kernel(*bound.args, **bound.kwargs)
        if batched:
            raise Unbatchable  # its kernel is for plain tensors: vmap goes sample by sample
        if self._schema.mutated or not (is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
            with no_grad():
                return self._checked(kernel(*bound.args, **bound.kwargs), bound.arguments, tensors)
        return formula.run(self, kernel, bound, lambda result: self._checked(result, bound.arguments, tensors))

    def _kernel(self, tensors: Iterable[Tensor]) -> tuple[Callable[..., Any], bool]:
        types = {tensor.device.type for tensor in tensors} or {"cpu"}
        kind = next(iter(types - {"cpu"}), "cpu")
        for key in (kind, ANY_DEVICE, COMPOSITE):
            if key in self.kernels and key not in self.disabled:
                return self.kernels[key], key == COMPOSITE
        there = ", ".join(sorted(self.kernels)) or "none"
        raise NotImplementedError(
            f"Could not run '{self._qualname}' with arguments from the '{kind.upper()}' backend: it has kernels for "
            f"{there}; register one by resilin.library.impl or register_kernel"
        )

    def _checked(self, result: Any, arguments: dict[str, Any], tensors: list[Tensor]) -> Any:
        if not self._is_custom:
            return result
        memory = {tensor.untyped_storage().data_ptr() for tensor in tensors if has_memory(tensor)}
        for made in of_kind(Tensor, (result,)):
            if has_memory(made) and made.untyped_storage().data_ptr() in memory:
                raise RuntimeError(
                    f"{self._qualname}: The output of this custom operator (1) must not also be an input to this "
                    "custom operator and (2) may not alias any inputs to this custom operator: return a clone of it"
                )
        for name in self._schema.mutated:
            for tensor in of_kind(Tensor, (arguments[name],)):
                tensor._bump()  # a kernel may have written by other means than tensors' methods
        return result


def has_memory(tensor: Tensor) -> bool:
    """Whether elements of `tensor` lie somewhere: there are some, and not on the device "meta"."""
    return bool(tensor.numel()) and not tensor.is_meta


def register(qualname: str, schema: str, *, is_custom: bool = False, again: bool = False) -> Operator:
    """Enter an operator. UsageError for a name without a namespace, RuntimeError for one that is taken."""
    namespace, separator, name = qualname.partition("::")
    if not (separator and namespace and name):
        raise UsageError(f"expected an operator's name as 'NAMESPACE::NAME', got {qualname!r}")
    made = Operator(qualname, parsed(schema), is_custom=is_custom)
    with _LOCK:
        if qualname in OPERATORS and not again:
            raise RuntimeError(
                f"Tried to register an operator ({qualname}{schema}) with the same name and overload name multiple "
                "times: give it another name"
            )
        OPERATORS[qualname] = made
        if qualname in _AWAITED:
            made.kernels[FAKE] = _AWAITED[qualname]
    return made


def await_operator(qualname: str, fake: Callable[..., Any]) -> bool:
    """Keep a kernel without values of an operator that is not there. False where no library can have lacked it."""
    with _LOCK:
        if qualname in OPERATORS or not refused_libraries:
            return False
        _AWAITED[qualname] = fake
    return True


def lacking(qualname: str) -> str:
    """Say that there is no such operator, and where it may have come from."""
    came = f"; it may be one of {', '.join(refused_libraries)}, in C++ for PyTorch" if refused_libraries else ""
    return f"there is no operator {qualname!r}{came}: define it by resilin.library.define or custom_op first"


def forget(qualnames: Iterable[str]) -> None:
    """Take operators away."""
    with _LOCK:
        for qualname in qualnames:
            OPERATORS.pop(qualname, None)


def operator(qualname: str) -> Operator:
    """Return an operator. RuntimeError where there is none."""
    with _LOCK:
        found = OPERATORS.get(qualname)
    if found is None:
        raise RuntimeError(lacking(qualname))
    return found


def namespaces() -> set[str]:
    """Return the names of all namespaces."""
    with _LOCK:
        return {qualname.partition("::")[0] for qualname in OPERATORS}
