"""The names of torch.compiler. Nothing is compiled: functions and modules run as they are, and it is said once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any

from resilin._base import log
from resilin._base.said_once import say_once
from resilin.nn.modules.module import Module

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.compiler import config as config

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "cudagraph_mark_step_begin",
    "disable",
    "get_default_backend",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe",
    "list_backends",
    "load_cache_artifacts",
    "nested_compile_region",
    "reset",
    "save_cache_artifacts",
    "set_default_backend",
    "set_stance",
    "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
    "substitute_in_graph",
    "wrap_numpy",
]

_LOG = log.logger("compiler")
_NOTE = "compile: nothing is compiled here; functions and modules run as they are"


class _Choice:
    backend: Any = "inductor"


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
) -> Any:
    """Give back the function or module itself, and say once that nothing is compiled. Also a decorator.

    As a compiled module has the one that it was made of, this one has itself as `_orig_mod`; its state is as before.
    RuntimeError for both `mode` and `options`, as in PyTorch.
    """
    if mode is not None and options is not None:
        raise RuntimeError("Either mode or options can be specified, but both can't be specified at the same time.")
    if model is None:
        return compile
    if not callable(model):
        raise RuntimeError(f"compile(): expected a function or module, got {type(model).__name__}")
    say_once(_LOG, _NOTE)
    if isinstance(model, Module):
        vars(model)["_orig_mod"] = model  # beside its children, of which it is none
    elif isinstance(model, FunctionType):
        vars(model)["_torchdynamo_orig_callable"] = model
    return model


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Give back the function, which would not be compiled; also a decorator with arguments."""
    return _itself if fn is None else fn


def allow_in_graph(fn: Any) -> Any:
    """Give back the function or functions, which a compiler would not look into."""
    return fn


def assume_constant_result(fn: Any) -> Any:
    """Give back the function, of which a compiler would keep the first result."""
    return fn


def nested_compile_region(fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Give back the function, which a compiler would compile once; also a decorator with arguments."""
    return _itself if fn is None else fn


def substitute_in_graph(
    original_fn: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that gives back its function, which a compiler would look into for `original_fn`."""
    return _itself


def wrap_numpy(fn: Any) -> Any:
    """Give back the function of arrays, which a compiler would make one of tensors."""
    return fn


def _itself(fn: Any) -> Any:
    return fn


def is_compiling() -> bool:
    """Return False: nothing is compiled."""
    return False


def is_dynamo_compiling() -> bool:
    """Return False: nothing is compiled."""
    return False


def is_exporting() -> bool:
    """Return False: nothing is exported."""
    return False


def reset() -> None:
    """Do nothing: no compiled code is kept."""


def cudagraph_mark_step_begin() -> None:
    """Do nothing: steps are not recorded."""


def set_stance(stance: str = "default", **options: Any) -> Any:
    """Change nothing, for a block, too: all stances run functions as they are."""
    return nullcontext()


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """Return no names: there are no compilers."""
    return []


def set_default_backend(backend: Any) -> None:
    """Keep the name of a compiler, which changes nothing."""
    _Choice.backend = backend


def get_default_backend() -> Any:
    """Return what `set_default_backend` was given last; "inductor" at first, as in PyTorch."""
    return _Choice.backend


def save_cache_artifacts() -> None:
    """Return None: there is no compiled code to keep."""


def load_cache_artifacts(serialized_artifacts: bytes) -> None:
    """Return None: no compiled code is used."""


def _keep_all(guard_entries: Sequence[Any], *args: Any, **kwargs: Any) -> list[bool]:
    """Return True for each of a compiler's guards, of which none is made here."""
    return [True] * len(guard_entries)


keep_portable_guards_unsafe = keep_tensor_guards_unsafe = skip_all_guards_unsafe = _keep_all
skip_guard_on_all_nn_modules_unsafe = skip_guard_on_globals_unsafe = _keep_all
skip_guard_on_inbuilt_nn_modules_unsafe = _keep_all
