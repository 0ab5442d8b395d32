"""Tensor-like objects: the names of torch.overrides, also with `tensor` for `torch` in them.

A class that has `__torch_function__(cls, func, types, args=(), kwargs=None)` as a classmethod, or the same under a name
of our own, `__tensor_function__`, is called in place of every public function that gets an instance of it, as an
argument or in a list or tuple among them. It returns the result, or NotImplemented to leave the call to the next class.
Subclasses of Tensor inherit one that runs the function and makes the tensors of its result instances of the subclass.
The page docs/custom-tensors.md shows both.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import resilin
import resilin.fft as fft
import resilin.linalg as linalg
import resilin.special as special
from resilin.core.public import dispatch, names
from resilin.core.public.dispatch import Disable as DisableTensorFunctionSubclass
from resilin.core.public.dispatch import DisableAll as DisableTensorFunction
from resilin.core.tensor import Tensor
from resilin.nn import functional, init

__all__ = [
    "BaseTensorFunctionMode",
    "BaseTorchFunctionMode",
    "DisableTensorFunction",
    "DisableTensorFunctionSubclass",
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "TensorFunctionMode",
    "TorchFunctionMode",
    "enable_reentrant_dispatch",
    "get_default_nowrap_functions",
    "get_ignored_functions",
    "get_overridable_functions",
    "get_testing_overrides",
    "handle_tensor_function",
    "handle_torch_function",
    "has_tensor_function",
    "has_tensor_function_unary",
    "has_tensor_function_variadic",
    "has_torch_function",
    "has_torch_function_unary",
    "has_torch_function_variadic",
    "is_tensor_like",
    "is_tensor_method_or_property",
    "redispatch_function",
    "resolve_name",
    "wrap_tensor_function",
    "wrap_torch_function",
]

_F = TypeVar("_F", bound=Callable[..., Any])


def has_tensor_function(relevant_args: Iterable[Any]) -> bool:
    """Whether the class of any of these values takes over calls (False where that is disabled)."""
    return dispatch.enabled() and any(map(dispatch.overrides, relevant_args))


def has_tensor_function_unary(arg: Any) -> bool:
    """`has_tensor_function((arg,))`."""
    return has_tensor_function((arg,))


def has_tensor_function_variadic(*args: Any) -> bool:
    """`has_tensor_function(args)`."""
    return has_tensor_function(args)


def handle_tensor_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """What the active mode, or the classes of `relevant_args`, make of `public_api(*args, **kwargs)`.

    For functions of your own, as in PyTorch: `if has_tensor_function((x,)): return handle_tensor_function(f, (x,), x)`.
    Subclasses are asked before their bases, else from left to right. TypeError when all return NotImplemented.
    """
    return dispatch.offer(public_api, dispatch.overriding(relevant_args), args, kwargs)


def wrap_tensor_function(dispatcher: Callable[..., Iterable[Any]]) -> Callable[[_F], _F]:
    """Decorates a function so that arguments can take over its calls.

    `dispatcher` has the function's parameters and returns the arguments to look at.
    """

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            relevant = tuple(dispatcher(*args, **kwargs))
            if has_tensor_function(relevant):
                return handle_tensor_function(call, relevant, *args, **kwargs)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


class TensorFunctionMode:
    """A context manager whose `__torch_function__` gets every public call made inside it, in this thread.

    Subclasses define `__torch_function__(self, func, types, args=(), kwargs=None)`, or the same as
    `__tensor_function__`. While it runs, the mode itself is
    not active, so that it may call `func`; modes entered before it are. TypeError when it returns NotImplemented.
    """

    def __tensor_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The result of the call."""
        raise NotImplementedError(f"{type(self).__name__} must define __torch_function__(self, func, types, ...)")

    __torch_function__ = __tensor_function__

    def __enter__(self) -> Any:
        dispatch.enter_mode(self)
        return self

    def __exit__(self, *exc: object) -> None:
        dispatch.leave_mode()


class BaseTensorFunctionMode(TensorFunctionMode):
    """A mode that changes nothing: it makes the calls as they are."""

    def __tensor_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The result of the plain call."""
        return func(*args, **(kwargs or {}))

    __torch_function__ = __tensor_function__


def redispatch_function(
    func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
) -> Any:
    """For handlers: run `func` itself, without offering the call again, while calls inside it are offered as ever."""
    return dispatch.redispatch(func, args, kwargs or {})


def get_overridable_functions() -> dict[Any, list[Callable[..., Any]]]:
    """The functions whose calls can be taken over, by the module or class that holds them.

    An attribute of Tensor is here as the function that reads or writes it, such as `Tensor.shape.__get__`.
    """
    found: dict[Any, list[Callable[..., Any]]] = {}
    for module in (resilin, functional, init, linalg, fft, special):
        found[module] = [f for f in dispatch.PUBLIC if (f.__module__, f.__name__) == (module.__name__, f.__qualname__)]
    found[Tensor] = [f for f in dispatch.PUBLIC if f.__qualname__.startswith("Tensor.")]
    found[Tensor] += dispatch.attributes()
    return found


def get_testing_overrides() -> dict[Callable[..., Any], Callable[..., int]]:
    """For each function whose calls can be taken over, one with the same parameters that returns -1."""
    return {func: _returning_minus_one(func) for func in (*dispatch.PUBLIC, *dispatch.attributes())}


def _returning_minus_one(func: Any) -> Callable[..., int]:
    def override(*args: Any, **kwargs: Any) -> int:
        return -1

    if func in dispatch.PUBLIC:
        override.__signature__ = inspect.signature(func)  # type: ignore[attr-defined]
    return override


def get_ignored_functions() -> set[Callable[..., Any]]:
    """The public functions of `resilin` whose calls cannot be taken over."""
    values = [getattr(names, name) for name in names.__all__]
    return {f for f in values if callable(f) and not isinstance(f, type) and f not in dispatch.PUBLIC}


def get_default_nowrap_functions() -> set[Callable[..., Any]]:
    """The functions whose result Tensor's `__tensor_function__` leaves as it is: what reads `Tensor.grad`."""
    return set(dispatch.UNCHANGED)


def resolve_name(f: Callable[..., Any]) -> str:
    """The name of a function as handlers get it: "resilin.nn.functional.relu", "resilin.Tensor.shape.__get__"."""
    return dispatch.name_of(f)


def is_tensor_like(inp: Any) -> bool:
    """Whether `inp` is a Tensor or an instance of a class with `__torch_function__` or `__tensor_function__`."""
    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__") or hasattr(type(inp), "__tensor_function__")


def is_tensor_method_or_property(func: Callable[..., Any]) -> bool:
    """Whether `func`, as a handler gets it, is a method of Tensor or reads or writes one of its attributes."""
    return (func in dispatch.PUBLIC and func.__qualname__.startswith("Tensor.")) or func in dispatch.attributes()


@contextlib.contextmanager
def enable_reentrant_dispatch() -> Iterator[None]:
    """Run the block as it is: calls inside a handler are offered to other classes and modes anyway."""
    yield


# PyTorch's names

has_torch_function = has_tensor_function
has_torch_function_unary = has_tensor_function_unary
has_torch_function_variadic = has_tensor_function_variadic
handle_torch_function = handle_tensor_function
wrap_torch_function = wrap_tensor_function
TorchFunctionMode = TensorFunctionMode
BaseTorchFunctionMode = BaseTensorFunctionMode
DisableTorchFunction = DisableTensorFunction
DisableTorchFunctionSubclass = DisableTensorFunctionSubclass
