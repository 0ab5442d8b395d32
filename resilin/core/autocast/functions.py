"""PyTorch's functions of the state of autocast, of this thread: `is_autocast_enabled`, `set_autocast_dtype`, ...

`autocast` is what programs use; these are for code that saves the state and brings it back.
"""

from __future__ import annotations

import warnings
from typing import Any

from resilin.core import dtype as dtypes
from resilin.core.argument_checks import flag
from resilin.core.autocast import state

__all__ = [
    "autocast_decrement_nesting",
    "autocast_increment_nesting",
    "clear_autocast_cache",
    "get_autocast_cpu_dtype",
    "get_autocast_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_cache_enabled",
    "is_autocast_cpu_enabled",
    "is_autocast_enabled",
    "set_autocast_cache_enabled",
    "set_autocast_cpu_dtype",
    "set_autocast_cpu_enabled",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_autocast_gpu_dtype",
]


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Return whether autocast is enabled for a type of devices."""
    return state.check_type("is_autocast_enabled", device_type) in state.here.enabled


def set_autocast_enabled(device_type: str | bool, enabled: bool | None = None) -> None:
    """Enable autocast for a type of devices, or not. With one argument, for "cuda"."""
    if enabled is None:
        device_type, enabled = "cuda", flag("set_autocast_enabled: enabled", device_type)
    kind = state.check_type("set_autocast_enabled", device_type)
    state.set_enabled(kind, flag("set_autocast_enabled: enabled", enabled))


def get_autocast_dtype(device_type: str) -> dtypes.dtype:
    """Return the lower precision of a type of devices: at first bfloat16 for "cpu", float16 for "cuda"."""
    found: dtypes.dtype = state.here.dtypes[state.check_type("get_autocast_dtype", device_type)]
    return found


def set_autocast_dtype(device_type: str, dtype: dtypes.dtype) -> None:
    """Set the lower precision of a type of devices. TypeError for what is no dtype."""
    kind = state.check_type("set_autocast_dtype", device_type)
    if not isinstance(dtype, dtypes.dtype):
        raise TypeError(f"set_autocast_dtype: dtype must be a dtype, got {type(dtype).__name__}")
    state.here.dtypes[kind] = dtype


def is_autocast_cache_enabled() -> bool:
    """Return whether casts of weights are kept until the outermost region ends."""
    return state.here.cache_enabled


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Keep casts of weights until the outermost region ends, or not."""
    state.here.cache_enabled = flag("set_autocast_cache_enabled: enabled", enabled)


def clear_autocast_cache() -> None:
    """Forget the casts of weights that are kept."""
    state.clear_cache()


def autocast_increment_nesting() -> int:
    """Go one region deeper, and return how deep that is. Casts are kept inside regions only."""
    return state.increment_nesting()


def autocast_decrement_nesting() -> int:
    """Leave one region, and return how many remain."""
    return state.decrement_nesting()


def _warn(old: str, new: str) -> None:
    text = f"torch.{old} is deprecated. Please use torch.{new} instead."
    warnings.warn(text, DeprecationWarning, stacklevel=3)


def is_autocast_cpu_enabled() -> bool:
    """`is_autocast_enabled("cpu")`, with a DeprecationWarning."""
    _warn("is_autocast_cpu_enabled()", "is_autocast_enabled('cpu')")
    return is_autocast_enabled("cpu")


def set_autocast_cpu_enabled(enabled: bool) -> None:
    """`set_autocast_enabled("cpu", enabled)`, with a DeprecationWarning."""
    _warn("set_autocast_cpu_enabled(enabled)", "set_autocast_enabled('cpu', enabled)")
    set_autocast_enabled("cpu", enabled)


def get_autocast_cpu_dtype() -> dtypes.dtype:
    """`get_autocast_dtype("cpu")`, with a DeprecationWarning."""
    _warn("get_autocast_cpu_dtype()", "get_autocast_dtype('cpu')")
    return get_autocast_dtype("cpu")


def set_autocast_cpu_dtype(dtype: Any) -> None:
    """`set_autocast_dtype("cpu", dtype)`, with a DeprecationWarning."""
    _warn("set_autocast_cpu_dtype(dtype)", "set_autocast_dtype('cpu', dtype)")
    set_autocast_dtype("cpu", dtype)


def get_autocast_gpu_dtype() -> dtypes.dtype:
    """`get_autocast_dtype("cuda")`, with a DeprecationWarning."""
    _warn("get_autocast_gpu_dtype()", "get_autocast_dtype('cuda')")
    return get_autocast_dtype("cuda")


def set_autocast_gpu_dtype(dtype: Any) -> None:
    """`set_autocast_dtype("cuda", dtype)`, with a DeprecationWarning."""
    _warn("set_autocast_gpu_dtype(dtype)", "set_autocast_dtype('cuda', dtype)")
    set_autocast_dtype("cuda", dtype)
