"""torch.autograd.profiler's names work, and say clearly what is not there."""

from __future__ import annotations

import subprocess
import sys

import pytest

import resilin
from resilin._base import trace
from resilin._base.trace import SpanKind
from resilin._base.trace_ring import TensorInput
from resilin.autograd import profiler
from resilin.core.kernels import loader
from resilin.cuda.nvtx import LIBRARY
from resilin.errors import UsageError
from resilin.profiler import nvtx


@pytest.mark.skipif(loader.native is None, reason="shapes are recorded by native code")
def test_a_profile_is_entered_and_asked():
    x = resilin.ones(2, 3)
    with profiler.profile(record_shapes=True) as prof, profiler.record_function("label"):
        x + x
    assert [event.name for event in prof.function_events] == ["label", "aten::add"]
    assert prof.key_averages(group_by_input_shape=True)[1].input_shapes[:2] == [[2, 3], [2, 3]]
    assert prof.total_average().count == 2
    assert "aten::add" in prof.table(sort_by="self_cpu_time_total")
    assert str(prof) == prof.table()
    assert repr(prof) == repr(prof.function_events)
    assert prof.self_cpu_time_total == prof.function_events.self_cpu_time_total > 0


def test_a_profile_that_is_not_enabled_records_nothing():
    with profiler.profile(enabled=False) as prof:
        assert prof is None
        assert trace.recorder is None


def test_a_profile_is_entered_once():
    prof = profiler.profile()
    assert str(prof) == repr(prof) == "<unfinished resilin.autograd.profile>"
    with prof, pytest.raises(RuntimeError, match="not reentrant"):
        prof.__enter__()


def test_options_are_checked():
    with pytest.warns(FutureWarning, match="`use_cuda` will be deprecated"), pytest.warns(UserWarning, match="CUDA"):
        assert profiler.profile(use_cuda=True).use_device is None
    with pytest.warns(UserWarning, match="The abacus is not a valid device option"):
        profiler.profile(use_device="abacus")
    with pytest.raises(AssertionError, match="No activities specified"):
        profiler.profile(use_cpu=False, use_kineto=True)
    with pytest.raises(ValueError, match="must be non-negative"):
        profiler.profile(post_processing_timeout_s=-1)


def test_both_ways_to_the_profiler_lead_to_the_same_names():
    program = """
import resilin as torch
import resilin.autograd.profiler_util as util
assert torch.autograd.profiler.record_function is torch.profiler.record_function
assert util.FunctionEvent is torch.autograd.profiler.FunctionEvent
assert util._format_time(1500) == "1.500ms" and util._format_memory(-2048) == "-2.00 KB"
assert util._format_time_share(1, 4) == "25.00%" and util._format_time_share(0, 0) == "NaN"
from torch.profiler import profile
"""
    program = program.replace("from torch.profiler", "from resilin.profiler")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class Library:
    """Keeps what NVIDIA's library is told."""

    def __init__(self):
        self.said = []

    def nvtxRangePushA(self, name):
        self.said.append(name.decode())

    def nvtxRangePop(self):
        self.said.append("pop")

    def nvtxMarkA(self, name):
        self.said.append(f"mark {name.decode()}")


def test_ranges_are_pushed_and_popped_with_sequence_numbers_and_sizes(monkeypatch):
    library = Library()
    monkeypatch.setattr(nvtx, "load", lambda: library)
    with profiler.emit_nvtx(record_shapes=True) as emit:
        with pytest.raises(RuntimeError, match="not reentrant"):
            emit.__enter__()
        x = TensorInput((2, 3), (3, 1), "f4")
        token = trace.recorder.begin("aten::mm", SpanKind.OP, 4, {"inputs": [x, 1]})
        trace.recorder.end(token)
        with trace.span("MmBackward0", SpanKind.BACKWARD, link=4):
            trace.recorder.complete("gloo:all_reduce", SpanKind.COLLECTIVE, 1000, 3500)
            trace.recorder.instant("[memory]", SpanKind.MEMORY, 1, 64)
            trace.recorder.instant("moment", SpanKind.ELASTIC)
    assert trace.recorder is None
    assert library.said == [
        "aten::mm, seq = 4, sizes = [[2, 3], []]",
        "pop",
        "MmBackward0, stashed seq = 4",
        "mark gloo:all_reduce (2.5 us)",
        "mark moment",
        "pop",
    ]


def test_ranges_of_operations_are_emitted(monkeypatch):
    library = Library()
    monkeypatch.setattr(nvtx, "load", lambda: library)
    x = resilin.ones(2)
    with profiler.emit_nvtx():
        x + x
    assert library.said == ["aten::add", "pop"]


@pytest.mark.parametrize(("package", "name"), [("nvtx", LIBRARY), ("cu13", "libnvtx3interop.so.1")])
def test_the_library_of_ranges_is_looked_for_and_missed_by_name(monkeypatch, tmp_path, package, name):
    place = tmp_path / "nvidia" / package / "lib" / name
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    asked = []

    def there(path):
        asked.append(path)
        if path != str(place):
            raise OSError("no such file")
        return "the library"

    assert nvtx.load(there) == "the library"
    assert asked[0] == LIBRARY
    assert asked[-1] == str(place)

    def nowhere(path):
        raise OSError("no such file")

    with pytest.raises(UsageError, match=r"neither libnvToolsExt\.so\.1 nor libnvtx3interop\.so\.1 was found; install"):
        nvtx.load(nowhere)


def test_what_is_not_enabled_does_nothing():
    with profiler.emit_nvtx(enabled=False) as nothing, profiler.emit_itt(enabled=False) as nothing_either:
        assert nothing is nothing_either is trace.recorder is None


def test_ranges_of_intel_and_files_of_nvprof_are_refused():
    with pytest.raises(UsageError, match="VTune are not supported"), profiler.emit_itt():
        pass
    with pytest.raises(UsageError, match="files of nvprof are not read"):
        profiler.load_nvprof("a.prof")


def test_programs_for_pytorch_find_the_profiler_where_they_look_for_it(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("""
import torch
import torch.profiler.profiler
from torch._C._profiler import ProfilerActivity, _ExperimentalConfig
from torch.autograd.profiler import record_function
from torch.profiler import profile

with profile(activities=[ProfilerActivity.CPU], experimental_config=_ExperimentalConfig(verbose=True)) as prof:
    with record_function("sum"):
        torch.ones(2) + 1
print(prof.key_averages()[0].key, torch.profiler.profiler.profile is profile)
""")
    done = subprocess.run(
        [sys.executable, "-m", "resilin.as_torch", str(script)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "sum True\n", done.stderr
