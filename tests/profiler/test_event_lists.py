"""Lists of events are PyTorch's: who called whom, averages, and every letter of tables and files."""

from __future__ import annotations

import json
import pickle

import pytest

from resilin.autograd.profiler_util import EventList, FunctionEvent, FunctionEventAvg, MemRecordsAcc
from resilin.profiler import DeviceType

LISTS = ("plain", "shapes", "stacks", "memory", "flops", "nodes", "overloads")


def made(specs, **options):
    """The list that PyTorch was given."""
    events = EventList(
        [FunctionEvent(**{**spec, "device_type": DeviceType[spec.get("device_type", "CPU")]}) for spec in specs],
        **options,
    )
    events._build_tree()
    return events


@pytest.fixture(params=LISTS)
def case(request, pytorch):
    """What PyTorch made of a list of events."""
    return next(one for one in pytorch["lists"] if one["name"] == request.param)


@pytest.fixture
def events(case):
    """The same list here."""
    return made(case["events"], **case["options"])


def without_device(text):
    """PyTorch writes the device's type with its number behind, we without."""
    return text.replace("DeviceType.CPU", "CPU").replace("<DeviceType.CPU: 0>", "CPU")


def test_events_are_nested_as_by_pytorch(case, events):
    found = [
        [
            event.id,
            [child.id for child in event.cpu_children],
            event.cpu_parent.id if event.cpu_parent else None,
            event.self_cpu_time_total,
            event.self_cpu_memory_usage,
            event.stack,
        ]
        for event in events
    ]
    assert found == case["tree"]


def test_tables_of_events_are_pytorchs_to_the_letter(case, events):
    for options, expected in zip(case["table_options"], case["tables"], strict=True):
        assert events.table(**options) == expected, options


def test_averages_and_their_tables_are_pytorchs_to_the_letter(case, events):
    for group in case["averages"]:
        averages = events.key_averages(**group["by"])
        assert [repr(average) for average in averages] == group["repr"], group["by"]
        for options, expected in zip(case["table_options"], group["tables"], strict=True):
            assert averages.table(**options) == expected, (group["by"], options)


def test_events_show_themselves_as_pytorchs(case, events):
    assert [without_device(repr(event)) for event in events] == [without_device(text) for text in case["repr"]]
    assert repr(events.total_average()) == case["total"]


def test_stacks_are_written_as_pytorch_writes_them(case, events, tmp_path):
    events.export_stacks(tmp_path / "stacks.txt", "self_cpu_time_total")
    assert (tmp_path / "stacks.txt").read_text() == case["stacks"]


def test_a_list_of_events_is_written_for_chrome_as_pytorch_does(case, events, tmp_path):
    events.export_chrome_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == case["chrome"]


def test_tables_of_a_device_are_pytorchs_to_the_letter(pytorch):
    events = made(pytorch["device"]["events"], use_device="cuda")
    next(event for event in events if event.id == 2).append_kernel("gemm", 0, 60)
    averages = events.key_averages()
    for options, expected in zip(pytorch["device"]["table_options"], pytorch["device"]["tables"], strict=True):
        assert averages.table(**options) == expected, options


def test_flops_stand_in_their_own_column_beside_stacks():
    said = {"thread": 1, "start_us": 0, "end_us": 1, "overload_name": "", "input_shapes": []}
    events = EventList(
        [FunctionEvent(0, "aten::mm", flops=2000, stack=["a.py(1): f", "b.py(2): g"], **said)], with_flops=True
    )
    lines = events.table().splitlines()
    titles, row, rest = lines[1], lines[3], lines[4]
    source, flops = titles.index("Source Location"), titles.index("Total KFLOPs")
    assert row[source:].startswith("a.py(1): f")
    assert rest[source:].startswith("b.py(2): g")
    assert row[flops : flops + 12].strip() == "2.000"


def test_all_rows_are_shown_where_no_limit_is_given():
    found = EventList([FunctionEvent(number, f"op{number}", 1, number, number + 1) for number in range(3)])
    assert found.table(row_limit=None) == found.table(row_limit=-1) == found.table()


def test_metadata_of_an_event_is_named_by_what_gives_it():
    with pytest.warns(FutureWarning, match="please use `event_metadata` instead"):
        assert FunctionEvent(0, "op", 1, 0, 1, metadata_json="{}").metadata_json == "{}"


def test_an_empty_list_is_an_empty_table():
    assert EventList().table() == ""
    assert str(EventList()) == ""


def test_an_empty_list_is_a_file_that_chrome_reads(tmp_path):
    EventList().export_chrome_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text()) == []


def test_times_of_a_device_without_its_name_are_refused():
    event = FunctionEventAvg()
    event.key, event.self_device_time_total = "gemm", 5
    with pytest.raises(RuntimeError, match="expected `use_device`"):
        EventList([event]).table()


def test_an_unknown_metric_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"self_cpu_time_total.*got 'time'"):
        EventList().export_stacks(tmp_path / "stacks.txt", "time")


def test_averages_of_events_that_nobody_nested_are_refused():
    with pytest.raises(AssertionError, match="key_averages"):
        EventList().key_averages()


def test_averages_of_one_key_take_no_other():
    average = FunctionEventAvg()
    average.add(FunctionEvent(0, "a", 1, 0, 2))
    with pytest.raises(AssertionError, match="expected an event of a, got one of b"):
        average += FunctionEvent(0, "b", 1, 0, 2)
    assert average.count == 1
    assert average.cpu_time == 2


def test_older_names_of_cuda_warn_and_work():
    event = FunctionEvent(0, "a", 1, 0, 2, use_device="cuda")
    event.append_kernel("k", 0, 1.5)
    for name in ("cuda_time", "cuda_time_total", "self_cuda_time_total"):
        with pytest.warns(FutureWarning, match=f"`{name}` is deprecated"):
            assert getattr(event, name) == 1.5


def test_children_of_another_device_are_refused():
    cpu, device = FunctionEvent(0, "a", 1, 0, 2), FunctionEvent(1, "k", 1, 0, 2, device_type=DeviceType.CUDA)
    with pytest.raises(AssertionError, match="expected an event of the CPU"):
        cpu.append_cpu_child(device)
    with pytest.raises(AssertionError, match="expected an event of the CPU"):
        device.append_kernel("k", 0, 1)


def test_lists_of_events_can_be_sent_to_other_processes(events):
    again = pickle.loads(pickle.dumps(events))
    assert again.table() == events.table()


def test_records_of_memory_are_found_by_time():
    class Record:
        def __init__(self, at):
            self.at = at

        def start_ns(self):
            return self.at

    records = [[Record(at), False] for at in (30, 10, 20, 20)]
    found = MemRecordsAcc(records)
    assert [record[0].at for record in found.in_interval(10, 20)] == [10, 20, 20]
    assert list(found.in_interval(21, 29)) == []
    assert list(MemRecordsAcc([]).in_interval(0, 100)) == []
