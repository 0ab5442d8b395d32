"""Devices and the registry of backends behind them."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from resilin.core.backends import cupy, meta
from resilin.core.backends.absent import Absent
from resilin.core.backends.base import ArrayBackend
from resilin.core.backends.numpy import NumpyBackend, SimBackend, make_xp
from resilin.core.kernels.common import register_namespace
from resilin.core.kernels.loader import native

_BACKENDS: dict[str, ArrayBackend] = {}
_DEVICES: dict[tuple[str, int | None], device] = {}
_BEFORE_REGISTRATION: list[Callable[[ArrayBackend], None]] = []
_EXTRAS: dict[str, Callable[..., Any]] = {}  # ops that array libraries have no function for: name to forward function


class device:
    """Where a tensor lives: `device("cpu")`, `device("sim:1")`, `device("sim", 1)`. Equal devices are one object.

    One of PyTorch's types that this machine has no device of ("cuda" without a GPU, "mps") is a value, too: what uses
    it raises RuntimeError, which says what is missing. So does an unknown type, or an index that does not exist.
    `device("cpu:0")` is a value beside `device("cpu")`, as in PyTorch: tensors that are made on it are on its `home`.
    """

    __slots__ = ("backend", "home", "index", "type", "xp")
    backend: ArrayBackend
    type: str
    index: int | None
    home: device
    xp: Any

    def __new__(cls, type: str | int | device, index: int | None = None) -> device:
        if isinstance(type, device):
            return type
        if isinstance(type, int) and not isinstance(type, bool):  # as in PyTorch: the number of a GPU
            return device("cuda", type)
        if not isinstance(type, str) or not isinstance(index, int | None):
            given = index if isinstance(type, str) else type
            raise TypeError(f"device(): expected a name such as 'cpu' or 'cuda:0', or a name and number; got {given!r}")
        if ":" in type:
            type, index = _parsed(type, index)
        if index is None and type not in _WITHOUT_NUMBER and (type, None) not in _DEVICES:
            index = _current(type)
        found = _DEVICES.get((type, index))
        return found or _make(cls, type, index)

    def __repr__(self) -> str:
        return (
            f"device(type={self.type!r})" if self.index is None else f"device(type={self.type!r}, index={self.index})"
        )

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (str(self),)

    def __enter__(self) -> device:
        """Inside the block, functions that are given no device make tensors on this one. Of this thread."""
        _choosing()
        _CHOSEN.entered.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _CHOSEN.entered.pop()


def _parsed(text: str, index: int | None) -> tuple[str, int]:
    name, _, digits = text.partition(":")
    if not (digits.isascii() and digits.isdigit()):
        raise RuntimeError(f"invalid device string {text!r}: expected 'type' or 'type:number'")
    if index is not None:
        raise RuntimeError(f"device(): {text!r} has an index already, but {index} was passed, too")
    return name, int(digits)


def _make(cls: Any, type: str, index: int | None) -> device:
    backend: Any = _backend_or_why(type)
    home = None if type not in _WITHOUT_NUMBER or index is None or index < 0 else device(type)
    if not isinstance(backend, Absent) and index is not None and home is None and not 0 <= index < backend.count():
        why = f"device {type}:{index} does not exist: {type} has {backend.count()} device(s)"
        if type not in _PYTORCHS:
            raise RuntimeError(why)
        backend = Absent(type, why)
    made: device = object.__new__(cls)
    made.type, made.index, made.backend, made.home = type, index, backend, home or made
    made.xp = backend if isinstance(backend, Absent) else backend.xp
    return _DEVICES.setdefault((type, index), made)


def present(name: str | int | device) -> device:
    """Give the device that tensors of that name are on. RuntimeError says why where this machine has none of it."""
    found = device(name).home
    if isinstance(found.backend, Absent):
        found.backend.refuse()
    return found


_WITHOUT_NUMBER = ("cpu", "meta")
_PYTORCHS = ("cuda", "mps", "xpu", "hpu", "mtia", "xla", "ipu", "hip", "vulkan", "maia", "privateuseone")
_LATE: dict[str, Callable[[Any], ArrayBackend]] = {  # backends that are made at first use
    "cuda": cupy.load,
    "meta": meta.load,
}


def _backend_or_why(type: str) -> ArrayBackend | Absent:
    """The backend of devices of `type`; of one of PyTorch's types that there is none of here, what says why."""
    try:
        return backend_of(type)
    except RuntimeError as error:
        if type not in _PYTORCHS:
            raise
        return Absent(type, str(error))


def _load(type: str) -> ArrayBackend | None:
    """The backend of a device that is named for the first time, registered; None when there is none of that type."""
    make = _LATE.get(type)
    if make is not None:
        register_backend(make(NUMPY_XP))
    return _BACKENDS.get(type)


def backend_of(type: str) -> ArrayBackend:
    """The backend of devices of `type`. RuntimeError says why there is none."""
    found = _BACKENDS.get(type) or _load(type)
    if found is None:
        raise _unknown(type)
    return found


def loaded_backend_of(type: str) -> ArrayBackend | None:
    """The backend of devices of `type` where it is in use already; never imports a library."""
    return _BACKENDS.get(type)


