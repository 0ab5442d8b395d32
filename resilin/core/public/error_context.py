"""Makes errors of public functions tell: which function, what it was given, and in one of Python's common types.

Most mistakes are answered where they are noticed, with all there is to say. This is for the rest: a string where a
tensor belongs, a number too large for the machine, what numpy says of axes. `dispatch` asks here when a public
function has raised, so calls that succeed pay nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from resilin.core import dtype as dtypes
from resilin.core.argument_checks import plain_words
from resilin.errors import NoElements, ResilinError

_OWN = tuple(str(Path(file).resolve().parents[depth]) for file, depth in ((__file__, 2), (np.__file__, 0)))
_PLAIN = (TypeError, ValueError, IndexError, RuntimeError, NotImplementedError)
# what is raised instead of other errors, the first that fits
_INSTEAD: tuple[tuple[type[Exception], type[Exception]], ...] = (
    (np.exceptions.AxisError, IndexError),
    (MemoryError, RuntimeError),
    (ArithmeticError, RuntimeError),
    (AttributeError, TypeError),
    (TypeError, TypeError),
    (IndexError, IndexError),
    (ValueError, ValueError),
    (LookupError, IndexError),
)


def explain(function: Any, given: tuple[Any, ...], error: Exception) -> Exception:
    """What to raise when `function`, called with the values `given`, has raised `error`.

    Errors of resilin's own types and of others' code (a hook, an `__array__`) stay as they are; so does one that names
    the function.
    """
    if (isinstance(error, ResilinError) and not isinstance(error, NoElements)) or not _is_from_here(
        error.__traceback__
    ):
        return error
    name = function.__name__.strip("_")
    text = plain_words(error)
    if isinstance(error, NoElements):
        error.args = (text if name.lower() in text.lower() else f"{name}({_described(given)}): {text}",)
        return error
    if type(error) is ValueError and "could not be broadcast" in text:  # numpy's; PyTorch's type is another
        said = "the shapes cannot be broadcast: counted from the right, lengths must be equal or 1"
        return RuntimeError(f"{name}({_described(given)}): {said}").with_traceback(error.__traceback__)
    if type(error) in _PLAIN:
        if name.lower() not in text.lower() or text != str(error):
            error.args = (f"{name}({_described(given)}): {text}",)
        return error
    for kind, instead in _INSTEAD:
        if isinstance(error, kind):
            made = instead(f"{name}({_described(given)}): {_said(error)}")
            made.__traceback__, made.__cause__ = error.__traceback__, error
            for note in getattr(error, "__notes__", ()):
                made.add_note(note)
            return made
    return error


def wrong_argument(name: str, given: tuple[Any, ...], error: AttributeError) -> Exception:
    """TypeError where `error` says that one of the values `given` lacks what tensors have; else `error` itself."""
    if _is_from_here(error.__traceback__) and any(error.obj is value for value in given):
        made = TypeError(f"{name}({_described(given)}): expected a Tensor, got {type(error.obj).__name__}")
        made.__cause__ = error
        return made
    return error


def level_of_user() -> int:
    """The `stacklevel` of warnings that shows the line which called this library, as seen from its caller."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        level, frame = level + 1, frame.f_back
    return level


def _said(error: Exception) -> str:
    if isinstance(error, AttributeError) and str(error.name).startswith("_"):  # of Tensor's own
        return f"expected a Tensor, got {type(error.obj).__name__}"
    if isinstance(error, AttributeError):
        return f"an argument is of a wrong type: {error}"
    if isinstance(error, MemoryError):
        return f"there is not enough memory for the result: {error}"
    return str(error)


def _is_from_here(trace: TracebackType | None) -> bool:
    """Whether an error was raised by this library or by numpy on its behalf."""
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename.startswith(_OWN)


def _described(given: tuple[Any, ...]) -> str:
    return ", ".join(map(_one, given))


def _one(value: Any) -> str:
    array = getattr(value, "_array", None)
    if array is not None:
        try:
            kind = str(dtypes.from_numpy(array.dtype)).rpartition(".")[2]
        except TypeError:
            kind = str(array.dtype)
        return f"{kind} {list(array.shape)}"
    if isinstance(value, list | tuple) and len(value) <= _SHOWN:
        inner = ", ".join(map(_one, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if value is None or isinstance(value, bool | int | float | complex | str):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return type(value).__name__


_SHOWN = 8  # elements of a list that an error shows
_LONGEST = 40  # characters of a value
