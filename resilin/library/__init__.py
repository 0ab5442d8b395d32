"""Operators of programs, under the names of torch.library: `custom_op`, or a `Library` of schemas and kernels.

They are called by what `custom_op` returns, or as `resilin.ops.NAMESPACE.NAME`. See README.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from resilin.library import checking, registry
from resilin.library.custom_ops import CustomOpDef, custom_op
from resilin.library.schema import infer_schema

__all__ = [
    "CustomOpDef",
    "Library",
    "custom_op",
    "define",
    "fallthrough_kernel",
    "impl",
    "impl_abstract",
    "infer_schema",
    "opcheck",
    "register_autocast",
    "register_autograd",
    "register_fake",
    "register_kernel",
    "register_torch_dispatch",
    "register_vmap",
]


class Library:
    """Operators of the namespace `ns`: kind "DEF" defines it, "FRAGMENT" adds to it, "IMPL" adds kernels alone.

    RuntimeError for a second "DEF" of a namespace.
    """

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("DEF", "FRAGMENT", "IMPL"):
            raise ValueError(f"Unsupported library kind: {kind!r}: expected DEF, FRAGMENT or IMPL")
        if kind == "DEF" and ns in _defined:
            raise RuntimeError(
                f"Only a single Library of kind DEF can be used to register the namespace {ns}: use FRAGMENT"
            )
        if kind == "DEF":
            _defined.add(ns)
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key
        self._op_defs: set[str] = set()

    def __repr__(self) -> str:
        return f"Library(kind={self.kind}, ns={self.ns}, dispatch_key={self.dispatch_key})"

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """Enter an operator, "NAME(TYPE NAME, ...) -> TYPE", and return its name. RuntimeError if it is there."""
        found = re.match(r"\s*([\w.]+)\s*(\(.*)", schema, re.DOTALL)
        if found is None:
            raise RuntimeError(f"Library.define(): expected 'NAME(TYPE NAME, ...) -> TYPE', got {schema!r}")
        name = found[1].removesuffix(".default")
        self._op_defs.add(registry.register(f"{self.ns}::{name}", found[2]).name())
        return name

    def impl(
        self,
        op_name: Any,
        fn: Callable[..., Any],
        dispatch_key: str = "",
        *,
        with_keyset: bool = False,
        allow_override: bool = False,
    ) -> None:
        """Run `fn` for an operator where `dispatch_key` says: "CPU", "CUDA", "Autograd", "Meta", or a composite key.

        RuntimeError for an operator that is not defined, and for a second kernel unless `allow_override`.
        """
        name = op_name if isinstance(op_name, str) else op_name.name()
        qualname = name if "::" in name else f"{self.ns}::{name}"
        found = registry.operator(qualname.removesuffix(".default"))
        key = registry.key_of(dispatch_key or self.dispatch_key or "CompositeImplicitAutograd")
        if key in found.kernels and not allow_override:
            raise RuntimeError(f"{found.name()} has a kernel for {key} already: give allow_override=True to replace it")
        found.kernels[key] = fn

    def _register_fake(self, op_name: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.impl(op_name, fn, "Meta", allow_override=True)

    def _destroy(self) -> None:
        registry.forget(self._op_defs)
        if self.kind == "DEF":
            _defined.discard(self.ns)


_defined: set[str] = set()


def _operator(op: Any) -> registry.Operator:
    if isinstance(op, CustomOpDef):
        return op._opoverload
    return op if isinstance(op, registry.Operator) else registry.operator(str(op).removesuffix(".default"))


def define(qualname: str, schema: Any = None, *, lib: Library | None = None, tags: Any = ()) -> Any:
    """Enter an operator "NAMESPACE::NAME" with a schema "(TYPE NAME, ...) -> TYPE"."""
    made = registry.register(qualname, schema)
    if lib is not None:
        lib._op_defs.add(made.name())


def impl(qualname: Any, types: str | Sequence[str], func: Any = None, *, lib: Library | None = None) -> Any:
    """Run a function for an operator on types of devices ("cpu", "cuda", "default" for all); also a decorator.

    `impl(library, NAME, dispatch_key)` is a decorator, too.
    """
    if isinstance(qualname, Library):
        library, name, key = qualname, str(types), func or ""

        def decorate(function: Any) -> Any:
            library.impl(name, function, key)
            return function

        return decorate
    if func is None:
        return lambda function: impl(qualname, types, function, lib=lib) or function
    for kind in [types] if isinstance(types, str) else types:
        _operator(qualname).kernels[registry.key_of(kind)] = func
    return None


def register_kernel(
    op: Any, device_types: str | Sequence[str] | None, func: Any = None, /, *, lib: Library | None = None
) -> Any:
    """Run a function for an operator on these types of devices, None for all; also a decorator."""
    if func is None:
        return lambda function: register_kernel(op, device_types, function, lib=lib)
    kinds = [device_types] if isinstance(device_types, str) else device_types or ["default"]
    impl(op, kinds, func, lib=lib)
    return func


def register_fake(op: Any, func: Any = None, /, *, lib: Library | None = None, **options: Any) -> Any:
    """Keep a function that makes an operator's result without its values; also a decorator.

    Where `ops.load_library` could not load a library, its operators may be missing, and what is said of them is kept.
    """
    if func is None:
        return lambda function: register_fake(op, function, lib=lib)
    if isinstance(op, str) and registry.await_operator(op.removesuffix(".default"), func):
        return func
    _operator(op).kernels[registry.FAKE] = func
    return func


impl_abstract = register_fake


def register_autograd(
    op: Any,
    backward: Callable[..., Any],
    /,
    *,
    setup_context: Callable[..., Any] | None = None,
    lib: Library | None = None,
) -> None:
    """Make an operator's gradients by `backward(ctx, *grads)`: `CustomOpDef.register_autograd`."""
    CustomOpDef.register_autograd(_Held(_operator(op)), backward, setup_context=setup_context)


