"""Modules without their start values, which are loaded or written at once."""

from __future__ import annotations

import inspect
from typing import Any

from resilin.core.rng import fork_rng
from resilin.nn.modules.module import Module


def skip_init(module_cls: type[Module], *args: Any, **kwargs: Any) -> Module:
    """`module_cls(*args, **kwargs)`, whose values may not be relied on; the random generator stays where it was.

    The class must take `device`, else RuntimeError. Unlike PyTorch's this draws start values, so it saves no time.
    """
    if not (isinstance(module_cls, type) and issubclass(module_cls, Module)):
        raise RuntimeError(f"skip_init: expected a Module class, got {module_cls!r}")
    if "device" not in inspect.signature(module_cls).parameters:
        raise RuntimeError(f"skip_init: {module_cls.__name__} must support a 'device' argument to skip initialization")
    with fork_rng():
        return module_cls(*args, **kwargs)
