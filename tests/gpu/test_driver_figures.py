"""What NVIDIA's driver measures, and ranges for its tools, over stand-ins for its libraries."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace

import pytest

import resilin as torch
from resilin.cuda import nvtx
from resilin.errors import UsageError

BUS = "0000:41:00.0"


class NVMLError(Exception):
    """The library's."""


@pytest.fixture
def nvml(cuda, monkeypatch):
    """NVIDIA's package, which knows one device; `calls` says what it was asked."""
    made = types.ModuleType("pynvml")
    made.calls = []
    made.NVMLError, made.NVML_TEMPERATURE_GPU, made.NVML_CLOCK_SM = NVMLError, 0, 1

    def answering(name, value):
        def function(*args):
            made.calls.append((name, *args))
            return value

        setattr(made, name, function)

    answering("nvmlInit", None)
    answering("nvmlShutdown", None)
    answering("nvmlDeviceGetHandleByPciBusId", "handle")
    answering("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=93, memory=41))
    answering("nvmlDeviceGetMemoryInfo", SimpleNamespace(used=5 << 30))
    answering("nvmlDeviceGetTemperature", 62)
    answering("nvmlDeviceGetPowerUsage", 431_000)
    answering("nvmlDeviceGetClockInfo", 1980)
    found = [SimpleNamespace(pid=77, usedGpuMemory=3 << 20), SimpleNamespace(pid=8, usedGpuMemory=None)]
    answering("nvmlDeviceGetComputeRunningProcesses", found)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(cuda.cupy.cuda.runtime, "deviceGetPCIBusId", lambda index: BUS, raising=False)
    return made


def test_the_figures_are_the_drivers_for_the_device_at_this_place(nvml):
    assert torch.cuda.utilization() == 93
    assert nvml.calls == [
        ("nvmlInit",),
        ("nvmlDeviceGetHandleByPciBusId", BUS.encode()),
        ("nvmlDeviceGetUtilizationRates", "handle"),
        ("nvmlShutdown",),
    ]
    assert torch.cuda.memory_usage(0) == 41
    assert torch.cuda.device_memory_used("cuda:0") == 5 << 30
    assert torch.cuda.temperature() == 62
    assert torch.cuda.power_draw() == 431_000
    assert torch.cuda.clock_rate() == 1980
    assert ("nvmlDeviceGetTemperature", "handle", 0) in nvml.calls
    assert ("nvmlDeviceGetClockInfo", "handle", 1) in nvml.calls


def test_processes_are_listed_with_their_memory(nvml, monkeypatch):
    said = torch.cuda.list_gpu_processes()
    assert said == torch.cuda.memory.list_gpu_processes(0)
    assert said.splitlines()[0] == "GPU:0"
    assert "77 uses        3.000 MB GPU memory" in said
    assert "8 uses        0.000 MB GPU memory" in said
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: [])
    assert torch.cuda.list_gpu_processes() == "GPU:0\nno processes are running"


def test_what_the_driver_refuses_names_figure_and_device_and_the_library_is_closed(nvml, monkeypatch):
    def refused(handle):
        raise NVMLError("Not Supported")

    monkeypatch.setattr(nvml, "nvmlDeviceGetPowerUsage", refused)
    with pytest.raises(RuntimeError, match=rf"cuda\.power_draw: NVML gives no figure of cuda:0 \({BUS}\): Not "):
        torch.cuda.power_draw()
    assert nvml.calls[-1] == ("nvmlShutdown",)


def test_without_the_package_is_said_what_to_install(cuda, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    for name in ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage", "list_gpu_processes"):
        with pytest.raises(ModuleNotFoundError, match=rf"cuda\.{name} needs NVIDIA's package .*resilin\[nvml\]"):
            getattr(torch.cuda, name)()


class Ranges:
    """NVIDIA's library of ranges."""

    def __init__(self):
        self.open, self.said = [], []
        self.nvtxRangeStartA, self.nvtxRangeEnd = self._start, self._end

    def nvtxRangePushA(self, name):
        self.open.append(name)
        return len(self.open) - 1

    def nvtxRangePop(self):
        self.said.append(self.open.pop())
        return len(self.open)

    def nvtxMarkA(self, name):
        self.said.append(name)

    def __setattr__(self, name, value):
        if name.startswith("nvtx"):  # a function of a library has types, which a method has not
            value = type("Function", (), {"__call__": staticmethod(value)})()
        object.__setattr__(self, name, value)

    def _start(self, name):
        self.said.append(name)
        return 1 << 40

    def _end(self, number):
        self.said.append(number)


@pytest.fixture
def ranges(monkeypatch):
    library = Ranges()
    nvtx._library.cache_clear()
    monkeypatch.setattr(nvtx, "load", lambda: library)
    yield library
    nvtx._library.cache_clear()


def test_ranges_nest_and_marks_are_set(ranges):
    assert torch.cuda.nvtx.range_push("outer") == 0
    assert torch.cuda.nvtx.range_push("inner") == 1
    torch.cuda.nvtx.mark("here")
    assert torch.cuda.nvtx.range_pop() == 1
    assert torch.cuda.nvtx.range_pop() == 0
    number = torch.cuda.nvtx.range_start("any thread's")
    torch.cuda.nvtx.range_end(number)
    assert ranges.said == [b"here", b"inner", b"outer", b"any thread's", 1 << 40]


def test_a_range_surrounds_a_block_and_a_function_and_ends_with_an_error(ranges):
    @torch.cuda.nvtx.range("step {} of {of}", 3, of=4)
    def step():
        assert ranges.open == [b"step 3 of 4"]
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            step()
    with torch.cuda.nvtx.range("block"):
        assert ranges.open == [b"block"]
    assert ranges.open == []


def test_without_nvidias_library_ranges_say_what_to_install(monkeypatch):
    nvtx._library.cache_clear()

    def nowhere(path):
        raise OSError

    real = nvtx.load
    monkeypatch.setattr(nvtx, "load", lambda: real(nowhere))
    with pytest.raises(UsageError, match=r"NVTX: neither libnvToolsExt\.so\.1 nor libnvtx3interop\.so\.1 was found"):
        torch.cuda.nvtx.range_push("never")
