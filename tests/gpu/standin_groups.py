"""What groups of threads need to carry tensors of the stand-in for a GPU: each backend by name, with its stand-ins."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import cupy_standin
import fake_ipc
import fake_nccl
import pytest
import standin_device


def _nccl(patch: pytest.MonkeyPatch) -> str:
    patch.setattr(fake_nccl, "MADE", [])
    patch.setattr(fake_nccl, "UNBLOCK", threading.Event())
    made = cupy_standin.make_module(devices=2)
    gpus = itertools.count()
    made.cuda.runtime.deviceGetPCIBusId = lambda index: f"0000:{next(gpus):02x}:00.0"  # ranks are threads
    made.cuda.Stream, made.cuda.Event = fake_nccl.Stream, fake_nccl.Event
    library = fake_nccl.make_nccl()
    patch.setattr(standin_device.install(patch, made), "nccl", lambda: library)
    return "nccl"


def _ipc(patch: pytest.MonkeyPatch) -> str:
    module = cupy_standin.make_module(devices=2)
    fake_ipc.install(module, patch)
    standin_device.install(patch, module)
    return "cpu:cpu,cuda:cuda_ipc"


def _staged(patch: pytest.MonkeyPatch) -> str:
    standin_device.install(patch, cupy_standin.make_module(devices=2))
    return "cuda:gloo,cpu:gloo"


BACKENDS: dict[str, Callable[[pytest.MonkeyPatch], str]] = {"nccl": _nccl, "cuda_ipc": _ipc, "staged": _staged}
"""Each installs the device "cuda" until the patch is undone, and gives the backend string."""
