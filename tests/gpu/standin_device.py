"""The stand-in for CuPy as the device "cuda", and its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_work import WORK
from null_libraries import NullDriver

from resilin.core import device as devices
from resilin.core.backends.cuda_driver import Driver
from resilin.core.backends.cupy import CupyBackend
from resilin.core.kernels import common
from resilin.core.kernels.loader import native


def install(patch: pytest.MonkeyPatch, module: Any) -> CupyBackend:
    """Register `module` as the device "cuda" until `patch` is undone."""
    patch.setattr(devices, "_BACKENDS", {k: b for k, b in devices._BACKENDS.items() if k != "cuda"})
    patch.setattr(devices, "_DEVICES", {k: d for k, d in devices._DEVICES.items() if k[0] != "cuda"})
    patch.setattr(common, "_NAMESPACES", dict(common._NAMESPACES))
    backend = CupyBackend(module, module.cupyx, devices.NUMPY_XP, driver(module))
    devices.register_backend(backend)
    return backend


def driver(module: Any) -> Driver | None:
    """The null driver under `module`, whose launches count as the stand-in's own; None without native code."""
    if native is None:
        return None
    null = NullDriver()
    null.reset()
    null.listen(lambda name: WORK.launches.update((name,)))
    made = Driver(null.path, null.path, module.cuda.get_current_stream, lambda size: module.empty(size, np.uint8))
    made.null = null  # type: ignore[attr-defined] # for tests, and so that it goes on listening
    return made


def cuda(array: Any) -> Any:
    """An array of the device's with these values."""
    return devices.backend_of("cuda").from_host(np.asarray(array), 0)
