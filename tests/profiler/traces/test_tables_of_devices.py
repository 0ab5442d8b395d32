"""Of a device trace, `analyse` tells what HolisticTraceAnalysis tells: see tests/fixtures/make_device_traces.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from resilin.profiler.traces import reports

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOLD = json.loads((FIXTURES / "device_tables.json").read_text())


@pytest.fixture(scope="module")
def own():
    return reports.analyse([FIXTURES / "device_traces"], top=1000)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("temporal_breakdown", ("rank",)),
        ("comm_comp_overlap", ("rank",)),
        ("gpu_kernel_breakdown", ("rank", "name")),
    ],
)
def test_names_and_sums_are_those_of_holistic_trace_analysis(own, table, key):
    found = {tuple(row[name] for name in key): row for row in own[table]}
    assert len(TOLD[table]) > 1
    assert found.keys() == {tuple(row[name] for name in key) for row in TOLD[table]}
    for row in TOLD[table]:
        ours = found[tuple(row[name] for name in key)]
        assert {name: ours[name] for name in row} == pytest.approx(row, abs=0.01)  # shares have two digits


def test_sums_of_kinds_are_those_of_holistic_trace_analysis(own):
    sums: dict[str, float] = {}
    for row in own["gpu_kernel_breakdown"]:
        sums[row["kernel_type"]] = sums.get(row["kernel_type"], 0) + row["sum (us)"]
    told = {row["kernel_type"]: row["sum"] for row in TOLD["kernel_types"]}
    assert sums["MEMORY"] == told["MEMORY"]
    # there, what goes on at once counts as that and not as one of the two; nothing overlaps itself here
    hidden = told["COMPUTATION overlapping COMMUNICATION"]
    assert sums["COMPUTATION"] == told["COMPUTATION"] + hidden + told["COMPUTATION overlapping MEMORY"]
    assert sums["COMMUNICATION"] == told["COMMUNICATION"] + hidden
