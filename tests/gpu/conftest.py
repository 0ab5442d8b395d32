"""The `cuda` device of these tests: the stand-in, and with `-m gpu` a real one."""

from collections.abc import Iterator
from typing import Any

import cupy_standin
import pytest

from resilin.core import device as devices
from resilin.core.backends.cupy import CupyBackend
from resilin.core.kernels import common


@pytest.fixture(scope="module")
def standin() -> Iterator[Any]:
    """The `cuda` backend over the stand-in, while the module's tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_BACKENDS", {k: b for k, b in devices._BACKENDS.items() if k != "cuda"})
        patch.setattr(devices, "_DEVICES", {k: d for k, d in devices._DEVICES.items() if k[0] != "cuda"})
        patch.setattr(common, "_NAMESPACES", dict(common._NAMESPACES))
        backend = CupyBackend(cupy_standin.make_module(devices=2), devices.NUMPY_XP)
        devices.register_backend(backend)
        yield backend
