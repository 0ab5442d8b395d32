"""Operators by name: `resilin.ops.NAMESPACE.NAME(...)`, those of `resilin.library`, and of `aten` what resilin has.

`ops.aten.add.Tensor` and other overloads are the function itself, `resilin.add` or a method of Tensor.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, NoReturn

from resilin.core.public import names
from resilin.core.tensor import Tensor
from resilin.library import registry
from resilin.nn import functional


class _Function:
    """A function of resilin's as an operator of `aten`: any overload is itself."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name, self._function = name, function
        self.__name__ = self.__qualname__ = name
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __getattr__(self, overload: str) -> Any:
        if overload.startswith("__") or overload == "out" or overload.endswith("_out"):
            raise AttributeError(f"The underlying op of 'aten.{self._name}' has no overload name {overload!r}")
        return self

    def name(self) -> str:
        """Return its full name."""
        return f"aten::{self._name}"

    def __repr__(self) -> str:
        return f"<operator aten::{self._name}>"


class _Namespace(types.ModuleType):
    """The operators of one namespace."""

    def __init__(self, name: str) -> None:
        super().__init__(f"resilin.ops.{name}")
        self._namespace = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found: Any = registry.OPERATORS.get(f"{self._namespace}::{name}")
        if found is None and self._namespace in ("aten", "prims"):
            found = _of_aten(name)
        if found is None:
            raise AttributeError(
                f"'_OpNamespace' '{self._namespace}' object has no attribute '{name}': "
                + registry.lacking(f"{self._namespace}::{name}")
            )
        return found

    def __dir__(self) -> list[str]:
        start = f"{self._namespace}::"
        return sorted(one.removeprefix(start) for one in registry.OPERATORS if one.startswith(start))


def _of_aten(name: str) -> Any:
    for home in (names, functional, Tensor):
        function = getattr(home, name, None)
        if callable(function) and not isinstance(function, type):
            return _Function(name, function)
    return None


def load_library(path: Any) -> NoReturn:
    """Raise OSError: a library of operators for PyTorch's C++ cannot be loaded."""
    registry.refused_libraries.append(str(path))
    raise OSError(f"ops.load_library({path!s}): libraries for PyTorch's C++ cannot be loaded; see resilin.library")


loaded_libraries: set[str] = set()
_namespaces: dict[str, _Namespace] = {}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _namespaces.setdefault(name, _Namespace(name))
