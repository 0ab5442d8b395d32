"""The stand-in for CuPy as the device "cuda", and its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resilin.core import device as devices
from resilin.core.backends.cupy import CupyBackend
from resilin.core.kernels import common


def install(patch: pytest.MonkeyPatch, module: Any) -> CupyBackend:
    """Register `module` as the device "cuda" until `patch` is undone."""
    patch.setattr(devices, "_BACKENDS", {k: b for k, b in devices._BACKENDS.items() if k != "cuda"})
    patch.setattr(devices, "_DEVICES", {k: d for k, d in devices._DEVICES.items() if k[0] != "cuda"})
    patch.setattr(common, "_NAMESPACES", dict(common._NAMESPACES))
    backend = CupyBackend(module, module.cupyx, devices.NUMPY_XP)
    devices.register_backend(backend)
    return backend


def cuda(array: Any) -> Any:
    """An array of the device's with these values."""
    return devices.backend_of("cuda").from_host(np.asarray(array), 0)
