"""`use_deterministic_algorithms`: what happens when an op runs that has no deterministic form on its device.

On the CPU there is no such op: every kernel and every gradient is summed in one order that depends on shapes and
strides alone, not on threads. A backend lists the ops that are different on its devices (`Backend.nondeterministic`);
`ops/backend_support.py` asks `check` each time one of them runs.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from resilin.core.public import error_context

_MODES = ("default", "warn", "error")


class _Choice:
    mode = 0  # an index of _MODES; of the process, as in PyTorch
    fill = True  # memory that nobody wrote is filled while the mode is not "default"


choice = _Choice()


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Whether an op without a deterministic form raises RuntimeError (with `warn_only`: warns) when it runs.

    Also fills what `empty` and its like give, unless `resilin.utils.deterministic.fill_uninitialized_memory` is False.
    """
    for name, value in (("mode", mode), ("warn_only", warn_only)):
        if not isinstance(value, bool):
            raise TypeError(f"use_deterministic_algorithms(): {name} must be bool, not {type(value).__name__}")
    choice.mode = 0 if not mode else 1 if warn_only else 2


def set_deterministic(d: bool) -> None:
    """The name that `use_deterministic_algorithms` had first."""
    use_deterministic_algorithms(d)


def are_deterministic_algorithms_enabled() -> bool:
    """Whether `use_deterministic_algorithms(True)` is in force, to warn or to raise."""
    return choice.mode != 0


is_deterministic = are_deterministic_algorithms_enabled  # the name that it had first


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether ops without a deterministic form warn only."""
    return choice.mode == 1


def set_deterministic_debug_mode(debug_mode: int | str) -> None:
    """The same choice as a number or a word: 0 or "default", 1 or "warn", 2 or "error"."""
    if isinstance(debug_mode, bool) or not isinstance(debug_mode, int | str):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode)}")
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError(
                f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, but got {debug_mode}"
            )
        debug_mode = _MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(f"invalid value of debug_mode, expected 0, 1, or 2, but got {debug_mode}")
    choice.mode = debug_mode


def get_deterministic_debug_mode() -> int:
    """0 (default), 1 (warn) or 2 (error)."""
    return choice.mode


def check(name: str, device_type: str, why: str) -> None:
    """Called when op `name` runs in a way whose results may differ from run to run, for the reason `why`."""
    if choice.mode == 0:
        return
    text = (
        f"{name} does not have a deterministic implementation on {device_type} devices ({why}), but "
        "use_deterministic_algorithms(True) is set"
    )
    if choice.mode == 1:
        warnings.warn(text, UserWarning, stacklevel=error_context.level_of_user())
        return
    raise RuntimeError(
        f"{text}. Compute it on the CPU, turn the setting off around it, or set warn_only=True to go on with a warning"
    )


def uninitialized(shape: Any, dtype: Any, xp: Any = np) -> Any:
    """`xp.empty`; while deterministic algorithms are in force filled with NaN, the largest integer or True."""
    array = xp.empty(shape, dtype)
    if choice.mode and choice.fill:
        kind = array.dtype.kind
        array[...] = True if kind == "b" else np.iinfo(array.dtype).max if kind in "iu" else np.nan
    return array
