"""What torch.jit makes programs of, and what they are saved to and loaded from: here the functions and modules stay."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any, NoReturn, TypeVar

from resilin._base import log
from resilin._base.said_once import say_once
from resilin.nn.modules.module import Module

_LOG = log.logger("jit")
_T = TypeVar("_T")
_WEIGHTS = (
    "nothing is compiled here. Save weights by resilin.save(model.state_dict(), f), or for other libraries by "
    "resilin.checkpoint.save_safetensors"
)


class Error(RuntimeError):
    """An exception that a compiled program would raise; here functions raise their own."""


class TracerWarning(Warning):
    """What a tracer would warn of."""


class ScriptFunction:
    """The class of compiled functions, which has no instances here."""


class ScriptModule(Module):
    """A base of modules whose methods are marked by `script_method`; a Module like any other."""

    def save(self, f: Any, **kwargs: Any) -> NoReturn:
        """Raise NotImplementedError: a module without its code is saved as its weights."""
        _save_of_a_scripted(f)


class RecursiveScriptModule(ScriptModule):
    """The class of compiled modules; `script` gives back modules of their own classes."""


def script(
    obj: _T,
    optimize: Any = None,
    _frames_up: int = 0,
    _rcb: Any = None,
    example_inputs: Any = None,
) -> _T:
    """Give back a function, class or module itself, and say once that nothing is compiled.

    A module or function without a `save` of its own gets one that says how weights are saved.
    """
    say_once(_LOG, "jit.script: nothing is compiled here; functions and modules run as they are")
    if isinstance(obj, Module | FunctionType) and not hasattr(obj, "save"):
        vars(obj)["save"] = _save_of_a_scripted
    return obj


def _save_of_a_scripted(f: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(f"save({_named(f)}) of a scripted module: {_WEIGHTS}")


def save(m: Any, f: Any, _extra_files: Any = None) -> NoReturn:
    """Raise NotImplementedError: there are no programs to save."""
    raise NotImplementedError(f"jit.save({type(m).__name__}, {_named(f)}): {_WEIGHTS}")


def load(
    f: Any, map_location: Any = None, _extra_files: Any = None, _restore_shapes: bool = False, **kwargs: Any
) -> NoReturn:
    """Raise NotImplementedError: TorchScript's files hold programs, which nothing here runs."""
    raise NotImplementedError(
        f"jit.load({_named(f)}): resilin runs no TorchScript programs. Make the model in Python and load its weights: "
        "resilin.load, resilin.checkpoint.import_torch of a state dict that torch.save wrote, or load_safetensors"
    )


def trace(func: Any, example_inputs: Any = None, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError: nothing records what a function does."""
    raise NotImplementedError(
        f"jit.trace({_class_or_name(func)}): resilin records no programs; call the model itself. {_WEIGHTS}"
    )


def trace_module(mod: Any, inputs: Any, *args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError, as `trace` does."""
    trace(mod)


def freeze(mod: _T, preserved_attrs: Sequence[str] | None = None, optimize_numerics: bool = True) -> _T:
    """Give back a module in evaluation mode, and say once that nothing is compiled. RuntimeError in training mode."""
    if getattr(mod, "training", False):
        raise RuntimeError("Freezing module in training mode is not yet supported: call .eval() first")
    say_once(_LOG, "jit.freeze: nothing is compiled here; the module stays as it is")
    return mod


def optimize_for_inference(mod: _T, other_methods: Sequence[str] | None = None) -> _T:
    """Give back the module, and say once that nothing is compiled."""
    say_once(_LOG, "jit.optimize_for_inference: nothing is compiled here; the module stays as it is")
    return mod


@contextlib.contextmanager
def optimized_execution(should_optimize: bool) -> Iterator[None]:
    """Run the block as it is: there is no compiler whose work could be left out."""
    yield


@contextlib.contextmanager
def fuser(name: str) -> Iterator[None]:
    """Run the block as it is: there is no compiler that could fuse by "fuser0" to "fuser3"."""
    yield


class strict_fusion(contextlib.nullcontext[None]):
    """A block in which a compiler would have to fuse all; it runs as it is."""


def set_fusion_strategy(strategy: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Keep how often a compiler should specialize for shapes, which changes nothing; return what was kept before."""
    global _strategy
    before, _strategy = _strategy, list(strategy)
    return before


_strategy: list[tuple[str, int]] = [("STATIC", 2), ("DYNAMIC", 10)]
_onednn = False


def enable_onednn_fusion(enabled: bool) -> None:
    """Keep whether a compiler should fuse by oneDNN, which changes nothing."""
    global _onednn
    _onednn = bool(enabled)


def onednn_fusion_enabled() -> bool:
    """Return what `enable_onednn_fusion` was given last."""
    return _onednn


def _named(f: Any) -> str:
    return repr(f) if isinstance(f, str) else type(f).__name__


def _class_or_name(func: Any) -> str:
    inner = func.func if isinstance(func, functools.partial) else func
    return getattr(inner, "__name__", type(inner).__name__)
