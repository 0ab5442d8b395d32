"""Weights that are replaced while commands read them: one version is read, or it is said that there were two."""

from pathlib import Path

import pytest

import resilin
from resilin import checkpoint
from resilin.checkpoint import safetensors, save_safetensors
from resilin.checkpoint.storage import Reading
from resilin.checkpoint.tools import compare, convert, states
from resilin.errors import CheckpointError, CorruptFile
from resilin.launcher import main

TORCH_FILES = Path(__file__).parents[1] / "fixtures" / "torch_files"
SAYS = r"was replaced or deleted while it was read: read it again when its writer is done"


def model(value, names=("a", "b", "c")):
    return {name: resilin.full((3000,), float(value)) for name in names}


def write(path, value, names=("a", "b", "c")):
    save_safetensors(model(value, names), path, max_shard_bytes=15_000)


@pytest.fixture(params=["one.safetensors", "hub"])
def weights(tmp_path, request):
    """A file, or a folder of three with an index."""
    write(tmp_path / request.param, 1)
    return tmp_path / request.param


def replaced_at(monkeypatch, number, replace):
    """Have `replace()` run before read number `number` (from 0) of elements."""
    calls, read = [], safetensors.read

    def counted(*args):
        calls.append(args)
        if len(calls) - 1 == number:
            replace()
        return read(*args)

    monkeypatch.setattr(states.safetensors, "read", counted)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("names", [("a", "b", "c"), ("a",), ("longer", "b", "c")])
def test_a_comparison_of_weights_that_are_replaced_says_so(weights, monkeypatch, number, names):
    state = states.open_state(weights)
    replaced_at(monkeypatch, number, lambda: write(weights, 2, names))
    with pytest.raises(CheckpointError, match=SAYS) as told:
        compare.compare(state, state)
    assert not isinstance(told.value, CorruptFile)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("target", ["new.safetensors", "folder", "checkpoint"])
def test_what_is_made_of_weights_that_are_replaced_is_not_there(weights, tmp_path, monkeypatch, number, target):
    state = states.open_state(weights)
    replaced_at(monkeypatch, number, lambda: write(weights, 2))
    work = convert.to_checkpoint if target == "checkpoint" else convert.to_weights
    with pytest.raises(CheckpointError, match=SAYS):
        work(state, tmp_path / target)
    with pytest.raises(CheckpointError):
        states.open_state(tmp_path / target)


def test_weights_that_are_deleted_are_no_damage(weights, monkeypatch):
    state = states.open_state(weights)

    def delete():
        for path in [weights] if weights.is_file() else weights.iterdir():
            path.unlink()

    replaced_at(monkeypatch, 1, delete)
    with pytest.raises(CheckpointError, match=SAYS):
        compare.compare(state, state)


def test_a_header_that_is_replaced_under_the_reader_is_told_too(weights, monkeypatch):
    layout = safetensors.read_layout

    def replacing(source):
        found = layout(source)
        write(weights, 2)
        return found

    monkeypatch.setattr(states.safetensors, "read_layout", replacing)
    with pytest.raises(CheckpointError, match=SAYS):
        states.open_state(weights)


@pytest.mark.parametrize("name", ["training.pt", "training.old.pt"])
def test_a_file_of_torch_that_is_replaced_while_it_is_read_says_so(tmp_path, monkeypatch, name):
    saved, path = (TORCH_FILES / name).read_bytes(), tmp_path / name
    path.write_bytes(saved)
    filled = Reading.read_into

    def replacing(self, start, buffer):
        (tmp_path / "new").write_bytes(saved)
        (tmp_path / "new").replace(path)
        filled(self, start, buffer)

    monkeypatch.setattr(Reading, "read_into", replacing)
    with pytest.raises(CheckpointError, match=SAYS):
        checkpoint.import_torch(path)


def test_damage_stays_damage(weights):
    (file, *_) = [weights] if weights.is_file() else sorted(weights.glob("*.safetensors"))
    state = states.open_state(weights)
    assert compare.compare(state, state) == []
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CorruptFile, match="cut short"):
        states.open_state(weights)


def test_the_commands_end_with_that_and_leave_nothing(weights, tmp_path, monkeypatch, capsys):
    replaced_at(monkeypatch, 2, lambda: write(weights, 2))
    assert main.main(["checkpoint", "diff", str(weights), str(weights)]) == 1
    assert "was replaced or deleted while it was read" in capsys.readouterr().err
    monkeypatch.undo()
    replaced_at(monkeypatch, 2, lambda: write(weights, 3))
    assert main.main(["checkpoint", "convert", str(weights), str(tmp_path / "new.safetensors")]) == 1
    assert "was replaced or deleted while it was read" in capsys.readouterr().err
    assert not list(tmp_path.glob("new*"))
    monkeypatch.undo()
    assert main.main(["checkpoint", "convert", str(weights), str(tmp_path / "new.safetensors")]) == 0
    assert checkpoint.load_safetensors(tmp_path / "new.safetensors")["c"][0].item() == 3
