"""The demo: what it says from given lines, and one real run with a real kill -9."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import demo

START = ("generation 1: rank 0 of 2, pid 100", "generation 1: rank 1 of 2, pid 101")


class Told:
    """A demo that is told lines instead of running anything; `kills` collects whom it killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, live: bool = False) -> None:
        self.kills: list[tuple[int, int]] = []
        monkeypatch.setattr(os, "kill", lambda pid, number: self.kills.append((pid, number)))
        self.stream = io.StringIO()
        self.run = demo.Run(epochs=6, steps_per_epoch=10)
        self.screen = demo.Screen(self.stream, live)
        self.murder = demo.Murder(self.run, self.screen, victim=1)

    def tell(self, *lines: str) -> str:
        before = len(self.stream.getvalue())

        class Lines(demo.Training):
            def __init__(self) -> None:
                pass

            def lines(self):  # type: ignore[no-untyped-def]
                yield from ((float(number), line) for number, line in enumerate(lines))

        demo.follow(Lines(), self.run, self.screen, self.murder)
        return self.stream.getvalue()[before:]


def test_kills_the_chosen_rank_once_in_the_middle_of_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.tell(*START, "[default0]: epoch 2 step 24 loss 0.5 workers 2")
    assert told.kills == []
    text = told.tell("epoch 2 step 25 loss 0.5 workers 2", "epoch 2 step 26 loss 0.5 workers 2")
    assert told.kills == [(101, signal.SIGKILL)]
    assert "SIGKILL to rank 1, process 101, in epoch 3, after step 6 of 10" in text


def test_two_workers_that_begin_on_one_line_are_both_known(monkeypatch: pytest.MonkeyPatch) -> None:
    demo_ = Told(monkeypatch)
    shown = demo_.tell("".join(START))
    assert "generation 1: rank 0 is process 100, rank 1 is process 101" in shown


def test_recovery_and_replacement_must_both_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    told.tell(*START, "epoch 2 step 25 loss 0.5 workers 2")
    assert told.murder.problems() == [
        "no step was committed after the kill",
        "no replacement joined before the end of training",
    ]
    text = told.tell("elastic-run: recovered in 61.5 ms (death seen -> next committed step)")
    assert "RECOVERED: the next step was committed" in text
    told.tell("generation 3: rank 0 of 2, pid 100", "generation 3: rank 1 of 2, pid 102")
    assert told.murder.problems() == []


def test_shows_what_the_launcher_says(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    line = "elastic-run: worker died: rank 1 (pid 101) killed by SIGKILL at step 25"
    assert line in told.tell(*START, line)


def test_progress_is_one_rewritten_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Told(monkeypatch, live=True).tell(*(f"epoch 0 step {step} loss 0.5 workers 2" for step in range(4)))
    assert text.count("\r") == 4
    assert "epoch 1/6 step 4/60 loss 0.5 2 workers" in text
    assert "\n" not in text


def test_progress_is_a_plain_line_per_tenth_of_the_run_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Told(monkeypatch).tell(*(f"epoch 0 step {step} loss 0.5 workers 2" for step in range(14)))
    assert text.count("\n") == 2
    assert "step 6/60" in text
    assert "step 12/60" in text
    assert "\r" not in text


@pytest.mark.parametrize(
    ("first", "second", "accuracy", "code"),
    [("aa", "aa", "98.00%", 0), ("aa", "bb", "98.00%", 1), ("aa", "aa", "96.99%", 1)],
)
def test_fails_unless_the_hashes_are_equal_and_the_accuracy_is_reached(
    first: str, second: str, accuracy: str, code: int
) -> None:
    runs = []
    for weights in (first, second):
        run = demo.Run(epochs=1, steps_per_epoch=1)
        run.results = {"weights sha256": weights, "test accuracy": accuracy}
        runs.append(run)
    screen = demo.Screen(io.StringIO(), live=False)
    assert demo.verdict(screen, runs[0], runs[1], []) == code


HOLD = """
import subprocess, sys, time
from examples import demo
with demo.scratch() as place:
    (place.folder / "file").touch()
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    user = subprocess.Popen(command, pass_fds=(place.descriptor,))  # like a training run; ends with our stdin
    print(place.folder, flush=True)
    time.sleep(60)
"""


def gone(folder: Path, within_s: float) -> bool:
    end = time.monotonic() + within_s
    while folder.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return not folder.exists()


def test_its_files_go_when_the_demo_is_killed_and_its_training_run_has_ended(root: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        folder = Path(process.stdout.readline().strip())
        assert folder.exists()
        process.kill()
        process.wait()
        assert not gone(folder, 0.3)  # the run that it started still uses it
        process.stdin.close()  # ends that run, too
        assert gone(folder, 10)


def test_its_files_go_with_the_block() -> None:
    with demo.scratch() as place:
        (place.folder / "file").touch()
    assert not place.folder.exists()


@pytest.mark.multiproc
def test_demo_survives_its_own_kill_with_equal_weights(
    run_python: Callable[..., subprocess.CompletedProcess[str]], turns: Callable[..., int]
) -> None:
    done = run_python("-m", "examples.demo", "--epochs", str(turns(short=15, full=60)), timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("KILL: SIGKILL to rank 1", "killed by SIGKILL", "RECOVERED", "every sample once", "equal"):
        assert words in done.stdout
    assert done.stderr == ""
