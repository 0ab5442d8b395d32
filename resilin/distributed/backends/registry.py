"""Register names of backends: what makes each, for which devices, and what a string such as "cpu:gloo,cuda:nccl" means.

    "cpu", "gloo"     shared memory inside a host, TCP between hosts ("gloo": so PyTorch's programs run unchanged)
    "mpi"             MPI, through mpi4py
    "nccl"            GPUs, through CuPy
    "cuda_ipc"        GPUs of one host that read one another's memory
    "name"            whatever `Backend.register_backend("name", ...)` makes

A string without devices stands for all that the backend can serve. Tensors of the other devices of a backend of the
host ("cuda:gloo") are copied to the host and back. All ranks of a group must give the same string: `connect` compares.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from resilin.core import device as devices
from resilin.errors import UsageError

HOST = "cpu"  # the device type whose tensors are numpy arrays, and the built-in backend that serves them


@dataclass(frozen=True)
class Registered:
    """One backend by name."""

    name: str
    make: Callable[..., Any] | None
    """As given to `register_backend`; None for what is built in."""
    devices: tuple[str, ...]
    """The device types that the name alone stands for."""
    native: tuple[str, ...]
    """Those whose arrays it takes as they are; others are staged through the host."""
    extended_api: bool = False
    """Whether `make` gets (setup, options) in place of (store, rank, size, timeout)."""


class Backend(str):
    """A backend's name in lower case, as in torch.distributed: `Backend("GLOO") == Backend.GLOO == "gloo"`.

    Any name may be given here; that it is known is checked where a group is made.
    """

    __slots__ = ()

    UNDEFINED = "undefined"
    CPU = "cpu"
    GLOO = "gloo"
    MPI = "mpi"
    NCCL = "nccl"
    CUDA_IPC = "cuda_ipc"
    UCC = "ucc"  # PyTorch's, which nobody makes here unless registered
    XCCL = "xccl"

    backend_list: ClassVar[list[str]] = [UNDEFINED, CPU, GLOO, NCCL, MPI, CUDA_IPC]
    default_device_backend_map: ClassVar[dict[str, str]] = {"cpu": CPU, "cuda": NCCL}
    backend_capability: ClassVar[dict[str, list[str]]] = {
        CPU: ["cpu", "cuda"],
        GLOO: ["cpu", "cuda"],
        MPI: ["cpu", "cuda"],
        NCCL: ["cuda"],
        CUDA_IPC: ["cuda"],
    }

    def __new__(cls, name: str) -> Backend:
        """UsageError when `name` is no text."""
        if not isinstance(name, str):
            raise UsageError(f"backend: expected a name such as 'cpu' or 'cpu:gloo,cuda:nccl', got {name!r}")
        return super().__new__(cls, name.lower())

    @classmethod
    def register_backend(
        cls,
        name: str,
        func: Callable[..., Any],
        extended_api: bool = False,
        devices: str | Sequence[str] | None = None,
    ) -> None:
        """Let groups be made with backend `name`, for tensors of `devices` (None: "cpu" and "cuda", with a warning).

        Every rank registers alike, before it makes the group. On each, `func(store, rank, size, timeout)` is called
        when the group needs the backend (for "cpu": when it is made; for other devices: in the first collective), and
        returns an object with the methods of `dist.backends.base.Backend`, most simply a subclass of
        `dist.backends.scheduled.ScheduledBackend`. With `extended_api` the call is `func(setup, pg_options)`;
        `dist.backends.setup.Setup` says what is in it. A name registered again is replaced, for groups made later; a
        device without a default backend gets `name` for it. UsageError for a name that is built in.
        """
        key = Backend(name)
        if key in _BUILT_IN or not key.replace("-", "_").isidentifier():
            raise UsageError(f"register_backend: expected a name that is not built in, made of letters, got {name!r}")
        if not callable(func):
            raise UsageError(f"register_backend({name!r}): func: expected a function, got {func!r}")
        if devices is None:
            warnings.warn(
                f"register_backend({name!r}): devices is not given: taken to be 'cpu' and 'cuda'", stacklevel=2
            )
        kinds = ("cpu", "cuda") if devices is None else (devices,) if isinstance(devices, str) else tuple(devices)
        for kind in kinds if devices is not None else ():
            cls.default_device_backend_map.setdefault(kind, key)
        _PLUGINS[key] = Registered(key, func, kinds, kinds, extended_api)
        cls.backend_capability[key] = list(kinds)
        setattr(cls, key.replace("-", "_").upper(), str(key))
        if key not in cls.backend_list:
            cls.backend_list.append(str(key))


_BUILT_IN = {
    name: Registered(name, None, tuple(kinds), ("cuda",) if "cpu" not in kinds else ("cpu",))
    for name, kinds in Backend.backend_capability.items()
}
_PLUGINS: dict[str, Registered] = {}


class BackendConfig:
    """Say which backend serves which device type of a group: `device_backend_map`. `str()` lists the pairs.

    Made of a backend string; None is the default backend of every device type that has one. `name` is the string in
    lower case ("cpu" for None). UsageError for a string that means nothing, or a name that nobody registered.
    """

    def __init__(self, backend: str | None = None) -> None:
        text = Backend.UNDEFINED if backend is None else Backend(backend)
        self.name = Backend(Backend.CPU if text == Backend.UNDEFINED else text)
        if text == Backend.UNDEFINED:
            pairs = list(Backend.default_device_backend_map.items())
        elif ":" in text:
            pairs = [_pair(part, text) for part in text.split(",")]
        else:
            pairs = [(kind, text) for kind in find(text).devices]
        self.device_backend_map: dict[str, Backend] = {}
        for kind, name in pairs:
            if kind in self.device_backend_map:
                raise UsageError(f"backend {text!r} names device type {kind!r} twice")
            self.device_backend_map[kind] = Backend(find(name).name)

    def get_device_backend_map(self) -> dict[str, Backend]:
        """The backend's name for each device type."""
        return self.device_backend_map

    def __repr__(self) -> str:
        return ",".join(f"{kind}:{name}" for kind, name in self.device_backend_map.items())


