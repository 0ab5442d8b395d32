"""Send functions that have no name in a module, as code: only to workers that allow it."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from resilin.errors import UsageError

_SIGNS = ("local object", "it's not found as", "not the same object", "Can't get local", "Can't pickle <function")


def is_about_code(error: BaseException) -> bool:
    """Return whether pickle gave up on a function or class that has no name in a module."""
    text = str(error)
    return any(sign in text for sign in _SIGNS)


def _cloudpickle() -> ModuleType:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        raise UsageError(
            "functions without a name in a module are sent by the package cloudpickle, which is not installed: "
            "pip install cloudpickle"
        ) from None


def dumps(thing: Any, table: Mapping[type, Any]) -> bytes:
    """Return the pickle of `thing`, with the code of its functions. UsageError where cloudpickle is not installed."""
    file = io.BytesIO()
    pickler = _cloudpickle().Pickler(file, 5)
    pickler.dispatch_table = {**pickler.dispatch_table, **table}
    pickler.dump(thing)
    return file.getvalue()