class _Held(CustomOpDef):
    """An operator that no `custom_op` made, for what those have."""

    def __init__(self, op: registry.Operator) -> None:
        self._op = op


def register_autocast(op: Any, device_type: str, cast_inputs: Any, /, *, lib: Library | None = None) -> None:
    """Cast an operator's inputs where autocast is enabled: `CustomOpDef.register_autocast`."""
    _Held(_operator(op)).register_autocast(device_type, cast_inputs)


def register_vmap(op: Any, func: Any = None, /, *, lib: Library | None = None) -> Any:
    """Run `func(info, in_dims, *args)` for a batch in `vmap`: `CustomOpDef.register_vmap`; also a decorator."""
    return _Held(_operator(op)).register_vmap(func)


def register_torch_dispatch(op: Any, torch_dispatch_class: Any, func: Any = None, /, *, lib: Any = None) -> NoReturn:
    """Raise NotImplementedError: classes take calls over by `__torch_function__`."""
    _Held(_operator(op)).register_torch_dispatch(torch_dispatch_class, func)


def fallthrough_kernel() -> NoReturn:
    """Raise NotImplementedError when it is called, as in PyTorch."""
    raise NotImplementedError("fallthrough_kernel() should never be called.")


def opcheck(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] = checking.DEFAULT_TESTS,
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, Any]:
    """Test an operator on arguments; the outcome of each test by name, "SUCCESS" or, unless it is raised, its error.

    test_schema: it writes to what its schema says, and its results share memory with nothing else.
    test_autograd_registration: its gradients' formula is where it is looked for.
    test_faketensor: `register_fake` gives results of the right shapes and dtypes. Strides are not compared.
    test_aot_dispatch_dynamic: results and gradients are the same each time, and have their shapes on "meta", too.

    OpCheckError (resilin.library.checking) names the first test that fails. `autograd.gradcheck` tests the formula.
    """
    if (rtol is None) is not (atol is None):
        raise ValueError("opcheck(op, ...): if you specify one of rtol/atol, you must specify both")
    if not isinstance(op, CustomOpDef | registry.Operator):
        raise ValueError(
            "opcheck(op, ...): op must be what custom_op returns, or of resilin.ops, e.g. resilin.ops.mylib.sin, "
            f"got {type(op)}"
        )
    tolerances = None if rtol is None else (rtol, atol)
    return checking.check(_operator(op), (args, kwargs or {}), test_utils, tolerances, raise_exception)
