"""What a saved state must have, checked before anything of it is taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resilin.core.argument_checks import whole
from resilin.core.tensor import Tensor
from resilin.errors import UsageError
from resilin.optim import state_checks


def count_of(where: str, state: Mapping[str, Any], name: str) -> int:
    """The count `name` of a state: a whole number, also in a tensor or an array of one. UsageError for anything else.

    One of which only the shape is known, as checkpoints ask before they read, is 0.
    """
    if not isinstance(state, Mapping) or name not in state:
        got = sorted(map(str, state)) if isinstance(state, Mapping) else f"{state!r:.80}"
        raise UsageError(f"{where}: expected the entries [{name!r}], got {got}")
    value = state[name]
    if hasattr(value, "shape"):
        if not hasattr(value, "item"):
            return 0
        value = value.item() if state_checks.is_number(value) else value
    return whole(f"{where}: {name}", value)


def outer_of(where: str, state: Mapping[str, Any], here: Sequence[Tensor]) -> Mapping[str, Any]:
    """The entry "outer" of a state. UsageError unless it has what DiLoCo saves, and its anchor fits the one `here`."""
    outer = state.get("outer")
    anchor = outer.get("anchor") if isinstance(outer, Mapping) else outer
    if not isinstance(outer, Mapping) or not isinstance(anchor, list | tuple) or _shapes(anchor) != _shapes(here):
        got = "one without" if anchor is None else f"{anchor!r:.80}"
        if isinstance(anchor, list | tuple) and None not in _shapes(anchor):
            got = f"shapes {_shapes(anchor)}"
        raise UsageError(f"{where}: expected a state with an anchor of the same parameters, got {got}")
    for number, (saved, own) in enumerate(zip(anchor, here, strict=True)):
        state_checks.check_value(f"{where}: anchor {number}", saved, own)
    if missing := {"optimizer", "inner_steps"} - set(outer):
        raise UsageError(f'{where}: the entry "outer" of the state has no {", ".join(sorted(missing))}')
    return outer


def _shapes(things: Sequence[Any]) -> list[list[int] | None]:
    return [list(each.shape) if hasattr(each, "shape") else None for each in things]
