"""Loads the native kernels once. Without them every kernel runs its numpy reference, and `why` says the reason."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from resilin._base import env

_F = TypeVar("_F", bound=Callable[..., Any])


def _load() -> tuple[Any, str]:
    if env.get("RESILIN_NATIVE") == "0":
        return None, "RESILIN_NATIVE=0 is set; unset it to use native code"
    try:
        return importlib.import_module("resilin.core._native"), ""
    except ImportError as error:
        return None, f"{error}; install a C++ compiler (Debian: apt install g++) and reinstall resilin"


native: Any
"""The module `resilin.core._native`, or None."""
why: str
"""Why `native` is None; empty when it is loaded."""
native, why = _load()


def _absent(*_: object) -> None:
    """Stands in for a native function that is not there: None means "not done, use the reference"."""


def kernel(name: str) -> Callable[..., Any]:
    """The native function `name`. It returns None for input it does not handle, as does the stand-in."""
    found: Callable[..., Any] = getattr(native, name, _absent)
    return found


def guarded(function: Callable[..., Any] | None, otherwise: Callable[..., Any], check: str) -> Callable[..., Any]:
    """`otherwise`, behind native code that for arguments that pass `check` calls `function` at once (None: nothing).

    `fast_path/guarded_call.cpp` has the checks by name; `otherwise` must do the same for such arguments.
    """
    if native is None:
        return otherwise
    return functools.update_wrapper(native.guarded_call(function, otherwise, check), otherwise)


def short(kernel: str, parameters: str, lists: bool = False, sequence: bool = False) -> Callable[[_F], _F]:
    """Decorate a function that native `kernel` stands in front of for plain tensors which nothing follows.

    It gets the arrays of tensors, and numbers as they are, by the places of `parameters`, and answers the array of the
    result or None (`fast_path/short_call.cpp`); a last name with a star stands for all that follows. lists: the second
    parameter is a sequence, here of one tensor. sequence: the first one is a sequence of tensors, of whose arrays the
    kernel gets a tuple.
    """

    def decorate(function: _F) -> _F:
        if native is None:
            return function
        call = native.short_call(
            getattr(native, kernel), function, *_named(function, parameters), False, lists, sequence
        )
        return cast(_F, functools.update_wrapper(call, function))

    return decorate


def short_write(kernel: str, method: _F, parameters: str, lists: bool = False) -> _F:
    """The in-place `method` behind native `kernel`, as by `short`: it writes into its first array, or answers False."""
    if native is None:
        return method
    call = native.short_call(getattr(native, kernel), method, *_named(method, parameters), True, lists)
    return cast(_F, functools.update_wrapper(call, method))


def _named(function: Callable[..., Any], parameters: str) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The parameters' names, and their defaults: an ellipsis where `function` has none."""
    plain: Any = inspect.unwrap(function)
    names, defaults = plain.__code__.co_varnames[: plain.__code__.co_argcount], plain.__defaults__ or ()
    known = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (plain.__kwdefaults__ or {})
    wanted = tuple(parameters.split())
    return wanted, tuple([known.get(name, ...) for name in wanted])


def describe() -> str:
    """One line for people: which kernels run, on which instruction set, or why none and what to do."""
    if native is None:
        return f"numpy references (no native kernels: {why})"
    return f"native, {native.isa()} ({native.__file__})"
