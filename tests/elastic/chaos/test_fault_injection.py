"""Faults strike where the schedule says, once in a job, and only where somebody asked for them."""

import subprocess
import sys

import pytest

import resilin
from resilin import elastic
from resilin._base import fault_points
from resilin.elastic.chaos import records
from resilin.elastic.chaos.schedule import Fault, Schedule
from resilin.elastic.worker import fault_injection


@pytest.fixture
def armed(tmp_path, monkeypatch):
    """`armed(*faults)` puts them into a folder that workers look at."""

    def write(*faults):
        (tmp_path / records.SCHEDULE).write_text(Schedule(faults=faults).to_json())
        monkeypatch.setenv(records.FOLDER, str(tmp_path))
        return tmp_path

    return write


def striker(folder, step=5):
    return fault_injection.FaultInjector(folder, lambda: step)


def reach(one, moment, times):
    """How often `moment` came before something was raised; `times` when nothing was."""
    for count in range(times):
        try:
            one.reached(moment)
        except RuntimeError:
            return count
    return times


def test_a_fault_strikes_at_its_moment_for_the_nth_time_from_its_step_on(armed):
    folder = armed(Fault(do="raise", at="ledger", step=5, nth=2))
    assert reach(striker(folder, step=4), "ledger", 9) == 9, "too early"
    one = striker(folder)
    assert reach(one, "commit", 9) == 9, "another moment"
    assert reach(one, "ledger", 9) == 2
    (fired,) = records.fired(folder)
    assert (fired.fault, fired.rank, fired.step) == (0, 0, 5)


def test_a_fault_of_another_rank_leaves_this_one_alone(armed):
    folder = armed(Fault(do="raise", rank=1, at="ledger"))
    assert reach(striker(folder), "ledger", 3) == 3
    assert records.fired(folder) == []


def test_a_fault_strikes_once_in_a_job_however_often_its_moment_comes_again(armed):
    folder = armed(Fault(do="raise", at="ledger"))
    assert reach(striker(folder), "ledger", 3) == 0
    assert reach(striker(folder), "ledger", 3) == 3, "the replacement comes to the same moment"


def test_what_others_suffer_is_noted_and_left_to_them(armed):
    folder = armed(Fault(do="kill", to="agent", at="ledger"))
    assert reach(striker(folder), "ledger", 3) == 3
    assert [fired.fault for fired in records.fired(folder)] == [0]


def test_a_full_disk_is_one_for_files_that_are_being_written_and_for_nothing_else(tmp_path):
    code = (
        "import os, sys\n"
        "from resilin.elastic.worker import fault_injection\n"
        "book = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "other = os.open(sys.argv[1] + '2', os.O_RDWR | os.O_CREAT)\n"
        "fault_injection._fill_disk(0)\n"
        "os.write(other, b'x')\n"
        "print('still there')\n"
        "os.write(book, b'x')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "book"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == "still there\n"
    assert "No space left on device" in done.stderr


def train(state, steps):
    while state.step < steps:
        (state.weight.sum() * 2).backward()
        state.commit()


def test_a_program_is_struck_in_its_own_code_and_leaves_what_it_ended_with(armed):
    folder = armed(Fault(do="raise", at="backward", step=3))
    state = elastic.State()
    state.weight = resilin.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="chaos fault 0"):
        elastic.run(train)(state, 5)
    assert state.step == 2
    assert records.results(folder) == []
    assert fault_points.heard is None, "nobody listens after the program"
    elastic.run(train)(state, 5)
    (result,) = records.results(folder)
    assert (result.step, result.fingerprint) == (5, state.fingerprint())


def test_nobody_listens_where_nobody_asked(monkeypatch):
    monkeypatch.delenv(records.FOLDER, raising=False)
    seen = []

    def look(state):
        seen.append(fault_points.heard)

    elastic.run(look)(elastic.State(x=0))
    assert seen == [None]
