"""The forms of autocast for one type of devices, of torch.cpu.amp and torch.cuda.amp, each with a FutureWarning."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from resilin.amp import autocast_mode
from resilin.core import device as devices
from resilin.core import dtype as dtypes
from resilin.core.backends.absent import Absent


def _warn(place: str, kind: str, name: str = "autocast", given: str = "args...") -> None:
    beside = f"'{kind}', {given}" if name == "autocast" else f"{given}, device_type='{kind}'"
    text = f"`torch.{place}.{name}({given})` is deprecated. Please use `torch.amp.{name}({beside})` instead."
    warnings.warn(text, FutureWarning, stacklevel=3)


class CpuAutocast(autocast_mode.autocast):
    """`autocast("cpu", ...)`, with a FutureWarning."""

    def __init__(self, enabled: bool = True, dtype: Any = dtypes.bfloat16, cache_enabled: bool = True) -> None:
        _warn("cpu.amp", "cpu")
        super().__init__("cpu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


class CudaAutocast(autocast_mode.autocast):
    """`autocast("cuda", ...)`, with a FutureWarning."""

    def __init__(self, enabled: bool = True, dtype: Any = dtypes.float16, cache_enabled: bool = True) -> None:
        _warn("cuda.amp", "cuda")
        super().__init__("cuda", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)


CpuAutocast.__name__ = CudaAutocast.__name__ = "autocast"


def custom_fwd(fwd: Callable[..., Any] | None = None, *, cast_inputs: dtypes.dtype | None = None) -> Any:
    """`amp.custom_fwd` for "cuda", with a FutureWarning."""
    _warn("cuda.amp", "cuda", "custom_fwd")
    return functools.partial(autocast_mode.custom_fwd, device_type="cuda")(fwd=fwd, cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """`amp.custom_bwd` for "cuda", with a FutureWarning."""
    _warn("cuda.amp", "cuda", "custom_bwd")
    return autocast_mode.custom_bwd(bwd, device_type="cuda")


def amp_definitely_not_available() -> bool:
    """Return whether this machine has no CUDA device."""
    return isinstance(devices.device("cuda").backend, Absent)
