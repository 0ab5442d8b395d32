"""One file of all ranks: who is who, spans that nest, arrows that lead where they should."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import resilin
from resilin.profiler import profile, record_function
from resilin.profiler.traces import chrome_file, clocks, meetings, merged_file


def _written(traces, path):
    arrows = merged_file.write(traces, path, ["a note"])
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text), arrows


def _named(body, name):
    return {one["pid"]: one["args"] for one in body["traceEvents"] if one["ph"] == "M" and one["name"] == name}


@pytest.mark.multiproc
@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_ranks_of_a_job_are_processes_in_order(job, tmp_path, name):
    traces = job.traces().ranks
    clocks.align(traces)
    body, arrows = _written(traces, tmp_path / name)
    names = _named(body, "process_name")
    assert sorted(names) == [0, 1, 2]
    assert all(names[rank]["name"].startswith(f"rank {rank} (") for rank in names)
    assert {pid: args["sort_index"] for pid, args in _named(body, "process_sort_index").items()} == {0: 0, 1: 1, 2: 2}
    spans = [one for one in body["traceEvents"] if one["ph"] == "X"]
    assert len(spans) == sum(len(trace.events) for trace in traces)
    assert min(one["ts"] for one in spans) >= 0
    assert [each["rank"] for each in body["resilin"]["ranks"]] == [0, 1, 2]
    assert body["resilin"]["notes"] == ["a note"]
    starts = {one["id"]: one for one in body["traceEvents"] if one["ph"] == "s" and one["cat"] != "fwdbwd"}
    ends = {one["id"]: one for one in body["traceEvents"] if one["ph"] == "f" and one["cat"] != "fwdbwd"}
    assert starts.keys() == ends.keys()
    assert len(starts) == arrows
    sends = len(meetings.messages(traces))
    assert sends == sum(one["cat"] == "message" for one in starts.values()) > 0
    assert all(starts[each]["ts"] <= ends[each]["ts"] and starts[each]["pid"] != ends[each]["pid"] for each in starts)


@pytest.mark.multiproc
def test_spans_nest_as_they_did(job, tmp_path):
    traces = job.traces().ranks
    body, _ = _written(traces, tmp_path / "merged.json")
    written = [one for one in body["traceEvents"] if one["ph"] == "X" and one["pid"] == 1]
    for event, one in zip(traces[1].events, written, strict=True):
        assert one["name"] == event.name
        assert one["dur"] == event.duration_ns / 1000


def test_arrows_lead_from_send_to_receive_and_from_the_last_to_the_waiting(made, tmp_path):
    first = made(0).message(0, 10, 0, 1).collective(20, 62, 0, (0, 1)).ready()
    second = made(1).message(2, 12, 0, 1).collective(60, 62, 0, (0, 1)).ready()
    body, arrows = _written([first, second], tmp_path / "merged.json")
    ends = [(one["cat"], one["ph"], one["pid"], one["ts"]) for one in body["traceEvents"] if one["ph"] in "sf"]
    assert arrows == 2
    assert ends == [
        ("message", "s", 0, 0),
        ("message", "f", 1, 2),
        ("collective", "s", 1, 60),
        ("collective", "f", 0, 60),
    ]


def test_two_processes_of_one_rank_have_numbers_of_their_own(made, tmp_path):
    first, again = made(1).span("load", 0, 10).ready(), made(1).span("load", 20, 30).ready()
    body, _ = _written([made(0).span("load", 0, 30).ready(), first, again], tmp_path / "merged.json")
    assert sorted(_named(body, "process_name")) == [0, 1, 3]


def test_a_folder_that_is_not_there_is_an_error_and_leaves_no_file(made, tmp_path):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        merged_file.write([made(0).span("load", 0, 10).ready()], tmp_path / "none" / "merged.json")


def test_a_full_disk_is_told(made):
    with pytest.raises(OSError, match="No space left"):
        merged_file.write([made(0).span("load", 0, 10).ready()], Path("/dev/full"))


def test_a_profile_read_and_written_again_keeps_its_spans_and_arrows(tmp_path):
    with profile() as recorded:
        x = resilin.ones(4, 4, requires_grad=True)
        with record_function("forward"):
            y = (x @ x).sum()
        y.backward()
    path = tmp_path / "rank.json"
    recorded.export_chrome_trace(str(path))
    trace = chrome_file.read(path)
    trace.rank = 0
    body, _ = _written([trace], tmp_path / "merged.json")
    given = json.loads(path.read_text())["traceEvents"]

    def spans(events, kind):
        return [one["name"] for one in events if one["ph"] == kind and one.get("cat") != "Trace"]

    assert spans(body["traceEvents"], "X") == spans(given, "X")
    for letter in "sf":
        assert len(spans(body["traceEvents"], letter)) == len(spans(given, letter)) > 0
