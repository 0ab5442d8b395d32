"""Where autocast is enabled in this thread, with which dtypes, and the casts of weights that it keeps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from resilin.core import dtype as dtypes
from resilin.core.kernels import loader

TYPES = ("cpu", "cuda")  # the device types that it is there for
_DEFAULTS = {"cpu": dtypes.bfloat16, "cuda": dtypes.float16}
_NONE: frozenset[str] = frozenset()
_LOCK = threading.Lock()
threads = 0  # those in which it is enabled, or more; guarded by _LOCK. Where it is 0, calls look no further


class Kept(NamedTuple):
    """The cast of a weight, with what it was made of and in: any of it being another makes the cast another."""

    weight: weakref.ref[Any]
    array: weakref.ref[Any]
    frame: weakref.ref[Any] | None  # of the checkpoint that was running, whose second run makes the cast again
    writes: int
    cast: Any


class _State(threading.local):
    def __init__(self) -> None:
        self.enabled = _NONE  # device types
        self.dtypes = dict(_DEFAULTS)
        self.cache_enabled = True
        self.nesting = 0
        self.entered: list[tuple[str, bool, Any, bool]] = []  # what was before each `enter`
        self.cache: dict[tuple[int, int], Kept] = {}  # by identities of the weight and of the checkpoint


here = _State()


def check_type(where: str, device_type: Any) -> str:
    """Return a type of devices that has autocast. TypeError for what is no text, RuntimeError for another type."""
    if not isinstance(device_type, str):
        raise TypeError(f"{where}: device_type must be a str, got {type(device_type).__name__}")
    if device_type not in TYPES:
        raise RuntimeError(f"{where}: unknown device type for autocast, {device_type!r}; there are {', '.join(TYPES)}")
    return device_type


def set_types(enabled: frozenset[str]) -> None:
    """Enable it in this thread for exactly these device types."""
    change = bool(enabled) - bool(here.enabled)
    here.enabled = enabled
    if change:
        _count(change)


def _count(change: int) -> None:
    global threads
    with _LOCK:
        threads += change
        if loader.native is not None:
            loader.native.function_casts(change)


def set_enabled(device_type: str, enabled: bool) -> None:
    """Enable it in this thread for a device type, or not."""
    set_types(here.enabled | {device_type} if enabled else here.enabled - {device_type})


def increment_nesting() -> int:
    """Go one region deeper, and return how deep that is."""
    here.nesting += 1
    return here.nesting


def decrement_nesting() -> int:
    """Leave one region, and return how many remain."""
    here.nesting -= 1
    return here.nesting


def clear_cache() -> None:
    """Forget the casts of weights."""
    here.cache.clear()


def enter(device_type: str, dtype: Any, enabled: bool, cache_enabled: bool) -> None:
    """Begin a region, which `leave` ends."""
    here.entered.append((device_type, device_type in here.enabled, here.dtypes[device_type], here.cache_enabled))
    set_enabled(device_type, enabled)
    here.dtypes[device_type], here.cache_enabled = dtype, cache_enabled
    increment_nesting()


def leave() -> None:
    """End the region that was begun last; after the outermost, no cast is kept."""
    if decrement_nesting() == 0:
        clear_cache()
    device_type, enabled, here.dtypes[device_type], here.cache_enabled = here.entered.pop()
    set_enabled(device_type, enabled)


def carried() -> Callable[[], Any]:
    """Return what makes a context with this thread's state of now, also in another thread."""
    taken = (here.enabled, dict(here.dtypes), here.cache_enabled)

    @contextmanager
    def entered() -> Iterator[None]:
        before = (here.enabled, here.dtypes, here.cache_enabled)
        _put(taken[0], dict(taken[1]), taken[2])
        increment_nesting()
        try:
            yield
        finally:
            if decrement_nesting() == 0:
                clear_cache()
            _put(*before)

    return entered


def _put(enabled: frozenset[str], by_type: dict[str, Any], cache_enabled: bool) -> None:
    set_types(enabled)
    here.dtypes, here.cache_enabled = by_type, cache_enabled
