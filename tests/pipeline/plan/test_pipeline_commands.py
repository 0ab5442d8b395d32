"""`resilin pipeline`: schedules on the command line."""

from xml.etree import ElementTree

import pytest

from resilin.launcher.main import main
from resilin.pipeline.plan import csv
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.generate import generate


def test_a_schedule_is_drawn_with_its_bubble_and_memory(capsys):
    assert main(["pipeline", "draw", "1f1b", "--ranks", "2", "--microbatches", "3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rank 0  F0 F1 ·  ·  B0─── F2 B1─── ·  B2───",
        "rank 1  ·  F0 B0─── F1 B1─── F2 B2─── ·  ·",
        "bubble 25.0 % (formula 25.0 %), time 12",
        "micro-batches in memory at most, by rank: 2 1",
    ]


def test_files_are_written_and_drawn_again(tmp_path, capsys):
    files = ["--csv", str(tmp_path / "a.csv"), "--svg", str(tmp_path / "a.svg")]
    assert main(["pipeline", "draw", "ZBVZeroBubble", "--ranks", "2", "--microbatches", "4", *files]) == 0
    first = capsys.readouterr().out
    assert csv.read(tmp_path / "a.csv") == generate("ZBVZeroBubble", 2, 4)
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert main(["pipeline", "draw", str(tmp_path / "a.csv")]) == 0
    again = capsys.readouterr().out
    assert first.splitlines()[:2] == again.splitlines()[:2]
    assert main(["pipeline", "draw", str(tmp_path / "a.csv"), "--hop", "1", "--forward", "2"]) == 0
    assert capsys.readouterr().out != again


def test_a_file_is_proved(tmp_path, capsys):
    path = tmp_path / "plan.csv"
    csv.write(add_communication(generate("Interleaved1F1B", 2, 4)), path)
    assert main(["pipeline", "validate", str(path), "--at-most", "2.5"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: can be run: 2 ranks, 4 stages, 4 micro-batches, with communication",
        "bubble 11.1 % where F, I and W take equal time",
        "micro-batches in memory at most, by rank: 2.5 1.5",
    ]
    assert main(["pipeline", "validate", str(path), "--at-most", "2"]) == 1
    assert "rank 0 keeps 2.5 micro-batches alive" in capsys.readouterr().out
    assert main(["pipeline", "validate", str(path), "--synchronous"]) == 1
    assert "this plan deadlocks" in capsys.readouterr().out


def test_a_file_that_deadlocks_is_told_with_its_cycle(tmp_path, capsys):
    (tmp_path / "plan.csv").write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", encoding="utf-8")
    assert main(["pipeline", "validate", str(tmp_path / "plan.csv")]) == 1
    assert "this plan deadlocks: rank 0 waits at 0B0 (action 1) for 1B0 of rank 1" in capsys.readouterr().out


def test_gradients_in_another_order_are_told_to_wait(tmp_path, capsys):
    (tmp_path / "plan.csv").write_text("0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n", encoding="utf-8")
    assert main(["pipeline", "validate", str(tmp_path / "plan.csv")]) == 0
    assert "its gradients come in another order than micro-batches" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["draw", "1F1B"], "--ranks and --microbatches are needed"),
        (["draw", "2F2B"], "Unknown schedule name '2F2B'"),
        (["draw", "2F2B", "--ranks", "2", "--microbatches", "2"], "Unknown schedule name '2F2B'"),
        (["draw", "1F1B", "--ranks", "4", "--microbatches", "2"], r"Number of microbatches (2) must be greater"),
        (["draw", "none.csv"], "none.csv: expected a schedule as CSV"),
        (["draw", "GPipe", "--ranks", "2", "--microbatches", "2", "--csv", "/no/such/folder/a.csv"], "cannot write"),
        (["draw", "GPipe", "--ranks", "2", "--microbatches", "2", "--svg", "/no/such/folder/a.svg"], "cannot write"),
        (["validate", "none.csv"], "none.csv: expected a schedule as CSV"),
    ],
)
def test_wrong_usage_returns_2_and_says_why(arguments, message, capsys):
    assert main(["pipeline", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("time", ["-1", "inf", "nan", "x"])
def test_times_are_numbers_from_0(time, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["pipeline", "draw", "GPipe", "--ranks", "2", "--microbatches", "2", f"--forward={time}"])
    assert caught.value.code == 2
    assert "--forward" in capsys.readouterr().err
