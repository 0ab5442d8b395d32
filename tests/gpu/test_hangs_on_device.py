"""A rank that does not come to a collective of a device's tensors is named, on both backends of devices."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path

import cupy_standin
import extent
import fake_ipc
import fake_nccl
import pytest
import standin_device
from standin_device import cuda

from resilin.elastic.hangs.step_time import FLOOR_S, StepTime
from resilin.testing import hangs
from resilin.testing.faults import FaultPlan
from resilin.testing.hangs import COLLECTIVES, HUNG, LIMIT_S, Named

SIZE = 3


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


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backend string of a group, with stand-ins for what it needs."""
    return BACKENDS[request.param](monkeypatch)


def is_named(found: Named, what: str) -> bool:
    return found.verdict.ranks == (HUNG,) and f"in {what} " in found.verdict.reason


def test_the_rank_that_is_missing_from_a_collective_is_named(tmp_path: Path, backend: str) -> None:
    found = hangs.hangs(tmp_path, SIZE, COLLECTIVES, make=cuda, backend=backend)
    assert not {name: one for name, one in found.items() if not is_named(one, name)}
    assert all(LIMIT_S <= one.silent_s < 8.0 for one in found.values())


@pytest.mark.parametrize("name", ["barrier", "all_reduce", "tree_all_reduce"])
def test_a_rank_that_hangs_inside_a_collective_before_it_tells_the_others_is_named(
    tmp_path: Path, backend: str, name: str
) -> None:
    """As where its device never comes to an end, while it copies for the host."""
    frozen = FaultPlan().freeze(HUNG, name, call=int(name == "barrier"))  # one barrier there is before it
    found = hangs.hang(tmp_path, SIZE, COLLECTIVES[name], make=cuda, backend=backend, comes=frozen)
    assert frozen.all_fired()
    assert is_named(found, name), found


@pytest.mark.parametrize("backend", extent.short(BACKENDS, of=["nccl"]), indirect=True)
def test_at_the_limit_that_real_jobs_have_it_takes_less_than_eight_seconds(tmp_path: Path, backend: str) -> None:
    found = hangs.hang(tmp_path, SIZE, COLLECTIVES["tree_all_reduce"], make=cuda, backend=backend, pace=StepTime())
    assert is_named(found, "tree_all_reduce"), found
    assert FLOOR_S <= found.silent_s < 8.0
