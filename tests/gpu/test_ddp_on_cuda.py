"""Data parallelism of modules on `cuda`: over stand-ins for NCCL, for CUDA's IPC, and by way of the host."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ddp_cases
import extent
import fake_nccl
import pytest
from standin_groups import BACKENDS

import resilin
from resilin import distributed as dist
from resilin.core import device as devices
from resilin.ddp import DistributedDataParallel
from resilin.distributed.backends.registry import Backend
from resilin.errors import PeerLost
from resilin.testing.faults import FaultPlan
from resilin.testing.ranks import run_ranks


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The backend string of a group, with stand-ins for what it needs."""
    yield BACKENDS[request.param](monkeypatch)
    fake_nccl.UNBLOCK.set()


@pytest.mark.parametrize("case", list(ddp_cases.CASES))
def test_a_module_on_the_device_trains_as_on_the_cpu(backend: str, case: str) -> None:
    run_ranks(2, ddp_cases.CASES[case], backend=backend).results()


def test_nothing_is_copied_to_the_host_where_the_backend_reads_the_devices(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = "cuda:gloo" in backend
    device = devices.backend_of("cuda")
    copied: list[int] = []
    to_host = type(device).to_host

    def counting(self: Any, array: Any) -> Any:
        copied.append(array.nbytes)
        return to_host(self, array)

    monkeypatch.setattr(type(device), "to_host", counting)

    def train(rank: int) -> list[int]:
        model = DistributedDataParallel(ddp_cases.make_net().to("cuda"), [0], broadcast_buffers=False)
        for step in range(3):
            x = ddp_cases.batch(step, rank).to("cuda")
            dist.barrier()
            copied.clear()
            dist.barrier()
            model.zero_grad()
            model(x).square().mean().backward()
        dist.barrier()
        return model.stats()["bucket_bytes"]

    buckets = run_ranks(2, train, backend=backend).results()[0]
    assert sorted(copied) == (sorted(2 * buckets) if staged else [])


@pytest.mark.parametrize("shards", [None, 4])
def test_the_survivors_of_a_rank_that_dies_in_a_step_name_it(backend: str, shards: int | None) -> None:
    plan = FaultPlan().kill(rank=1, at="tree_all_reduce" if shards else "all_reduce", call=3)

    def train(rank: int) -> None:
        model = DistributedDataParallel(ddp_cases.make_net().to("cuda"), [0], shards=shards, bucket_cap_mb=1e-4)
        sampler = resilin.data.ElasticSampler(8, 8, 4, seed=1)
        x = ddp_cases.batch(0, rank)
        for step in range(8):
            model.zero_grad()
            if shards is None:
                model(x).square().mean().backward()
                continue
            for part in next(iter(sampler.steps(rank, dist.get_world_size()))).shards:
                with model.shard(part):
                    model(x + step).square().mean().backward()
            sampler.step += 1

    outcome = run_ranks(3, train, backend=backend, faults=plan)
    assert plan.all_fired()
    assert set(outcome.errors) == {0, 2}
    for error in outcome.errors.values():
        assert isinstance(error, PeerLost)
        assert set(error.ranks) == {1}


@pytest.fixture
def elastic(backend: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Import a helper of the tests of `elastic`, whose groups then use the backend."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "elastic" / "worker"))
    pairs = dict(pair.split(":") for pair in backend.split(",")) if ":" in backend else {"cuda": backend}
    monkeypatch.setitem(Backend.default_device_backend_map, "cuda", Backend(pairs["cuda"]))
    return importlib.import_module


@pytest.mark.slow
@pytest.mark.parametrize("how", ["optimizer", "stage 3"])
def test_divided_state_on_the_device_outlives_those_who_hold_it(
    elastic: Callable[[str], Any], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generations, states = elastic("generations"), elastic("device_states")
    monkeypatch.setattr(generations, "digest", elastic("test_divided_state").digest)
    (alone,) = states.Divided("whole", "cuda").results(1)
    changes = [generations.Change(1, "reduced", (0,), 3), generations.Change(3, "applied", (2,), 2)]
    assert states.Divided(how, "cuda").results(3, *changes) == {alone}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", extent.short(["dense, momentum, clipped", "attention, shared weights"], of=["dense, momentum, clipped"])
)
def test_elastic_training_on_the_device_ends_with_the_bits_of_one_worker(
    elastic: Callable[[str], Any], kind: str
) -> None:
    generations, zoo = elastic("generations"), elastic("zoo")
    there = replace(zoo.KINDS[kind], device="cuda")
    play: Callable[..., list[str]] = partial(generations.play, partial(zoo.make, there), partial(zoo.train, there))
    (alone,) = play(1)
    changes = [
        generations.Change(1, "backward", (0,), 3),
        generations.Change(2, "applied", (2,), 2),
        generations.Change(3, "committed", (), 3),
    ]
    assert set(play(3, changes)) == {alone}
