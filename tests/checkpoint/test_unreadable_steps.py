"""One folder of a step that cannot be read: it is named, and the others are used."""

import errno
import logging
import subprocess
import sys

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint import folder
from resilin.checkpoint.local import LocalStorage
from resilin.checkpoint.tools import listing, verify
from resilin.errors import CheckpointError, CorruptFile, StorageDenied, StorageError, StorageTimeout
from resilin.launcher import main
from resilin.testing.ranks import run_ranks


class Refusing(LocalStorage):
    """Whatever is asked of one step fails, as without permission; what is listed above it is not that."""

    def __init__(self, root, refused="step-3", error=StorageDenied, number=errno.EACCES):
        super().__init__(root)
        self.refused, self.error, self.number = refused, error, number

    def path(self, name):
        path = super().path(name)
        if name == self.refused or name.startswith(f"{self.refused}/"):
            raise self.error(f"{path} cannot be looked at: refused", path, self.number)
        return path


@pytest.fixture
def run(tmp_path):
    """A folder with checkpoints of steps 1 to 3."""
    for step in (1, 2, 3):
        checkpoint.save(tmp_path / "run", {"w": resilin.full((8,), float(step)), "step": step}, step=step)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("error", "number"), [(StorageDenied, errno.EACCES), (StorageDenied, None), (StorageError, errno.EIO)]
)
def test_the_newest_that_can_be_read_is_used_and_the_other_named(run, caplog, error, number):
    storage = Refusing(run, error=error, number=number)
    assert checkpoint.latest(storage) == str(run / "step-2")
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.WARNING, "a checkpoint cannot be read")
    assert record.fields["problem"].startswith(f"{run}/step-3 cannot be looked at: ")
    assert checkpoint.load(storage)["step"] == 2
    state = {"w": resilin.zeros(8), "step": 0}
    assert checkpoint.load(storage, state).step == 2
    assert state["w"].tolist() == [2] * 8
    assert checkpoint.verify(storage) == []


def test_who_asks_for_that_step_is_told_why_not(run):
    for call in (checkpoint.load, checkpoint.verify):
        with pytest.raises(StorageDenied, match=r"step-3.*cannot be looked at: refused") as told:
            call(Refusing(run), step=3)
        assert told.value.errno == errno.EACCES
    state = {"w": resilin.zeros(8), "step": 0}
    with pytest.raises(StorageDenied):
        checkpoint.load(Refusing(run), state, step=3)
    assert state["step"] == 0


def test_all_ranks_take_the_same_one_when_the_first_cannot_read_the_newest(run):
    def work(rank):
        storage = Refusing(run) if rank == 0 else LocalStorage(run)
        state = {"w": resilin.zeros(8), "step": 0}
        return checkpoint.load(storage, state).step, state["w"].tolist()

    assert run_ranks(3, work).results() == [(2, [2] * 8)] * 3


def test_where_none_can_be_read_nobody_begins_anew(tmp_path):
    checkpoint.save(tmp_path, {"n": 1}, step=3)
    for call in (checkpoint.latest, checkpoint.load):
        with pytest.raises(StorageDenied, match=r"step-3.*refused"):
            call(Refusing(tmp_path))


def test_what_may_answer_better_again_is_no_reason_to_take_an_older_one(run):
    for error, number in ((StorageTimeout, None), (StorageError, errno.ECONNREFUSED)):
        storage = Refusing(run, error=error, number=number)
        for call in (checkpoint.latest, checkpoint.load, checkpoint.list_checkpoints):
            with pytest.raises(error):
                call(storage)


def test_the_list_says_what_could_not_be_read(run):
    found = checkpoint.list_checkpoints(Refusing(run, refused="step-1"))
    assert [(one.name, one.is_complete, one.unreadable) for one in found] == [
        ("step-2", True, False), ("step-3", True, False), ("step-1", False, True),
    ]  # fmt: skip
    assert found[-1].step == 1
    assert found[-1].problem.startswith(f"{run}/step-1 cannot be looked at: ")


def test_jobs_go_on_saving_beside_it_and_delete_it_not(run):
    storage = Refusing(run)
    checkpoint.save(storage, {"n": 4}, step=4, keep_last=1)
    assert sorted(path.name for path in run.iterdir()) == ["latest", "step-3", "step-4"]
    assert checkpoint.load(storage)["n"] == 4
    assert checkpoint.load(run)["n"] == 4  # newer than what could not be read, too
    assert checkpoint.load(run, step=3)["step"] == 3


def test_a_save_to_a_place_that_refuses_is_told(run):
    with pytest.raises(StorageDenied, match="step-3"):
        checkpoint.save(Refusing(run), {"n": 4}, step=3)


@pytest.mark.parametrize(
    "breaks",
    [
        lambda text: b"",
        lambda text: text[:100],
        lambda text: text.replace(b'"step"', b'"stop"'),
        lambda text: b"\xff" * 5000,
        lambda text: b"[" * 200_000,
        lambda text: text.replace(b'"version":1', b'"version":2'),
    ],
)
def test_a_broken_manifest_stops_nobody_who_takes_the_newest(run, caplog, breaks):
    manifest = run / "step-3" / "manifest.json"
    manifest.write_bytes(breaks(manifest.read_bytes()))
    assert checkpoint.latest(run) == str(run / "step-2")
    assert [record.message for record in caplog.records] == ["a checkpoint is torn"]
    assert str(manifest) in caplog.records[0].fields["problem"]
    assert checkpoint.load(run)["step"] == 2
    with pytest.raises(CorruptFile, match="manifest"):
        checkpoint.load(run, step=3)


def test_a_folder_where_the_manifest_should_be_stops_nobody(run):
    (run / "step-3" / "manifest.json").unlink()
    (run / "step-3" / "manifest.json").mkdir()
    assert checkpoint.load(run)["step"] == 2
    with pytest.raises(CheckpointError, match="step-3 is torn"):
        checkpoint.load(run, step=3)


def test_a_link_in_a_circle_is_named_and_the_others_are_used(run):
    (run / "step-9").symlink_to(run / "step-9")
    assert checkpoint.load(run)["step"] == 3
    (last,) = [one for one in checkpoint.list_checkpoints(run) if one.name == "step-9"]
    assert last.unreadable
    with pytest.raises(StorageError, match=r"step-9.*symbolic links"):
        checkpoint.load(run, step=9)


def test_the_commands_name_it_and_tell_of_the_others(run, capsys):
    (run / "step-9").symlink_to(run / "step-9")
    assert main.main(["checkpoint", "ls", str(run)]) == 1
    shown = capsys.readouterr().out
    assert "step-9      unreadable" in shown
    assert f"{run}/step-9 cannot be " in shown
    assert main.main(["checkpoint", "verify", str(run)]) == 1
    shown = capsys.readouterr().out
    assert f"{run}/step-9: UNREADABLE" in shown
    assert shown.count(": intact") == 3
    assert [one.unreadable for one in listing.list_all(Refusing(run, refused="step-2"))].count(True) == 2
    assert [one.unreadable for one in verify.verify_all(Refusing(run, refused="step-2"))].count(True) == 2


@pytest.mark.slow
def test_a_program_without_logging_reads_which_one(run):
    (run / "step-3" / "manifest.json").unlink()
    program = f"from resilin import checkpoint; checkpoint.latest({str(run)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert "WARNING" in done.stderr
    assert f"a checkpoint is torn  problem={run}/step-3 is torn" in done.stderr


def test_a_serial_is_above_those_that_could_not_be_read(run):
    serial, _ = folder.survey(Refusing(run), "step-4")
    assert serial > checkpoint.list_checkpoints(run)[-1].serial
