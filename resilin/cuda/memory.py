"""The memory of CUDA devices, under torch.cuda's names. Without a device in use there is none: figures are 0."""

from __future__ import annotations

from typing import Any

from resilin.core import held_memory
from resilin.cuda import chosen
from resilin.cuda.nvml import list_gpu_processes
from resilin.errors import OutOfMemoryError, UsageError

__all__ = [
    "OutOfMemoryError",
    "empty_cache",
    "get_allocator_backend",
    "get_per_process_memory_fraction",
    "ipc_collect",
    "list_gpu_processes",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def empty_cache() -> None:
    """Give memory that the pool keeps but no tensor uses back to the driver; nothing without a device."""
    if chosen.is_initialized():
        chosen.backend().memory.empty_cache()


def ipc_collect() -> None:
    """Release memory shared with processes that are gone. Tensors are not shared over CUDA IPC, so there is none."""


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors take now; 0 before the first use of CUDA."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that tensors took at once since the start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """Bytes that the pool holds, in use or not."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the pool held since the start or `reset_peak_memory_stats`."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let all peaks of `memory_stats` start anew from what is taken now."""
    if chosen.is_initialized() and chosen.is_own(device):
        chosen.backend().memory.reset_peaks()


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Let what `memory_stats` adds up (`allocated`, `freed`, and numbers of calls) start anew from 0."""
    if chosen.is_initialized() and chosen.is_own(device):
        chosen.backend().memory.reset_accumulated()


def memory_cached(device: Any = None) -> int:
    """`memory_reserved`, by its old name."""
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """`max_memory_reserved`, by its old name."""
    return max_memory_reserved(device)


def reset_max_memory_allocated(device: Any = None) -> None:
    """`reset_peak_memory_stats`, which lets all peaks start anew."""
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """`reset_peak_memory_stats`, which lets all peaks start anew."""
    reset_peak_memory_stats(device)


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """`memory_stats` by the parts of its names: `["allocated_bytes"]["all"]["peak"]`."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *places, last = name.split(".")
        inner = nested
        for place in places:
            inner = inner.setdefault(place, {})
        inner[last] = value
    return nested


def memory_stats(device: Any = None) -> dict[str, int]:
    """What is counted, by PyTorch's names; empty before the first use of CUDA, and for a device that is not ours.

    `current`, `peak`, `allocated` and `freed` of `allocation.all`, `allocated_bytes.all` (their blocks),
    `requested_bytes.all` (what was asked for), `segment.all` and `reserved_bytes.all` (what the pool has of the
    driver), and the numbers of retries and of errors. Blocks are in no pools by size, so there is nothing but `all`.
    """
    if not chosen.is_initialized() or not chosen.is_own(device):
        return {}
    found: dict[str, int] = chosen.backend().memory.stats()
    return found


def memory_snapshot(device: Any = None) -> list[dict[str, Any]]:
    """The blocks in use, the largest first: what a full device's error sums up. Looks at every object there is.

    Of each PyTorch's `address`, `size` and `state`; and what holds it (`held_by`), with the `dtype` and `shape` of its
    largest array.
    """
    if not chosen.is_initialized() or not chosen.is_own(device):
        return []
    return [
        {
            "address": block.address,
            "size": block.size,
            "state": "active_allocated",
            "held_by": block.kind,
            "dtype": block.dtype,
            "shape": block.shape,
        }
        for block in held_memory.held_blocks(chosen.backend().cupy.ndarray)
    ]


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """`memory_stats` as text, a line for each figure, and who holds the memory, unless `abbreviated`."""
    where = f"cuda:{chosen.index_of(device)}"
    lines = [f"{where} {name} {value:,}" for name, value in memory_stats(device).items()]
    if lines and not abbreviated:
        lines.append(held_memory.describe(chosen.backend().cupy.ndarray))
    return "\n".join(lines)


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Let tensors take at most this part of the device's memory: more raises OutOfMemoryError."""
    if not 0 <= fraction <= 1:
        raise UsageError(f"cuda.set_per_process_memory_fraction: expected a number from 0 to 1, got {fraction}")
    if chosen.is_own(device):
        chosen.backend().memory.limit(float(fraction))


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of the device's memory that tensors may take: 1, or what `set_per_process_memory_fraction` said."""
    return chosen.backend().memory.fraction if chosen.is_own(device) else 1.0


def get_allocator_backend() -> str:
    """ "native": memory comes from a pool in this process, not from CUDA's own (`cudaMallocAsync`)."""
    return "native"


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """(free, total) bytes of the device, as the driver counts them for all processes."""
    free, total = chosen.backend().memory_info(chosen.index_of(device))
    return int(free), int(total)
