"""The report for a GPU that is there for minutes: its host side, on the stand-in and with made-up processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import gpu_report
from benchmarks.gpu_report import Step


def options(tmp_path, **given):
    defaults = {"out": tmp_path / "figures.jsonl", "peer_python": None, "minutes": 8.0, "stages": None}
    return SimpleNamespace(**{**defaults, "stand_in": False, "cubins": None, **given})


def lines(args):
    return [json.loads(line) for line in args.out.read_text().splitlines()]


@pytest.fixture
def script(monkeypatch):
    """Have each process of a step run these lines of Python."""

    def use(**texts):
        def commands(step, args):
            for library in ("resilin", "torch"):
                yield library, [sys.executable, "-c", texts[step.name]]

        monkeypatch.setattr(gpu_report, "commands", commands)

    return use


FIGURE = "import json; print(json.dumps({'figure': 'a', 'unit': 'ms', 'value': %d, 'library': 'x'}), flush=True)"


def test_each_figure_is_a_line_with_its_stage_and_the_end_is_told(tmp_path, script, capsys):
    script(one=f"print('words'); {FIGURE % 1}; {FIGURE % 2}")
    args = options(tmp_path)
    assert gpu_report.report(args, [Step(name="one", limit_s=60)]) == 0
    found = lines(args)
    assert [line["stage"] for line in found] == ["begin", *["one"] * 6, "end"]
    assert [line.get("value") for line in found[1:4]] == [1, 2, None]
    assert [line["ended"] for line in found if "ended" in line] == ["done", "done"]
    assert found[-1]["failed"] is False
    assert all(line["at_s"] >= 0 for line in found)
    assert len(capsys.readouterr().out.splitlines()) == len(found)


def test_a_stage_that_fails_or_hangs_loses_neither_its_figures_nor_the_next_stage(tmp_path, script):
    hang = f"{FIGURE % 7}; import threading; threading.Event().wait()"
    script(breaks=f"{FIGURE % 5}; raise SystemExit('the device is gone')", hangs=hang, works=FIGURE % 9)
    args = options(tmp_path)
    plan = [Step(name="breaks", limit_s=60), Step(name="hangs", limit_s=4), Step(name="works", limit_s=60)]
    assert gpu_report.report(args, plan) == 1
    found = lines(args)
    assert [line["value"] for line in found if "value" in line and line["stage"] != "hangs"] == [5, 5, 9, 9]
    ended = {line["stage"]: line["ended"] for line in found if "ended" in line}
    assert ended["breaks"] == "exit code 1\nthe device is gone"
    assert ended["hangs"].startswith("not done after ")
    assert ended["works"] == "done"


def test_the_whole_keeps_its_time(tmp_path, script):
    script(first="pass", second="pass")
    args = options(tmp_path, minutes=0.01)
    assert gpu_report.report(args, [Step(name="first", limit_s=60), Step(name="second", limit_s=60)]) == 1
    assert [line["ended"] for line in lines(args) if "ended" in line] == ["no time was left"] * 2
    assert sum(step.limit_s for step in gpu_report.PLAN) <= gpu_report.MINUTES * 60


def test_stages_are_chosen_by_name_and_others_refused(tmp_path, script, capsys):
    script(first="pass", second="pass")
    args = options(tmp_path, stages=["second"])
    assert gpu_report.report(args, [Step(name="first", limit_s=60), Step(name="second", limit_s=60)]) == 0
    assert {line["stage"] for line in lines(args)} == {"begin", "second", "end"}
    with pytest.raises(SystemExit):
        gpu_report.main(["--stages", "nothing"])
    assert "there is no nothing" in capsys.readouterr().err


def test_both_sides_run_the_same_case_and_only_ours_gets_kernels_from_before(tmp_path):
    args = options(tmp_path, peer_python="/peer/python", cubins=tmp_path)
    (ours, one), (theirs, two) = gpu_report.commands(gpu_report.PLAN[0], args)
    assert (ours, theirs) == ("resilin", "torch")
    assert one[1:] == ["-m", "benchmarks.ours", "gpu_figures", "machine", "--cubins", str(tmp_path)]
    assert two[:3] == ["/peer/python", "-m", "benchmarks.peers.pytorch"]
    tests = next(step for step in gpu_report.PLAN if step.tests)
    ((_, command),) = gpu_report.commands(tests, args)
    assert command[-2:] == ["-m", "gpu"]


def test_the_machine_is_measured_on_the_stand_in(tmp_path):
    args = options(tmp_path, stand_in=True, stages=["machine"])
    assert gpu_report.report(args) == 0
    figures = {line["figure"]: line["value"] for line in lines(args) if "figure" in line}
    assert {"device: Stand-in", "a call: a + b of 64"} <= set(figures)
    assert all(value > 0 for value in figures.values())


@pytest.mark.slow
def test_every_stage_runs_on_the_stand_in(tmp_path):
    args = options(tmp_path, stand_in=True)
    assert gpu_report.report(args) == 0
    stages = {line["stage"] for line in lines(args) if "figure" in line}
    assert stages == {"machine", "kernels", "steps", "gpt2"}
    assert Path(args.out).exists()