def check_type(type: str) -> None:
    """RuntimeError unless there can be devices of `type`, even where this machine has none."""
    if type not in _BACKENDS and type not in _LATE:
        raise _unknown(type)


def _unknown(type: str) -> RuntimeError:
    return RuntimeError(
        f"no backend is registered for device type {type!r}; there are {', '.join(sorted(_BACKENDS))} "
        "(register_backend adds one)"
    )


def _current(type: str) -> int | None:
    backend = _backend_or_why(type)
    return None if isinstance(backend, Absent) else backend.current()


def register_backend(backend: ArrayBackend) -> None:
    """Make devices of `backend.type` available. Raises RuntimeError when the type is taken."""
    if not isinstance(backend, ArrayBackend):
        raise TypeError(f"register_backend: expected a resilin.core.backends.ArrayBackend, got {backend!r}")
    kind = getattr(backend, "type", None)
    if not (isinstance(kind, str) and kind.isidentifier()):
        raise ValueError(f"register_backend: expected a backend whose `type` is a name such as 'npu', got {kind!r}")
    if not hasattr(backend, "xp"):
        raise ValueError(f"register_backend: backend {kind!r} has no `xp`, the namespace that ops compute with")
    if kind in _BACKENDS:
        raise RuntimeError(f"device type {kind!r} already has a backend")
    for check in _BEFORE_REGISTRATION:
        check(backend)
    _BACKENDS[backend.type] = backend
    for key in [key for key, made in _DEVICES.items() if key[0] == kind and isinstance(made.backend, Absent)]:
        del _DEVICES[key]
    if not hasattr(backend.xp, "elements"):
        backend.xp.elements = backend.elements
    for name, forward in _EXTRAS.items():
        _complete(backend.xp, name, forward)


class _Chosen(threading.local):
    """This thread's choice of a default device, and those of `with device:` blocks, innermost last."""

    def __init__(self) -> None:
        self.default: device | None = None
        self.entered: list[device] = []


_CHOSEN = _Chosen()


@functools.cache
def _choosing() -> None:
    """Let native code, too, ask for the default device from now on; before the first choice it is the CPU."""
    if native is not None:
        native.creation_device(default_device)


def default_device() -> device:
    """Where tensors are made when no device is given."""
    return _CHOSEN.entered[-1] if _CHOSEN.entered else _CHOSEN.default or CPU


get_default_device = default_device


def set_default_device(device: Any) -> None:
    """Make tensors on `device` when none is given, in this thread; None is the CPU again."""
    _choosing()
    _CHOSEN.default = None if device is None else _device(device)


_device = device  # a function's argument has its name


def device_types() -> tuple[str, ...]:
    """The types that have a backend, in the order of registration: "cpu" first."""
    return tuple(_BACKENDS)


def check_all() -> None:
    """Raise what a device has found wrong with values that the host has not looked at; waits only where one may have.

    IndexError or RuntimeError names the operation, and the line of the program.
    """
    for backend in tuple(_BACKENDS.values()):
        backend.check()


def before_registration(check: Callable[[ArrayBackend], None]) -> None:
    """Call `check` with each backend that is registered from now on; an error of it refuses the backend."""
    _BEFORE_REGISTRATION.append(check)


def lacking(name: str, error: AttributeError) -> Exception:
    """NotImplementedError when op `name` asked a backend's namespace for a function that is not there, else `error`."""
    for backend in _BACKENDS.values():
        xp = backend.xp
        if error.obj is not None and any(error.obj is part for part in (xp, *(getattr(xp, n, None) for n in _PARTS))):
            return NotImplementedError(
                f"{name} is not supported on {backend.type} devices: the backend's array library has no function "
                f"{error.name!r}. Move its tensors with .cpu(), or override the op for {backend.type!r}"
            )
    return error


_PARTS = ("linalg", "fft")  # what a namespace holds besides functions


def add_to_namespaces(name: str, forward: Callable[..., Any]) -> None:
    """Let rules call op `name` as `xp.name(...)` on every backend whose library has no such function."""
    _EXTRAS[name] = forward
    for backend in _BACKENDS.values():
        _complete(backend.xp, name, forward)


def _complete(xp: Any, name: str, forward: Callable[..., Any]) -> None:
    if not hasattr(xp, name):
        setattr(xp, name, _once(xp, name, forward) if name in _NUMPYS_OWN else partial(forward, xp))


def _once(xp: Any, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` for an `xp` without numpy's function of this name; AttributeError when `forward` needs just that."""
    running = threading.local()

    def run(*args: Any) -> Any:
        if getattr(running, "here", False):
            raise AttributeError(f"no function {name!r}", name=name, obj=xp)
        running.here = True
        try:
            return forward(xp, *args)
        finally:
            running.here = False

    return run


NUMPY_XP = make_xp()
_NUMPYS_OWN = frozenset(vars(NUMPY_XP))
register_namespace(np.ndarray, NUMPY_XP)
register_backend(NumpyBackend(NUMPY_XP))
register_backend(SimBackend(NUMPY_XP))
CPU = device("cpu")


def different_devices(where: str, a: device, b: device) -> RuntimeError:
    """The error for tensors that cannot meet."""
    return RuntimeError(
        f"{where}: expected all tensors to be on the same device, found {a} and {b}; move one with .to({str(a)!r})"
    )
