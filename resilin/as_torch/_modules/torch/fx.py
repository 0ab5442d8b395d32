"""torch.fx: there is no tracer, so what programs say to it is heard and changes nothing."""

from __future__ import annotations

from typing import Any, NoReturn


def wrap(fn_or_name: Any) -> Any:
    """Return what is given: it would be a leaf of graphs that are traced."""
    return fn_or_name


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"torch.fx has no {name!r}: resilin has no tracer yet; docs/parity.md says what there is")
