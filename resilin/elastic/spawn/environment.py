"""Make the variables a worker finds: PyTorch's, so that scripts written for torchrun run unchanged, and ours. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from resilin.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class WorkerPlace:
    """Record where one worker stands in its generation."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    node_rank: int
    node_count: int
    generation: int
    restarts_used: int
    master_addr: str
    master_port: int


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """Hold what is equal for all workers of a node."""

    name: str
    role: str = "default"
    max_restarts: int = 0
    secret: str = ""
    address: str = ""
    """Where workers of other nodes reach this node's workers; empty: loopback."""
    virtual_local_rank: bool = False
    """Each worker sees one device, its own, and takes itself for local rank 0."""


def variables(place: WorkerPlace, job: JobEnvironment, inherited: Mapping[str, str], error_file: str) -> dict[str, str]:
    """The variables to set on top of `inherited` (which is looked at for numbers of threads and for devices)."""
    result = {
        "LOCAL_RANK": place.local_rank,
        "RANK": place.rank,
        "GROUP_RANK": place.node_rank,
        "ROLE_RANK": place.rank,
        "ROLE_NAME": job.role,
        "LOCAL_WORLD_SIZE": place.local_world_size,
        "WORLD_SIZE": place.world_size,
        "GROUP_WORLD_SIZE": place.node_count,
        "ROLE_WORLD_SIZE": place.world_size,
        "MASTER_ADDR": place.master_addr,
        "MASTER_PORT": place.master_port,
        "TORCHELASTIC_RESTART_COUNT": place.restarts_used,
        "TORCHELASTIC_MAX_RESTARTS": job.max_restarts,
        "TORCHELASTIC_RUN_ID": job.name,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": error_file,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "RESILIN_JOB": job.name,
        "RESILIN_GENERATION": place.generation,
        "RESILIN_TRACE_DIR": inherited.get("RESILIN_TRACE_DIR") or os.path.dirname(error_file),
    }
    if job.virtual_local_rank:
        result["LOCAL_RANK"] = 0
        result["CUDA_VISIBLE_DEVICES"] = device(inherited, place.local_rank)
    if job.address:
        result["RESILIN_HOST"] = job.address
    if job.secret:
        result["RESILIN_SECRET"] = job.secret
    if place.local_world_size > 1:
        # several workers share the cores: as torchrun does, unless the user chose
        omp = inherited.get("OMP_NUM_THREADS") or "1"
        result["OMP_NUM_THREADS"] = omp
        result["OPENBLAS_NUM_THREADS"] = inherited.get("OPENBLAS_NUM_THREADS") or omp
    return {name: str(value) for name, value in result.items()}


def device(inherited: Mapping[str, str], local_rank: int) -> str:
    """The device of `local_rank`: its place in CUDA_VISIBLE_DEVICES if that is set. UsageError: there are too few."""
    listed = inherited.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return str(local_rank)
    devices = [name.strip() for name in listed.split(",") if name.strip()]
    if local_rank >= len(devices):
        raise UsageError(
            f"--virtual-local-rank: local rank {local_rank} has no device, CUDA_VISIBLE_DEVICES={listed!r} "
            f"names {len(devices)}: start fewer workers or allow more devices"
        )
    return devices[local_rank]
