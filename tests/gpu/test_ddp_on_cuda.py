"""Data parallelism of modules on `cuda`: over stand-ins for NCCL, for CUDA's IPC, and by way of the host."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import cupy_standin
import ddp_cases
import fake_ipc
import fake_nccl
import pytest
import standin_device

from resilin.testing.ranks import run_ranks

BACKENDS = {"nccl": "nccl", "cuda_ipc": "cpu:cpu,cuda:cuda_ipc", "host": "cpu:gloo,cuda:gloo"}


@pytest.fixture(params=list(BACKENDS))
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call a case on ranks whose device tensors go over one of the backends."""
    module = cupy_standin.make_module(devices=2)
    if request.param == "cuda_ipc":
        fake_ipc.install(module, monkeypatch)
    monkeypatch.setattr(fake_nccl, "MADE", [])
    monkeypatch.setattr(fake_nccl, "UNBLOCK", threading.Event())
    if request.param == "nccl":
        gpus = itertools.count()
        module.cuda.runtime.deviceGetPCIBusId = lambda index: f"0000:{next(gpus):02x}:00.0"  # ranks are threads
        module.cuda.Stream, module.cuda.Event = fake_nccl.Stream, fake_nccl.Event
    device = standin_device.install(monkeypatch, module)
    library = fake_nccl.make_nccl()
    monkeypatch.setattr(device, "nccl", lambda: library)

    def of(size: int, case: Callable[..., Any], **options: Any) -> Any:
        return run_ranks(size, case, backend=BACKENDS[request.param], **options)

    yield of
    fake_nccl.UNBLOCK.set()


@pytest.mark.parametrize("case", list(ddp_cases.CASES))
def test_a_module_on_the_device_trains_as_on_the_cpu(run: Any, case: str) -> None:
    run(2, ddp_cases.CASES[case]).results()
