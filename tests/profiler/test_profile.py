"""A profile records the whole process, once at a time, says what it cannot do, and never stops a training."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import socket
import threading
import warnings

import pytest

import resilin
import resilin.distributed as dist
from resilin import profiler
from resilin._base import trace
from resilin.core.kernels import loader
from resilin.core.machine import span_rings
from resilin.errors import UsageError
from resilin.profiler import ProfilerActivity, profile, record_function, tensorboard_trace_handler
from resilin.profiler import _ExperimentalConfig as Config
from resilin.profiler.distributed_info import distributed_info
from resilin.testing.ranks import run_ranks


def names(prof):
    return [event.name for event in prof.events()]


def work(name="work"):
    with record_function(name):
        pass


@pytest.fixture
def train():
    """A function that does one step of training."""
    model = resilin.nn.Sequential(resilin.nn.Linear(8, 16), resilin.nn.ReLU(), resilin.nn.Linear(16, 4))
    optimizer = resilin.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        with record_function("forward"):
            loss = model(resilin.randn(2, 8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


needs_native = pytest.mark.skipif(
    loader.native is None, reason="shapes, arrows and functions of Python are recorded by native code"
)


@needs_native
def test_a_step_of_training_is_told_by_pytorchs_names(train):
    with profile(record_shapes=True, with_flops=True) as prof:
        train()
    found = {event.name: event for event in prof.events()}
    expected = {"forward", "aten::linear", "aten::relu", "AddmmBackward0", "ReluBackward0"}
    assert expected | {"Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"} <= set(found)
    assert found["aten::linear"].cpu_parent.name == "forward"
    shapes = [event.input_shapes for event in prof.events() if event.name == "aten::linear"]
    assert shapes == [[[2, 8], [16, 8], [16]], [[2, 16], [4, 16], [4]]]
    averages = {average.key: average for average in prof.key_averages()}
    assert averages["aten::linear"].count == 2
    assert averages["aten::linear"].flops == 2 * 2 * 8 * 16 + 2 * 2 * 16 * 4
    by_shape = prof.key_averages(group_by_input_shape=True)
    assert sum(average.key == "aten::linear" for average in by_shape) == 2


@needs_native
def test_forward_and_backward_are_joined_by_an_arrow(train, tmp_path):
    with profile() as prof:
        train()
    prof.export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    by_start = {event["ts"]: event["name"] for event in events if event["ph"] == "X"}
    arrows = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], []).append(by_start[event["ts"]])
    assert ["aten::relu", "ReluBackward0"] in arrows.values()
    assert sum(end == "AddmmBackward0" for _, end in arrows.values()) == 2


@needs_native
def test_stacks_lead_from_an_operation_to_the_program(train, tmp_path):
    with profile(with_stack=True) as prof:
        train()
    linear = next(event for event in prof.events() if event.name == "aten::linear")
    assert re.match(r"resilin/nn/modules/linear\.py\(\d+\): ", linear.stack[0])
    assert any("test_profile.py" in entry and entry.endswith("step") for entry in linear.stack)
    backward = [event for event in prof.events() if event.name == "AddmmBackward0"]
    assert linear.stack in [event.stack for event in backward]
    table = prof.key_averages(group_by_stack_n=2).table(sort_by="self_cpu_time_total", row_limit=3)
    assert "Source Location" in table
    prof.export_stacks(tmp_path / "stacks.txt", "self_cpu_time_total")
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    assert lines
    assert all(re.fullmatch(r"[^ ]+ \d+", line) for line in lines)


def test_all_threads_are_recorded():
    with profile() as prof:
        threads = [threading.Thread(target=work, args=(f"thread {number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(names(prof)) == ["thread 0", "thread 1", "thread 2"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_what_a_forked_child_does_is_not_mixed_in():
    with profile() as prof:
        work("before")
        child = os.fork()
        if child == 0:
            work("child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        work("after")
    assert names(prof) == ["before", "after"]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # from Python 3.12 on
def test_a_forked_child_can_profile_what_it_does_itself():
    with profile() as prof:
        child = os.fork()
        if child == 0:
            try:
                with profile() as own:
                    work("child")
                os._exit(0 if names(own) == ["child"] else 1)
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        work("parent")
    assert names(prof) == ["parent"]


def test_a_profile_that_nobody_can_stop_any_more_ends():
    def forget():
        prof = profile()
        prof.myself = prof  # a cycle, as a notebook's last values are in
        prof.start()

    forget()
    with profile() as after:
        work("again")
    assert names(after) == ["again"]


@needs_native
@pytest.mark.parametrize(
    ("shape", "options", "flops"),
    [((8, 4, 3, 3), {"padding": 1}, 294_912), ((8, 2, 3, 3), {"groups": 2, "stride": 2}, 2 * 2 * 7 * 7 * 8 * 2 * 9)],
    ids=["padded", "groups"],
)
def test_the_convolutions_of_a_program_have_flops(shape, options, flops):
    x, weight = resilin.randn(2, 4, 16, 16), resilin.randn(shape)
    with profile(with_flops=True) as prof:
        resilin.nn.functional.conv2d(x, weight, resilin.randn(8), **options)
        resilin.nn.functional.conv_transpose1d(x[0], resilin.randn(16, 5, 3))
        resilin.einsum("bij,bjk->bik", resilin.randn(2, 3, 4), resilin.randn(2, 4, 5))
    counted = [event.flops for event in prof.events() if event.flops]
    assert counted == [flops, 2 * 4 * 16 * 16 * 5 * 3, 240]


@needs_native
def test_targets_and_indices_have_shapes():
    with profile(record_shapes=True) as prof:
        resilin.nn.functional.cross_entropy(resilin.randn(3, 5), resilin.tensor([0, 4, 1]))
        resilin.nn.functional.embedding(resilin.tensor([[1, 2]]), resilin.randn(4, 5))
    found = {event.name: event for event in prof.events()}
    loss, rows = found["aten::cross_entropy_loss"], found["aten::embedding"]
    assert (loss.input_shapes[:2], loss.input_dtypes[:2]) == ([[3, 5], [3]], ["float", "long int"])
    assert [1, 2] in rows.input_shapes


def test_regions_nest_in_one_another_also_when_one_object_is_entered_twice():
    region = record_function("region", "said of it")

    @region
    def again(depth):
        if depth:
            again(depth - 1)

    with profile() as prof:
        with region, region:
            pass
        again(2)
    events = list(prof.events())
    assert [event.name for event in events] == ["region", "region"], "one in another alone is told once, as in PyTorch"
    assert again.__name__ == "again"


def test_a_region_ends_when_it_raises():
    with profile() as prof:
        with pytest.raises(ZeroDivisionError), record_function("fails"):
            raise ZeroDivisionError
        work("after")
    assert [event.cpu_parent for event in prof.events()] == [None, None]


def test_a_region_may_end_when_a_future_does():
    future = resilin.futures.Future()
    region = record_function("call")
    with profile() as prof:
        with region:
            after = region._call_end_callbacks_on_future(future)
        work()
        future.set_result(7)
        assert after.wait() == 7
        with pytest.raises(RuntimeError, match="only be called once"):
            region._call_end_callbacks_on_future(future)
    call, inner = sorted(prof.events(), key=lambda event: event.name)
    assert call.time_range.end > inner.time_range.end


def test_a_region_outside_of_profiles_does_nothing():
    assert trace.recorder is None
    work()


@pytest.mark.parametrize("given", [(3,), (None,), ("name", 5)])
def test_a_region_that_is_no_text_is_refused_whether_or_not_anything_is_recorded(given):
    with pytest.raises(TypeError, match="expected a str as name"):
        record_function(*given)


def test_a_second_profile_is_refused_and_the_first_goes_on():
    with profile() as prof:
        with pytest.raises(UsageError, match="one profile at a time"):
            profile().start()
        with pytest.raises(UsageError, match="a profile is recording"), resilin.autograd.profiler.emit_nvtx():
            pass
        work()
    assert "work" in names(prof)
    with profile() as after:
        work("again")
    assert names(after) == ["again"]


def test_recording_can_be_paused():
    with profile() as prof:
        work("one")
        prof.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
        work("two")
        prof.toggle_collection_dynamic(True, [ProfilerActivity.CPU])
        work("three")
    assert names(prof) == ["one", "three"]
    profile().toggle_collection_dynamic(False, [ProfilerActivity.CPU])


def test_a_full_buffer_keeps_the_newest_and_says_what_it_dropped(tmp_path):
    with profile(experimental_config=Config(buffer_bytes=1 << 16)) as prof:
        for number in range(2000):
            work(f"work {number % 7}")
    with pytest.warns(RuntimeWarning, match=r"\d+ records did not fit into .*buffer_bytes"):
        events = prof.events()
    assert 100 < len(events) < 2000
    assert events[-1].name == f"work {1999 % 7}"
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["resilin"]["dropped"] == 2000 - len(events)


def test_a_buffer_that_is_too_small_is_refused():
    with pytest.raises(UsageError, match="at least 65536 bytes, got 1000"):
        profile(experimental_config=Config(buffer_bytes=1000)).start()


def test_the_recorder_in_python_records_the_same(monkeypatch, train):
    with profile(record_shapes=True) as native:
        train()
    monkeypatch.setattr(span_rings, "native", None)
    with profile() as prof:
        train()
    assert set(names(prof)) == set(names(native))


def test_metadata_stands_at_the_head_of_the_file(tmp_path):
    prof = profile(record_shapes=True)
    prof.preset_metadata_json("run", '{"id": 7}')
    with prof:
        prof.add_metadata("note", 'a "quoted"\nnote')
        prof.add_metadata_json("numbers", "[1, 2]")
        with pytest.raises(ValueError, match=r"metadata 'bad': expected JSON, got '\{'"):
            prof.add_metadata_json("bad", "{")
    prof.export_chrome_trace(tmp_path / "trace.json")
    head = json.loads((tmp_path / "trace.json").read_text())
    assert (head["run"], head["note"], head["numbers"]) == ({"id": 7}, 'a "quoted"\nnote', [1, 2])
    assert head["record_shapes"] == 1
    assert "with_stack" not in head
    assert head["trace_id"] == prof.get_trace_id()


def test_each_trace_has_an_id_of_its_own():
    prof = profile()
    assert prof.get_trace_id() is None
    with prof:
        first = prof.get_trace_id()
    assert re.fullmatch("[0-9A-F]{32}", first)
    prof.set_custom_trace_id_callback(lambda: "mine")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with prof:
            assert prof.get_trace_id() == "mine"


def test_ranks_and_groups_are_told():
    def work(rank):
        dist.new_group([0, 1], group_desc="pair")
        return distributed_info()

    for rank, info in enumerate(run_ranks(2, work).results()):
        assert (info["rank"], info["world_size"], info["pg_count"], len(info["pg_config"])) == (rank, 2, 2, 2)
        assert [config["ranks"] for config in info["pg_config"]] == [[0, 1], [0, 1]]
        assert [config["pg_desc"] for config in info["pg_config"]] == ["default_pg", "pair"]
        json.dumps(info)
    assert distributed_info() is None


def test_a_collective_is_in_the_trace_with_its_group_and_bytes():
    def work(rank):
        dist.all_reduce(resilin.ones(1000))

    with profile() as prof:
        run_ranks(2, work).results()
    calls = [event for event in prof.events() if event.name.endswith(":all_reduce")]
    assert len(calls) == 2
    assert {event.event_metadata.group_size for event in calls} == {2}
    assert {event.event_metadata.in_msg_nelems for event in calls} == {1000}
    assert {event.event_metadata.bytes for event in calls} == {4000}
    assert {event.event_metadata.rank for event in calls} == {0, 1}


def test_a_trace_for_each_cycle_and_worker_goes_to_a_folder(tmp_path):
    folder = tmp_path / "deep" / "logs"
    for use_gzip in (False, True):
        with profile(on_trace_ready=tensorboard_trace_handler(str(folder), use_gzip=use_gzip)):
            work()
    with profile(on_trace_ready=tensorboard_trace_handler(str(folder), "worker7")):
        work()
    plain, packed, named = sorted(
        os.listdir(folder), key=lambda name: (name.startswith("worker7"), name.endswith(".gz"))
    )
    worker = re.escape(f"{socket.gethostname()}_{os.getpid()}")
    assert re.fullmatch(worker + r"\.\d+\.pt\.trace\.json", plain)
    assert re.fullmatch(worker + r"\.\d+\.pt\.trace\.json\.gz", packed)
    assert re.fullmatch(r"worker7\.\d+\.pt\.trace\.json", named)
    assert json.loads(gzip.decompress((folder / packed).read_bytes()))["traceEvents"]


def test_a_full_disk_does_not_stop_the_training(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("resilin.core.whole_file.os.fsync", full)
    prof = profile(on_trace_ready=tensorboard_trace_handler(str(tmp_path)))
    prof.start()
    with pytest.warns(RuntimeWarning, match=r"no trace at .*No space left on device.*the training goes on"):
        prof.stop()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    prof = profile(on_trace_ready=tensorboard_trace_handler(str(tmp_path / "file" / "logs")))
    prof.start()
    with pytest.raises(RuntimeError, match=r"Can't create directory: .*logs"):
        prof.stop()


def test_devices_that_are_not_recorded_are_warned_of():
    said = pytest.warns(UserWarning, match="disabling CUDA profiling|CUDA devices do is not recorded")
    with said, profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        work()
    assert names(prof) == ["work"]
    with pytest.warns(FutureWarning, match="`use_cuda` is deprecated"):
        profile(use_cuda=False)
    with pytest.warns(UserWarning, match="CUDA"), pytest.raises(AssertionError, match="No activities specified"):
        profile(activities=[ProfilerActivity.CUDA]).start()
    with pytest.raises(AssertionError, match="No valid profiler activities"):
        profile(activities=[])


def test_activities_are_checked():
    with profile(activities=[{ProfilerActivity.CPU: []}]):
        pass
    with pytest.raises(ValueError, match="more than once"):
        profile(activities=[ProfilerActivity.CPU, {ProfilerActivity.CPU: []}])
    with pytest.raises(TypeError, match="expected ProfilerActivity or dict, got str"):
        profile(activities=["cpu"])
    assert profiler.supported_activities() == {ProfilerActivity.CPU}
    assert str(ProfilerActivity.CPU) == "ProfilerActivity.CPU"


def test_what_a_profile_has_not_recorded_it_does_not_tell(tmp_path):
    prof = profile()
    for ask in (prof.events, prof.key_averages, lambda: prof.export_chrome_trace(tmp_path / "a.json")):
        with pytest.raises(AssertionError, match="Profiler must be initialized before"):
            ask()
    with prof, pytest.raises(AssertionError, match=r"Expected profiling results: .* has not ended"):
        prof.events()
    with pytest.raises(AssertionError, match="requires with_stack=True"):
        prof.export_stacks(tmp_path / "stacks.txt")


def test_execution_traces_are_refused():
    with pytest.raises(UsageError, match="execution_trace_observer is not supported"):
        profile(execution_trace_observer=object())


def test_a_trace_alone_can_be_asked_for(tmp_path):
    with profile(experimental_config=Config(trace_only=True)) as prof:
        work()
    with pytest.raises(RuntimeError, match=r"events\(\) is not available"):
        prof.events()
    prof.export_chrome_trace(tmp_path / "trace.json")
    assert "work" in (tmp_path / "trace.json").read_text()
    with (
        pytest.warns(UserWarning, match="trace_only=True is incompatible"),
        profile(experimental_config=Config(trace_only=True), with_stack=True) as prof,
    ):
        work()
    assert "work" in names(prof)
