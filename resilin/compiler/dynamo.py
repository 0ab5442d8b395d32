"""The names of torch._dynamo that programs use, as `resilin._dynamo`: nothing looks at what functions do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from resilin.compiler import (
    allow_in_graph,
    assume_constant_result,
    compile,
    disable,
    is_compiling,
    list_backends,
    reset,
    substitute_in_graph,
)

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin._dynamo import config as config

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "disable",
    "disallow_in_graph",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "maybe_mark_dynamic",
    "optimize",
    "optimize_assert",
    "reset",
    "reset_code_caches",
    "run",
    "substitute_in_graph",
]


def optimize(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """Return `compile`, which gives back what it gets."""
    return compile


optimize_assert = optimize


def run(fn: Any = None) -> Any:
    """Give back the function, for which no code would be compiled anew."""
    return disable(fn)


def disallow_in_graph(fn: Any) -> Any:
    """Give back the function, at which a compiler's graph would end."""
    return fn


def graph_break(msg: str = "") -> None:
    """Do nothing: there is no graph that could end here."""


def mark_dynamic(t: Any, index: Any, **options: Any) -> None:
    """Do nothing: lengths that differ from call to call cost nothing."""


def maybe_mark_dynamic(t: Any, index: Any) -> None:
    """Do nothing, as `mark_dynamic`."""


def mark_static(t: Any, index: Any = None) -> None:
    """Do nothing: no length is taken for one that never changes."""


def mark_static_address(t: Any, guard: bool = True) -> None:
    """Do nothing: no address is kept."""


def reset_code_caches() -> None:
    """Do nothing: no compiled code is kept."""


def explain(f: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError: there is no graph to explain."""
    raise NotImplementedError("_dynamo.explain: nothing is compiled here, so that there are no graphs and no breaks")


def export(f: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError: nothing records what a function does."""
    raise NotImplementedError("_dynamo.export: resilin records no programs; save weights by resilin.save")
