"""States that were loaded, as facts that ranks must have alike: one that lacks entries would begin them anew.

They go with what the next step, or the forward after it, gathers anyway (`dist.agreement.compare`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from resilin.core.tensor import Tensor

ABSENT = "absent"


def fact(name: str) -> str:
    """What facts call the state of the parameter `name`."""
    return f"the loaded state of {name}"


def described(entry: Mapping[Any, Any] | None) -> str:
    """The state of one parameter as ranks compare it: what there is, and the count of steps."""
    if not entry:
        return ABSENT
    return ", ".join(
        sorted(f"step {_count(value):g}" if name == "step" else str(name) for name, value in entry.items())
    )


def _count(step: Any) -> float:
    """The number in a count of steps, which may be a tensor; -1 for what has none here."""
    if isinstance(step, Tensor):
        return float(step.tolist()) if step.ndim == 0 else -1.0
    return float(step) if isinstance(step, int | float) else -1.0