def _pair(part: str, text: str) -> tuple[str, str]:
    kind, _, name = (piece.strip() for piece in part.partition(":"))
    if not kind or not name or ":" in name:
        raise UsageError(f"backend: expected pairs such as 'cpu:gloo,cuda:nccl', got {part!r} in {text!r}")
    return kind, name


def find(name: str) -> Registered:
    """The backend called `name`. UsageError says which there are."""
    found = _PLUGINS.get(name) or _BUILT_IN.get(name)
    if found is None:
        there = ", ".join([*_BUILT_IN, *_PLUGINS])
        raise UsageError(
            f"backend {name!r} is not available; use 'cpu', or another of {there}; Backend.register_backend adds one"
        )
    return found


def checked(where: str, backend: str | None) -> BackendConfig:
    """The configuration that `backend` means. UsageError, which begins with `where`, when it cannot be used here."""
    try:
        config = BackendConfig(backend)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    for name in set(config.device_backend_map.values()) if backend is not None else ():
        why = _missing(name)
        if why is not None:
            raise UsageError(f"{where}: backend {str(name)!r} is not available: {why}; 'cpu' is always there")
    return config


def _missing(name: str) -> str | None:
    """Why the backend cannot be used in this process; None when it can, as far as is known before it is made."""
    if name == Backend.MPI and importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install 'resilin[mpi]', or mpi4py beside the cluster's own MPI)"
    if name in (Backend.NCCL, Backend.CUDA_IPC):
        try:
            devices.backend_of("cuda")
        except RuntimeError as error:
            return str(error)
    return None


def is_backend_available(backend: str) -> bool:
    """Return whether groups can be made with this backend here; of "cpu:gloo,cuda:nccl": with all of them."""
    try:
        checked("", backend)
    except UsageError:
        return False
    return True


def is_gloo_available() -> bool:
    """True: "gloo" is another name of the built-in `cpu` backend."""
    return True


def is_mpi_available() -> bool:
    """Return whether mpi4py is installed."""
    return is_backend_available(Backend.MPI)


def is_nccl_available() -> bool:
    """Return whether CuPy and a CUDA device are there. Imports CuPy."""
    return is_backend_available(Backend.NCCL)


def is_ucc_available() -> bool:
    """False, unless a backend called "ucc" was registered."""
    return is_backend_available("ucc")


def is_xccl_available() -> bool:
    """False, unless a backend called "xccl" was registered."""
    return is_backend_available("xccl")


def get_default_backend_for_device(device: Any) -> str:
    """The backend that groups use for tensors of `device` unless told otherwise. UsageError when there is none."""
    kind = getattr(device, "type", None) or str(device).partition(":")[0]
    found = Backend.default_device_backend_map.get(kind)
    if found is None:
        raise UsageError(
            f"get_default_backend_for_device: device type {kind!r} has no default backend; register one with "
            f"Backend.register_backend(name, func, devices={kind!r}), or name one, as in backend='{kind}:gloo'"
        )
    return found
