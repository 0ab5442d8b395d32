"""What the page is given: sums, kernels, memory, spans in bounds, places beneath chosen folders alone."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
import viewed_traces
from viewed_traces import span

from resilin.errors import UsageError
from resilin.profiler.traces import reports
from resilin.profiler.view import kernels, memory, operators, page_files, report, timeline
from resilin.profiler.view.places import Places
from resilin.profiler.view.report import Opens


def read(tmp_path, *events, **head):
    """The report of one trace, and its places."""
    place = viewed_traces.write(tmp_path / "rank0.json", events, **head)
    return report.make(reports.aligned([place]), "a title", [tmp_path])


def rows(table, *names):
    """Some columns of a table of lists."""
    places = [table["columns"].index(name) for name in names]
    return [tuple(row[place] for place in places) for row in table["rows"]]


def test_operators_have_their_own_time_and_that_of_what_they_called(tmp_path):
    found, _ = read(
        tmp_path,
        span("step", 0, 100, "user_annotation"),
        span("aten::linear", 10, 60, **{"Input Dims": [[2, 3], [4, 3]]}),
        span("aten::addmm", 20, 50),
        span("aten::linear", 70, 80, **{"Input Dims": [[5, 3], [4, 3]]}),
        span("ProfilerStep#1", 0, 100, "user_annotation"),
    )
    assert rows(found["operators"], "rank", "name", "shapes", "calls", "self(us)", "total(us)")[:4] == [
        (operators.ALL, "step", "", 1, 40.0, 100.0),
        (operators.ALL, "aten::addmm", "", 1, 30.0, 30.0),
        (operators.ALL, "aten::linear", "[[2, 3], [4, 3]]", 1, 20.0, 50.0),
        (operators.ALL, "aten::linear", "[[5, 3], [4, 3]]", 1, 10.0, 10.0),
    ]
    assert {row[0] for row in found["operators"]["rows"]} == {operators.ALL, 0}


def test_of_what_calls_itself_the_outer_call_counts(tmp_path):
    found, _ = read(tmp_path, span("f", 0, 100), span("f", 10, 60), span("f", 20, 30))
    assert rows(found["operators"], "calls", "self(us)", "total(us)")[0] == (3, 100.0, 100.0)


@pytest.mark.parametrize("step_back", [2, 0], ids=["nested", "staggered"])
def test_spans_by_the_thousand_around_one_another_take_no_time_by_their_number_each(tmp_path, step_back):
    count = 10_000
    events = [span(f"f.py({n}): f", n, 4 * count - n * (step_back - 1), "python_function") for n in range(count)]
    trace = viewed_traces.write(tmp_path / "rank0.json", [*events, span("aten::add", count, count + 1)])
    found = reports.aligned([trace])
    start = time.thread_time()
    table = operators.operators(found.ranks, Places([tmp_path]))
    assert time.thread_time() - start < 10
    assert table["left_out"] == count + 1 - operators.MOST_ROWS


def test_many_operators_are_cut_to_the_slowest_and_it_is_told(tmp_path):
    most = operators.MOST_ROWS
    found, _ = read(
        tmp_path, *(span(f"op{number}", 10 * number, 10 * number + 1 + number / 1e3) for number in range(most + 7))
    )
    names = [name for rank, name in rows(found["operators"], "rank", "name") if rank == operators.ALL]
    assert (len(names), names[0], found["operators"]["left_out"]) == (most, f"op{most + 6}", 7)


def test_the_place_of_an_operation_is_the_innermost_function_of_a_file_that_is_known(tmp_path):
    (tmp_path / "mine.py").write_text("")
    found, places = read(
        tmp_path,
        span("mine.py(4): train", 0, 100, "python_function"),
        span("nn.Module: Linear_0", 5, 95, "python_function"),
        span("elsewhere/functional.py(9): linear", 10, 90, "python_function"),
        span("aten::linear", 20, 80),
    )
    told = {name: places.found[place].text for name, place in rows(found["operators"], "name", "place") if place >= 0}
    assert told["aten::linear"] == "mine.py:4"
    assert told["elsewhere/functional.py(9): linear"] == "elsewhere/functional.py:9"
    assert "nn.Module: Linear_0" not in told


def test_kernels_are_averaged_over_their_time_and_what_is_not_said_is_empty(tmp_path):
    found, _ = read(
        tmp_path,
        span("gemm", 0, 100, "kernel", 7, device=0, **{"est. achieved occupancy %": 10, "blocks per SM": 4}),
        span("gemm", 100, 400, "kernel", 7, device=0, **{"est. achieved occupancy %": 50, "blocks per SM": 0.5}),
        span("relu", 450, 500, "kernel", 7, device=0, **{"est. achieved occupancy %": "high", "blocks per SM": True}),
    )
    (device,) = found["kernels"]["devices"]
    assert device == {
        "rank": 0, "device": "0", "utilisation_pctg": 90.0, "sm_efficiency_pctg": 62.5, "occupancy_pctg": 40.0,
        "kernels": 3, "copies": 0,
    }  # fmt: skip
    wanted = ("name", "calls", "total(us)", "sm_efficiency_pctg", "occupancy_pctg", "bytes")
    assert rows(found["kernels"], *wanted) == [
        ("gemm", 2, 400.0, 62.5, 40.0, None),
        ("relu", 1, 50.0, None, None, None),
    ]
    assert kernels.kernels([]) == {"devices": [], "columns": kernels.COLUMNS, "rows": [], "left_out": 0}


def _moment(at, nbytes, address=1, kind=0, device=-1):
    args = {"Addr": address, "Bytes": nbytes, "Device Type": kind, "Device Id": device}
    return {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event", "pid": 99, "tid": 1, "ts": at, "args": args}


def test_memory_has_owners_as_the_file_says_and_as_spans_tell(tmp_path):
    found, _ = read(
        tmp_path,
        span("aten::linear", 0, 50, **{"Sequence number": 3}),
        span("AddmmBackward0", 60, 90, **{"Sequence number": 3, "Fwd thread id": 1}),
        span("aten::add", 100, 110),
        _moment(10, 1000, 64),
        _moment(70, 500, 4096),
        _moment(95, -1000, 64),
        _moment(120, 70, 9000, kind=1, device=2),
        _moment(3, True),
        {"ph": "i", "name": "[memory]", "ts": 4, "args": {"Bytes": "many"}},
        resilin={"owners": [[1 << 20, 300, memory.Category.PARAMETER.value]]},
    )
    names = found["memory"]["owners"]
    cpu, cuda = found["memory"]["series"]
    assert (cpu["device"], cuda["device"], cuda["peak"]) == ("CPU", "CUDA 2", 70)
    assert {name: most for name, most in zip(names, cpu["highest"], strict=True) if most > 1} == {
        "parameter": 300, "activation": 1000, "gradient": 500,
    }  # fmt: skip
    assert cpu["peak"] == 1800
    blocks = [(size, names[owner], name) for size, owner, name, _ in cpu["blocks"] if size > 1]
    assert blocks == [
        (1000, "activation", "aten::linear"),
        (500, "gradient", "AddmmBackward0"),
        (300, "parameter", "before the recording"),
    ]


def test_more_spans_than_a_browser_draws_become_blocks_that_cover_them(tmp_path):
    draw = random.Random(3)
    events, at = [span("outer", 0, 300_000)], 0.0
    for number in range(5000):
        at += draw.choice([0.1, 0.2, 40])
        length = draw.choice([0.5, 3, 3, 60])
        events.append(span(f"op{number % 9}", at, at + length))
        at += length
    traces = reports.aligned([viewed_traces.write(tmp_path / "a.json", events)]).ranks
    base_ns = traces[0].events[0].start_ns
    whole = timeline.timeline(traces, base_ns, Places([]))
    few = timeline.timeline(traces, base_ns, Places([]), most=500)
    counts = [
        sum(len(level["start"]) for level in track["levels"]) for each in (whole, few) for track in each["tracks"]
    ]
    assert counts[0] == 5001
    assert counts[1] <= 500
    assert whole["short(us)"] == 0
    (track,) = few["tracks"]
    level, details = track["levels"][1], few["details"]
    together = [few["names"][name]["kind"] == "together" for name in level["name"]]
    told = sum(
        int(details[detail].split()[0]) if one else 1 for one, detail in zip(together, level["detail"], strict=True)
    )
    assert told == 5000
    ends = [start + length for start, length in zip(level["start"], level["length"], strict=True)]
    assert all(end <= start for end, start in zip(ends, level["start"][1:], strict=False))
    assert any(together)


def test_endless_recursion_is_cut(tmp_path):
    found, _ = read(tmp_path, *(span("f", number, 1000 - number, "python_function") for number in range(300)))
    (track,) = found["timeline"]["tracks"]
    assert len(track["levels"]) == timeline.MOST_DEPTH


def test_arrows_lead_between_the_spans_of_ranks(tmp_path):
    for rank, start in enumerate((10, 50)):
        about = {
            "Collective name": "all_reduce",
            "Process Group Name": "g",
            "Process Group Ranks": [0, 1],
            "Rank": rank,
        }
        event = span("cpu:all_reduce", start, 90, "user_annotation", **about, Seq=4)
        viewed_traces.write(tmp_path / f"rank{rank}.json", [span("load", 0, start), event], rank)
    found, _ = report.make(reports.aligned([tmp_path]), "two", [])
    tracks = [track["rank"] for track in found["timeline"]["tracks"]]
    (arrow,) = found["timeline"]["arrows"]
    assert [tracks[arrow[0]], tracks[arrow[3]], arrow[2], arrow[5], arrow[6]] == [1, 0, 50_000, 50_000, "collective"]


@pytest.mark.parametrize(
    "name",
    ["../secret.py(1): f", "{outside}/secret.py(1): f", "link.py(1): f", "not.there.py(1): f", ".(1): f",
     "x\0.py(1): f", "a" * 5000 + ".py(1): f", "aten::mm", "mine.py(1)", "mine.py(): f"],
    ids=lambda name: name[:20].replace("\0", "0"),
)  # fmt: skip
def test_only_files_beneath_the_chosen_folders_have_a_path(tmp_path, name):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.py").write_text("")
    (inside / "mine.py").write_text("")
    (inside / "link.py").symlink_to(tmp_path / "secret.py")
    places = Places([inside])
    number = places.number(name.format(outside=tmp_path))
    assert number < 0 or places.found[number].path is None
    known = places.found[places.number("mine.py(7): f")]
    assert (known.path, known.line, known.text) == (inside / "mine.py", 7, "mine.py:7")
    assert places.number("mine.py(7): f") == places.number("mine.py(7): f")


def test_a_report_for_others_has_no_names_of_folders_of_this_machine(tmp_path):
    (tmp_path / "mine.py").write_text("")
    found, places = read(tmp_path, span("mine.py(4): f", 0, 10, "python_function"))
    said = {opens: report.to_json(found, places, opens) for opens in Opens}
    assert str(tmp_path) not in said[Opens.NOTHING]
    assert f"vscode://file{tmp_path}/mine.py:4" in said[Opens.LINK]
    assert [json.loads(said[opens])["places"][0]["opens"] for opens in Opens] == [False, False, True]
    assert str(tmp_path) not in said[Opens.EDITOR]


def test_what_a_trace_says_cannot_end_the_script_that_holds_it(tmp_path):
    trace = viewed_traces.hostile(tmp_path / "a.json")
    found, places = report.make(reports.aligned([trace]), "</title><script>1</script>", [tmp_path])
    data = report.to_json(found, places, Opens.NOTHING)
    page = page_files.as_one_file(data, found["title"])
    assert page.count("<script") == 1 + len(page_files.SCRIPTS)
    assert page.count("</script") == 1 + len(page_files.SCRIPTS)
    inside = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(inside) == json.loads(data)


def test_a_torn_file_beside_a_whole_one_is_noted(tmp_path):
    viewed_traces.write(tmp_path / "a.json", [span("f", 0, 10)])
    (tmp_path / "b.json").write_text('{"traceEvents": [')
    found, _ = report.make(reports.aligned([tmp_path]), "torn", [])
    assert any("b.json" in note and "torn" in note for note in found["notes"])
    with pytest.raises(UsageError, match=r"b\.json"):
        reports.aligned([tmp_path / "b.json"])


def test_a_trace_of_pytorch_opens(tmp_path):
    """Of its profiler, compressed: see tests/fixtures/make_torch_trace.py."""
    kept = Path(__file__).parents[2] / "fixtures" / "torch_trace.json.gz"
    found, _ = report.make(reports.aligned([kept]), "PyTorch", [tmp_path])
    names = {name for name, kind in rows(found["operators"], "name", "kind") if kind == "compute"}
    assert {"aten::addmm", "AddmmBackward0", "Optimizer.step#SGD.step"} <= names
    (series,) = found["memory"]["series"]
    told = {name for name, most in zip(found["memory"]["owners"], series["highest"], strict=True) if most}
    assert {"activation", "gradient"} <= told
    assert any(track["name"].startswith("thread ") for track in found["timeline"]["tracks"])
