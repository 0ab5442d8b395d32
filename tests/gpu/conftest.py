"""The `cuda` device of these tests: the stand-in, or with `pytest -m gpu` a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cuda_emulation
import cupy_standin
import pytest
import standin_device

from resilin.core import device as devices


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
        yield standin_device.install(patch, cupy_standin.make_module(devices=2))
