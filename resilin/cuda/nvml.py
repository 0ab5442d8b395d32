"""What the driver measures of a device: torch.cuda's figures of NVML. Needs `pip install 'resilin[nvml]'`.

The only file that imports NVIDIA's package nvidia-ml-py, whose module is called pynvml, and only when it is asked.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from resilin.cuda import chosen

INSTALL = "pip install 'resilin[nvml]'"


@contextmanager
def _device(asked: str, device: Any) -> Iterator[tuple[Any, Any]]:
    """(pynvml, its handle of a device). ModuleNotFoundError without the package, RuntimeError where NVML refuses."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError as error:
        raise ModuleNotFoundError(
            f"cuda.{asked} needs NVIDIA's package nvidia-ml-py, which cannot be imported ({error}): {INSTALL}"
        ) from None
    index = chosen.index_of(device)
    bus = chosen.backend().bus_id(index)
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        raise RuntimeError(f"cuda.{asked}: NVML gives no figure of cuda:{index} ({bus}): {error}") from None


def utilization(device: Any = None) -> int:
    """Percent of the last sample period, of up to a second, in which a kernel was running."""
    with _device("utilization", device) as (nvml, handle):
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)


def memory_usage(device: Any = None) -> int:
    """Percent of the last sample period in which the device's memory was being read or written."""
    with _device("memory_usage", device) as (nvml, handle):
        return int(nvml.nvmlDeviceGetUtilizationRates(handle).memory)


def device_memory_used(device: Any = None) -> int:
    """Bytes of the device's memory that all processes take."""
    with _device("device_memory_used", device) as (nvml, handle):
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def temperature(device: Any = None) -> int:
    """Degrees Celsius of the chip."""
    with _device("temperature", device) as (nvml, handle):
        return int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))


def power_draw(device: Any = None) -> int:
    """Milliwatts that the device takes."""
    with _device("power_draw", device) as (nvml, handle):
        return int(nvml.nvmlDeviceGetPowerUsage(handle))


def clock_rate(device: Any = None) -> int:
    """Megahertz of the multiprocessors' clock."""
    with _device("clock_rate", device) as (nvml, handle):
        return int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))


def list_gpu_processes(device: Any = None) -> str:
    """The processes on a device and the memory that each takes, as text."""
    index = chosen.index_of(device)
    with _device("list_gpu_processes", device) as (nvml, handle):
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    lines = [
        f"process {process.pid:>10d} uses {(process.usedGpuMemory or 0) / (1 << 20):>12.3f} MB GPU memory"
        for process in found
    ]
    return "\n".join([f"GPU:{index}", *(lines or ["no processes are running"])])
