"""The `cuda` device of these tests: the stand-in, or with `pytest -m gpu` a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cuda_emulation
import cupy_standin
import pytest

from resilin.core import device as devices
from resilin.core.backends.cupy import CupyBackend
from resilin.core.kernels import common


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that use `cuda` run on the stand-in; `-m gpu` selects a device in its place."""
    if "cuda" in metafunc.fixturenames:
        real = metafunc.config.option.markexpr == "gpu"
        chosen = pytest.param("device", marks=pytest.mark.gpu) if real else pytest.param("standin")
        metafunc.parametrize("cuda", [chosen], indirect=True, scope="module")


@pytest.fixture(scope="module")
def cuda(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The backend of the device "cuda", while a module's tests run."""
    if request.param == "device":
        try:
            yield devices.backend_of("cuda")
        except RuntimeError as error:
            pytest.skip(f"no CUDA device: {error}")
        return
    if cuda_emulation.compiler() is None:
        pytest.skip("the CUDA kernels run on the host here, which needs a C++ compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "_BACKENDS", {k: b for k, b in devices._BACKENDS.items() if k != "cuda"})
        patch.setattr(devices, "_DEVICES", {k: d for k, d in devices._DEVICES.items() if k[0] != "cuda"})
        patch.setattr(common, "_NAMESPACES", dict(common._NAMESPACES))
        module = cupy_standin.make_module(devices=2)
        backend = CupyBackend(module, module.cupyx, devices.NUMPY_XP)
        devices.register_backend(backend)
        yield backend
