"""`autocast`: regions in which products run in bfloat16 or float16, and what must be exact in float32.

The functions of each kind are in `resilin.core.autocast.lists`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from resilin.core import device as devices
from resilin.core import dtype as dtypes
from resilin.core.argument_checks import flag
from resilin.core.autocast import casting, state
from resilin.core.backends.absent import Absent
from resilin.errors import UsageTypeError

__all__ = ["autocast", "autocast_decorator", "custom_bwd", "custom_fwd", "is_autocast_available"]

_F = TypeVar("_F", bound=Callable[..., Any])
_LOWER = (dtypes.bfloat16, dtypes.float16)


def is_autocast_available(device_type: str) -> bool:
    """Return whether there is an autocast for a type of devices: "cpu" and "cuda"."""
    if not isinstance(device_type, str):
        raise UsageTypeError(f"is_autocast_available: device_type must be a str, got {type(device_type).__name__}")
    return device_type in state.TYPES


def _check_device_type(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


class autocast:
    """A region in which functions run in the dtype that suits each: a context manager, or a decorator.

        with resilin.autocast("cpu", dtype=resilin.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()

    Parameters stay float32, and so do their gradients. Products (linear layers, convolutions, attention) cast their
    arguments to `dtype` and give it; losses, decompositions and the like cast theirs to float32; everything else takes
    what it gets. Regions nest, also with `enabled=False` inside. The state is of the thread, and one object may be
    entered by many of them.

    dtype:          bfloat16 or float16; None: that of `get_autocast_dtype(device_type)`.
    cache_enabled:  casts of parameters are kept until the outermost region ends, so that each is made once.

    With another dtype, and for "cuda" where there is no such device, a warning is given and the region is disabled.
    Raises: ValueError for a device_type that is no text, RuntimeError for one that has no autocast.
    """

    def __init__(
        self, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        _check_device_type(device_type)
        if not is_autocast_available(device_type):
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        if dtype is not None and not isinstance(dtype, dtypes.dtype):
            raise UsageTypeError(f"autocast: dtype must be a dtype, got {dtype!r:.80}")
        self.device = device_type
        self.fast_dtype = state.here.dtypes[device_type] if dtype is None else dtype
        self._enabled = flag("autocast: enabled", enabled) and self._is_supported()
        caches = state.here.cache_enabled if cache_enabled is None else cache_enabled
        self._cache_enabled = flag("autocast: cache_enabled", caches)

    def _is_supported(self) -> bool:
        if self.device == "cuda" and isinstance(devices.device("cuda").backend, Absent):
            text = "CUDA is not available or torch_xla is imported. Disabling autocast."
        elif self.fast_dtype not in _LOWER:
            name = self.device.upper()
            text = (
                f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n"
                f"{name} Autocast only supports dtypes of {', '.join(map(str, _LOWER))} currently."
            )
        else:
            return True
        warnings.warn(text, UserWarning, stacklevel=3 if type(self) is autocast else 4)
        return False

    def __enter__(self) -> autocast:
        state.enter(self.device, self.fast_dtype, self._enabled, self._cache_enabled)
        return self

    def __exit__(self, *exc: object) -> None:
        state.leave()

    def __call__(self, func: _F) -> _F:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. Did you mean to use autocast as "
                f"a context manager? For example:\n    with torch.autocast(device_type=...):\n"
                "        output = model(input)"
            )
        return autocast_decorator(self, func)


def autocast_decorator(autocast_instance: autocast, func: _F) -> _F:
    """Return `func` whose calls are inside the region."""

    @functools.wraps(func)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with autocast_instance:
            return func(*args, **kwargs)

    return decorated  # type: ignore[return-value]


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: dtypes.dtype | None = None
) -> Any:
    """Decorate the `forward` of an `autograd.Function`, so that it knows what to do inside autocast.

    cast_inputs: inside a region, tensors of floating point (but float64) are cast to it, and forward runs with autocast
    off. None: forward runs in the region. Outside of regions nothing changes. `custom_bwd` is for the backward.
    """
    _check_device_type(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)
    state.check_type("custom_fwd", device_type)

    @functools.wraps(fwd)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        inside = device_type in state.here.enabled
        ctx._dtype = state.here.dtypes[device_type]
        ctx._fwd_used_autocast = inside and cast_inputs is None
        if not inside or cast_inputs is None:
            return fwd(ctx, *args, **kwargs)
        with autocast(device_type, enabled=False):
            args, kwargs = (casting.cast_all(given, device_type, cast_inputs) for given in (args, kwargs))
            return fwd(ctx, *args, **kwargs)

    return decorated


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Any:
    """Decorate the `backward` of an `autograd.Function` with a `custom_fwd`: it runs with the autocast of forward."""
    _check_device_type(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)
    state.check_type("custom_bwd", device_type)

    @functools.wraps(bwd)
    def decorated(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        with autocast(device_type, enabled=ctx._fwd_used_autocast, dtype=ctx._dtype):
            return bwd(ctx, *args, **kwargs)

    return decorated
