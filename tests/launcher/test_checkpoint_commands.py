"""`resilin checkpoint`: what is there, whether it is intact, what differs, and in another form."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import resilin
from resilin import checkpoint, nn, optim
from resilin._base.clock import SYSTEM
from resilin.checkpoint import load_safetensors, save_safetensors
from resilin.checkpoint.open_storage import open_storage
from resilin.checkpoint.tools import states
from resilin.launcher import exit_codes, main
from resilin.launcher.checkpoint import ls

FIXTURES = Path(__file__).parents[1] / "fixtures" / "torch_files"


def trained(steps=1):
    resilin.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = optim.AdamW(model.parameters())
    for _ in range(steps):
        model(resilin.rand(2, 3)).sum().backward()
        optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": steps}


@pytest.fixture
def run(tmp_path):
    """A folder with checkpoints of steps 1 and 2."""
    for step in (1, 2):
        checkpoint.save(tmp_path / "run", trained(step), step=step)
    return tmp_path / "run"


@pytest.fixture
def weights(tmp_path):
    """A file of weights."""
    save_safetensors(trained()["model"], tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def refused(answer, *why):
    code, out = answer
    assert code == exit_codes.USAGE
    for text in why:
        assert text in out


@pytest.fixture
def ask(capsys):
    def ask(*args):
        code = main.main(["checkpoint", *map(str, args)])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return ask


def damage(folder, place=-3):
    """Flip a bit in the data file of a checkpoint."""
    (file,) = folder.glob("data-*")
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)
    return file


# -- ls


def test_ls_shows_steps_sizes_writers_and_age(run, ask):
    code, out = ask("ls", run)
    assert code == 0
    heading, first, second = out.splitlines()
    assert heading.split() == ["CHECKPOINT", "STATE", "SIZE", "TENSORS", "FILES", "RANKS", "AGE"]
    assert first.split()[:2] == ["step-1", "complete"]
    assert second.split()[:2] == ["step-2", "complete"]
    *counts, age, unit = second.split()[4:]
    assert (counts, unit) == (["8", "1", "1"], "s")
    assert 0 <= int(age) <= SYSTEM.wall() - (run / "step-2").stat().st_mtime + 1  # how long it took to ask
    assert ask("ls", run / "step-2")[1].splitlines()[1].split()[:2] == [".", "complete"]


def test_latest_is_a_path_for_every_command(run, tmp_path, ask):
    latest = run / "latest"
    assert "step-2" in ask("ls", latest)[1]
    assert ask("verify", latest)[0] == exit_codes.OK
    assert ask("diff", latest, run / "step-2")[0] == exit_codes.OK
    assert ask("convert", latest, tmp_path / "m.safetensors")[0] == exit_codes.OK


def test_ls_names_torn_checkpoints_and_fails(run, ask):
    (run / "step-1" / "manifest.json").unlink()
    (file,) = (run / "step-2").glob("data-*")
    file.write_bytes(file.read_bytes()[:-1])
    checkpoint.save(run, trained(3), step=3)
    code, out = ask("ls", run)
    assert code == exit_codes.FAILED
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [
        ["step-2", "torn"],
        ["step-3", "complete"],
        ["step-1", "torn"],
    ]
    assert f"{run}/step-1 is torn: it has no manifest.json" in out
    assert f"{file}, a file of the checkpoint {run}/step-2, is cut or replaced" in out


def test_ls_as_json(run, ask):
    code, out = ask("ls", run, "--json")
    assert code == 0
    first, second = json.loads(out)
    assert (second["name"], second["step"], second["world_size"], second["problem"]) == ("step-2", 2, 1, None)
    assert second["nbytes"] == sum(path.stat().st_size for path in (run / "step-2").iterdir())
    assert 0 <= second["age_s"] <= first["age_s"] + 1 < 60


def test_ls_of_nothing_is_wrong_usage(tmp_path, ask):
    assert ask("ls", tmp_path / "nothing") == (
        exit_codes.USAGE,
        f"resilin checkpoint: error: {tmp_path}/nothing: there are no checkpoints\n",
    )


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_999, "1 MB"), (1_234_567, "1.23 MB"), (5e15, "5e+03 TB")],
)
def test_sizes_for_people(nbytes, text):
    assert ls.size(nbytes) == text


# -- verify


def test_verify_says_that_all_are_intact(run, ask):
    code, out = ask("verify", run)
    assert code == 0
    assert out.splitlines() == [f"{run}/step-{n}: intact, 8 tensors in 1 files, 200 B" for n in (1, 2)]


def test_verify_names_file_and_tensor_of_a_changed_bit(run, ask):
    file = damage(run / "step-2")
    code, out = ask("verify", run)
    assert code == exit_codes.FAILED
    lines = out.splitlines()
    assert lines[0].startswith(f"{run}/step-1: intact")
    assert lines[1].startswith(f"{run}/step-2: DAMAGED")
    assert lines[2].startswith(f"  {file}: tensor 'optimizer/state/1/exp_avg_sq', elements [0, 4), bytes [")
    assert len(lines) == 3
    assert ask("verify", run, "--step", 1)[0] == 0
    code, out = ask("verify", run, "--step", 2, "--json")
    (verdict,) = json.loads(out)
    (problem,) = verdict["problems"]
    assert (code, problem["tensor"], problem["file"]) == (1, "optimizer/state/1/exp_avg_sq", str(file))


def test_verify_names_a_header_and_a_manifest_that_changed(run, ask):
    damage(run / "step-1", 20)
    manifest = run / "step-2" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"epoch":2', b'"epoch":3'))
    code, out = ask("verify", run)
    assert code == exit_codes.FAILED
    assert "its header, bytes [0, " in out
    assert f"{manifest} is no intact manifest of a checkpoint: its bytes do not have the hash at its end" in out
    assert "TORN" in out


def test_verify_of_nothing_is_wrong_usage(tmp_path, ask):
    assert ask("verify", tmp_path / "nothing")[0] == exit_codes.USAGE


def test_verify_says_once_that_a_checkpoint_is_torn(run, ask, caplog):
    (run / "step-1" / "manifest.json").unlink()
    (cut,) = (run / "step-2").glob("data-*")
    cut.write_bytes(cut.read_bytes()[:-1])
    code, out = ask("verify", run)
    assert code == exit_codes.FAILED
    lines = out.splitlines()
    assert lines[0] == f"{run}/step-2: TORN"
    assert lines[1].startswith(f"  {cut}, a file of the checkpoint {run}/step-2, is cut or replaced: it has ")
    assert lines[2] == f"{run}/step-1: TORN"
    assert lines[3].startswith(f"  {run}/step-1 is torn: it has no manifest.json")
    assert len(lines) == 4
    assert not caplog.records
    code, out = ask("verify", run, "--step", 2)
    assert (code, out.splitlines()) == (exit_codes.FAILED, lines[:2])
    assert not caplog.records


def test_verify_and_ls_tell_what_is_no_plain_file_from_what_is_missing(run, ask):
    files = [next((run / f"step-{step}").glob("data-*")) for step in (1, 2)]
    for file in files:
        file.unlink()
    files[0].symlink_to("/dev/zero")
    for command in ("verify", "ls"):
        code, out = ask(command, run)
        assert code == exit_codes.FAILED
        assert f"{files[0]}, a file of the checkpoint {run}/step-1, is no plain file" in out
        assert f"{files[1]}, a file of the checkpoint {run}/step-2, is missing" in out
    files[1].mkdir()
    assert f"{files[1]}, a file of the checkpoint {run}/step-2, is no plain file" in ask("verify", run)[1]
    files[1].rmdir()
    files[1].symlink_to(run / "nowhere")
    assert f"{files[1]}, a file of the checkpoint {run}/step-2, is missing" in ask("verify", run)[1]


# -- diff


def test_diff_of_equal_states_finds_nothing(run, ask):
    assert ask("diff", run, run / "step-2") == (
        0,
        f"A: {run}/step-2\nB: {run}/step-2\nthe same names, values and bits\n",
    )


def test_diff_says_which_plain_values_a_file_of_weights_cannot_have(tmp_path, ask):
    state = {"w": resilin.zeros(2), **{f"value{number}": number for number in range(6)}, "empty": {}}
    checkpoint.save(tmp_path / "a", state)
    save_safetensors({"w": resilin.zeros(2)}, tmp_path / "b.safetensors")
    said = "the same tensors, by names and bits; safetensors have no others, so not compared: "
    for order in (("a", "b.safetensors"), ("b.safetensors", "a")):
        code, out = ask("diff", *(tmp_path / name for name in order))
        assert code == exit_codes.OK
        assert out.splitlines()[2] == f"{said}6 plain values (value0, value1, value2, value3, value4, ...)"
    checkpoint.save(tmp_path / "one", {"w": resilin.zeros(2), "lr": 0.1})
    assert f"{said}1 plain value (lr)" in ask("diff", tmp_path / "one", tmp_path / "b.safetensors")[1]


def test_diff_counts_elements_and_shows_values(tmp_path, ask):
    base = {"w": resilin.zeros(5), "s": 1, "gone": resilin.ones(2, 3), "n": resilin.tensor([math.nan, math.inf, 0.0])}
    other = {
        "w": resilin.tensor([0.0, 0.5, 0.0, -2.0, 0.0]),
        "s": 2,
        "new": "text",
        "n": resilin.tensor([math.nan, math.inf, -0.0]),
    }
    checkpoint.save(tmp_path / "a", base)
    checkpoint.save(tmp_path / "b", other)
    code, out = ask("diff", tmp_path / "a", tmp_path / "b")
    assert code == exit_codes.FAILED
    assert out.splitlines()[2:] == [
        "  gone: only in A: float32[2, 3]",
        "  n: float32[3]: 1 elements differ, by 0 at most",
        "  w: float32[5]: 2 elements differ, by 2 at most",
        "  new: only in B: 'text'",
        "  s: value: 1 in A, 2 in B",
        "5 differences",
    ]
    _, out = ask("diff", tmp_path / "a", tmp_path / "b", "--json")
    assert json.loads(out)[2] == {
        "name": "w", "what": "elements", "a": "float32[5]", "b": "float32[5]", "differing": 2, "largest": 2.0,
    }  # fmt: skip


def test_diff_tells_shapes_dtypes_and_nan(tmp_path, ask):
    save_safetensors(
        {"s": resilin.zeros(2), "d": resilin.zeros(2), "n": resilin.tensor([math.nan]), "i": resilin.tensor([1 << 62])},
        tmp_path / "a.safetensors",
    )
    save_safetensors(
        {
            "s": resilin.zeros(1, 2),
            "d": resilin.zeros(2).double(),
            "n": resilin.tensor([1.0]),
            "i": resilin.tensor([(1 << 62) + 1]),
        },
        tmp_path / "b.safetensors",
    )
    _, out = ask("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert out.splitlines()[2:-1] == [
        "  d: dtype: float32[2] in A, float64[2] in B",
        "  i: int64[1]: 1 elements differ, by 1 at most",
        "  n: float32[1]: 1 elements differ, by nan at most",
        "  s: shape: float32[2] in A, float32[1, 2] in B",
    ]
    _, out = ask("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--json")
    assert json.loads(out)[2]["largest"] == "nan"


def test_diff_of_a_part_with_weights_of_another_kind(run, tmp_path, ask):
    save_safetensors(trained(2)["model"], tmp_path / "m.safetensors")
    assert ask("diff", run, tmp_path / "m.safetensors", "--a-key", "model")[0] == 0
    assert ask("diff", run, run, "--a-step", 1, "--key", "model/weight")[1].count("elements differ") == 1
    assert ask("diff", run, tmp_path / "m.safetensors", "--key", "nowhere", "--a-key", "model")[0] == exit_codes.USAGE
    code, out = ask("diff", run, tmp_path / "m.safetensors", "--a-step", 1, "--a-key", "model")
    assert code == exit_codes.FAILED
    assert "  weight: float32[4, 3]: 12 elements differ, by 0.00" in out
    assert ask("diff", run, run, "--b-key", "model/weights")[1].endswith(
        "has no 'model/weights': at 'weights' there are bias, weight\n"
    )


def test_a_key_may_be_that_of_one_tensor(run, tmp_path, ask):
    assert ask("convert", run, tmp_path / "w.safetensors", "--key", "model/weight")[0] == 0
    assert list(load_safetensors(tmp_path / "w.safetensors")) == ["weight"]
    assert ask("diff", run, tmp_path / "w.safetensors", "--a-key", "model/weight")[0] == 0
    code, out = ask("diff", run, run, "--a-step", 1, "--key", "model/weight")
    assert code == exit_codes.FAILED
    assert "  weight: float32[4, 3]: 12 elements differ" in out
    keys = ("--a-key", "optimizer/state/0/exp_avg", "--b-key", "model/weight")
    assert "  exp_avg: float32[4, 3]: 12 elements differ" in ask("diff", run, run, *keys)[1]
    assert "  epoch: value: 1 in A, 2 in B" in ask("diff", run, run, "--a-step", 1, "--key", "epoch")[1]


def test_a_key_may_end_with_a_slash(run, tmp_path, ask):
    for key in ("model/", "optimizer/state/0/", "model/weight/", "model//", "/"):
        assert ask("diff", run, run, "--a-key", key, "--b-key", key.rstrip("/"))[0] == 0, key
    checkpoint.save(tmp_path / "odd", {"a/": 1, "a": {"": 2, "b": 3}})
    for key, found in (("a/", 1), ("a/b", 3)):
        assert ask("diff", tmp_path / "odd", tmp_path / "odd", "--key", key)[0] == 0
        assert next(states.open_state(tmp_path / "odd").part(key).items())[1] == found
    code, out = ask("diff", run, run, "--key", "/model")
    assert code == exit_codes.USAGE
    assert "run/step-2 has no '/model': at the slash without a name before it there are epoch, model, optimizer" in out


def test_a_step_of_what_has_none_is_wrong_usage(run, weights, tmp_path, ask):
    save_safetensors(trained()["model"], tmp_path / "hub")
    memory = "memory://stepless/m.safetensors"
    save_safetensors(trained()["model"], memory)
    for path in (weights, FIXTURES / "training.pt", tmp_path / "hub", memory, __file__):
        why = f"{path} is no folder of checkpoints, and only those have steps: leave the step out"
        refused(ask("convert", path, tmp_path / "x", "--step", 1), why)
        refused(ask("diff", run, path, "--b-step", 1), why)
    assert not (tmp_path / "x").exists()
    checkpoint.save(tmp_path / "x.ckpt", {"n": 1}, step=1)  # a folder of any name
    assert ask("diff", tmp_path / "x.ckpt", tmp_path / "x.ckpt", "--a-step", 1, "--b-step", 1)[0] == 0
    open_storage("memory://stepless").delete_tree("")


def test_diff_reads_in_pieces(tmp_path, ask, monkeypatch):
    monkeypatch.setattr("resilin.checkpoint.tools.states.safetensors.CHUNK_BYTES", 64)
    a = resilin.arange(1000)
    b = a.clone()
    b[[3, 500, 999]] += resilin.tensor([1, -7, 2])
    checkpoint.save(tmp_path / "a", {"w": a})
    save_safetensors({"w": b}, tmp_path / "b.safetensors")
    assert (
        "  w: int64[1000]: 3 elements differ, by 7 at most"
        in ask("diff", tmp_path / "a", tmp_path / "b.safetensors")[1]
    )


def test_diff_stops_at_damage(run, ask):
    damage(run / "step-2")
    code, out = ask("diff", run, run, "--b-step", 1)
    assert code == exit_codes.FAILED
    assert "tensor 'optimizer/state/1/exp_avg_sq'" in out


# -- convert


def test_a_checkpoint_becomes_one_file(run, tmp_path, ask):
    code, out = ask("convert", run, tmp_path / "m.safetensors", "--key", "model")
    assert (code, out) == (0, f"{tmp_path}/m.safetensors: 2 tensors, 64 B\n")
    state = load_safetensors(tmp_path / "m.safetensors")
    assert {name: tensor.tolist() for name, tensor in state.items()} == {
        name: tensor.tolist() for name, tensor in trained(2)["model"].items()
    }


def test_what_a_file_cannot_hold_is_told(run, tmp_path, ask):
    code, out = ask("convert", run, tmp_path / "all.safetensors", "--step", 1)
    assert code == 0
    assert out.startswith(
        f"{tmp_path}/all.safetensors: 8 tensors, 200 B\n  left out, being no tensors: optimizer/param_groups/0/lr"
    )
    assert "model/weight" in load_safetensors(tmp_path / "all.safetensors")


def test_no_name_makes_the_terminal_do_anything(tmp_path, ask):
    name = "a\x1b[31m\nb"
    checkpoint.save(tmp_path / "run", {name: resilin.ones(2), "x\x07": "text"}, step=1)
    checkpoint.save(tmp_path / "other", {name: resilin.zeros(2)}, step=1)
    code, out = ask("convert", tmp_path / "run", tmp_path / "m.safetensors")
    assert (code, out.splitlines()[1:]) == (0, ["  left out, being no tensors: x\\x07"])
    code, out = ask("diff", tmp_path / "run", tmp_path / "other")
    assert out.splitlines()[2].startswith("  a\\x1b[31m\\nb: float32[2]: 2 elements differ")
    (tmp_path / "run\x1b[31m").symlink_to(tmp_path / "run")
    damage(tmp_path / "run" / "step-1")
    for command in ("ls", "verify"):
        assert "\x1b" not in ask(command, tmp_path / "run\x1b[31m")[1]


def test_weights_are_divided_as_for_a_model_hub(run, tmp_path, ask):
    assert ask("convert", run, tmp_path / "hub", "--to", "hub", "--key", "model", "--max-shard-bytes", 16)[0] == 0
    assert len(list((tmp_path / "hub").glob("model-*-of-00002.safetensors"))) == 2
    assert ask("diff", tmp_path / "hub", run, "--b-key", "model")[0] == 0


@pytest.mark.parametrize(
    ("text", "files"), [("1.6e1", 2), ("16.0", 2), ("5e9", 1), ("5000000000", 1), ("6.4E+1", 1), ("9e18", 1)]
)
def test_a_number_of_bytes_may_be_written_as_the_help_writes_it(run, tmp_path, ask, text, files):
    command = ("convert", run, tmp_path / "hub", "--to", "hub", "--key", "model", "--max-shard-bytes", text)
    assert ask(*command)[0] == 0
    assert len(list((tmp_path / "hub").glob("model*.safetensors"))) == files


@pytest.mark.parametrize("text", ["0.5", "5G", "inf", "nan", "-1", "0", "1e999999999", "", "1e-3"])
def test_what_is_no_number_of_bytes_is_wrong_usage(run, tmp_path, capsys, text):
    with pytest.raises(SystemExit) as ended:
        main.main(
            ["checkpoint", "convert", str(run), str(tmp_path / "hub"), "--to", "hub", f"--max-shard-bytes={text}"]
        )
    assert ended.value.code == exit_codes.USAGE
    assert f"--max-shard-bytes: expected a whole number of bytes, as 5e9, got {text!r}" in capsys.readouterr().err


def test_weights_become_a_checkpoint_and_a_checkpoint_keeps_its_step(run, tmp_path, ask):
    save_safetensors(trained()["model"], tmp_path / "m.safetensors")
    assert ask("convert", tmp_path / "m.safetensors", tmp_path / "new")[0] == 0
    model = nn.Linear(3, 4)
    checkpoint.load(tmp_path / "new", model)
    assert model.weight.tolist() == trained()["model"]["weight"].tolist()
    assert ask("convert", run, tmp_path / "copy")[1].startswith(f"{tmp_path}/copy/step-2: 8 tensors")
    assert ask("diff", run, tmp_path / "copy")[0] == 0


@pytest.mark.parametrize("kind", ["pt", "old.pt"])
def test_a_file_of_pytorch_becomes_a_checkpoint_that_training_goes_on_from(tmp_path, ask, kind):
    code, out = ask("convert", FIXTURES / f"training.{kind}", tmp_path / "run")
    assert code == 0, out
    assert ask("diff", FIXTURES / f"training.{kind}", tmp_path / "run")[0] == 0
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    optimizer = optim.AdamW(model.parameters())
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1)
    checkpoint.load(tmp_path / "run", {"model": model, "optimizer": optimizer, "scheduler": scheduler})
    expected = checkpoint.import_torch(FIXTURES / f"training.{kind}")
    assert resilin.equal(model[0].weight, expected["model"]["0.weight"])
    assert optimizer.param_groups[0]["lr"] == 0.0025
    assert optimizer.state[model[0].weight]["step"] == 2


def test_a_file_of_pytorch_becomes_weights(tmp_path, ask):
    assert ask("convert", FIXTURES / "training.pt", tmp_path / "m.safetensors", "--key", "model")[0] == 0
    assert list(load_safetensors(tmp_path / "m.safetensors"))[:2] == ["1.num_batches_tracked", "0.weight"]


def test_a_file_that_would_run_something_is_refused_and_nothing_is_written(tmp_path, ask):
    code, out = ask("convert", FIXTURES / "module.pt", tmp_path / "m.safetensors")
    assert code == exit_codes.FAILED
    assert "asks for torch.nn.modules.linear.Linear" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["a", "b", "--to", "file"], "--to file: a file's name ends in .safetensors"),
        (
            ["a", "b.safetensors", "--to", "hub"],
            "--to hub: a file's name ends in .safetensors, and nothing else's does",
        ),
        (["a", "b.pt"], "b.pt: files of torch.save are not written; PyTorch reads .safetensors"),
        (["nothing", "b"], "nothing: there is nothing"),
        (["nothing.safetensors", "b"], "nothing.safetensors cannot be looked at: No such file"),
        (["nothing.pt", "b"], "nothing.pt cannot be looked at: No such file"),
        ([__file__, "b"], "is a file of no known kind: expected .pt, .pth"),
    ],
)
def test_what_does_not_fit_is_wrong_usage(args, why, ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out = ask("convert", *args)
    assert code == exit_codes.USAGE
    assert why in out


def test_a_checkpoint_is_not_replaced_by_a_part_of_itself(run, tmp_path, ask):
    (tmp_path / "link").symlink_to(run)
    for target in (run, f"{tmp_path}/link"):
        code, out = ask("convert", run, target, "--key", "model")
        assert code == exit_codes.USAGE
        assert "step-2 is what is read, and would be replaced" in out
    assert checkpoint.load(run)["epoch"] == 2


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_weights_do_not_become_the_newest_checkpoint_of_training(run, weights, ask):
    before = files_of(run)
    refused(ask("convert", weights, run), f"{run} holds the checkpoints step-1, step-2", "write to another place")
    (run / "step-1" / "manifest.json").unlink()
    (run / "step-2" / "manifest.json").unlink()
    refused(ask("convert", weights, f"{run}/"), "step-1, step-2")  # perhaps they are being written
    assert files_of(run).items() < before.items()


def test_a_checkpoint_of_training_is_not_replaced_by_what_is_converted(run, weights, tmp_path, ask):
    checkpoint.save(tmp_path / "plain", trained(3))
    before = files_of(tmp_path)
    other = tmp_path / "other"
    checkpoint.save(other, {"model": trained()["model"]}, step=2)
    for source, target, place in (
        (weights, run / "step-1", run / "step-1"),
        (weights, tmp_path / "plain", tmp_path / "plain"),
        (other, run, run / "step-2"),
    ):
        refused(ask("convert", source, target), f"{place} is a checkpoint already", "write to another place")
    assert files_of(tmp_path).items() > before.items()
    assert len(files_of(tmp_path)) == len(before) + len(files_of(other))


def test_no_checkpoint_is_written_into_another_one(run, weights, tmp_path, ask):
    checkpoint.save(tmp_path / "plain", trained(3))
    (tmp_path / "link").symlink_to(run / "step-2")
    before = files_of(tmp_path)
    refused(ask("convert", run, tmp_path / "plain"), f"{tmp_path / 'plain'} is a checkpoint itself")
    refused(ask("convert", run, run / "step-1"), "has the name of step 1, and", "is of step 2")
    refused(ask("convert", run, run / "step-2"), f"{run}/step-2 is what is read")
    refused(ask("convert", weights, run / "step-1" / "w.safetensors"), f"{run}/step-1 is a checkpoint, whose files")
    refused(ask("convert", weights, run / "step-1", "--to", "hub"), f"{run}/step-1 is a checkpoint, whose files")
    for target in (run / "step-2" / "deeper" / "still", tmp_path / "link", run / "step-2" / "a" / ".."):
        refused(ask("convert", run, target), f"lies in {run}/step-2, which is read", "write to another place")
    assert files_of(tmp_path) == before


def test_a_place_with_the_name_of_a_step_is_that_step(run, weights, tmp_path, ask):
    """It is the newest then, and counts as others do."""
    assert ask("convert", weights, run / "step-9")[0] == 0
    assert (checkpoint.latest(run), checkpoint.list_checkpoints(run)[-1].step) == (str(run / "step-9"), 9)
    assert ask("convert", run, tmp_path / "copy" / "step-9")[0] == 0
    assert checkpoint.list_checkpoints(tmp_path / "copy")[-1].step == 9
    assert ask("convert", weights, "memory://converted/named/step-3/")[0] == 0
    assert checkpoint.latest("memory://converted/named") == "memory://converted/named/step-3"
    open_storage("memory://converted").delete_tree("")


def test_a_file_is_no_folder_of_checkpoints(weights, ask):
    for command in ("ls", "verify"):
        refused(ask(command, weights), "is a file: expected a checkpoint, or a folder of them; diff reads files, too\n")


def test_a_conversion_goes_on_where_one_was_killed_and_beside_others(run, weights, tmp_path, ask):
    for target in (tmp_path / "copy", tmp_path / "again"):
        assert ask("convert", run, target)[0] == 0
        assert ask("convert", run, target, "--step", 1)[0] == 0
    (tmp_path / "copy" / "step-2" / "manifest.json").unlink()
    assert ask("convert", run, tmp_path / "copy")[0] == 0
    refused(ask("convert", run, tmp_path / "copy"), "copy/step-2 is a checkpoint already")
    assert ask("convert", weights, tmp_path / "new")[0] == 0
    (tmp_path / "new" / "manifest.json").unlink()
    assert ask("convert", weights, tmp_path / "new")[0] == 0
    assert ask("diff", weights, tmp_path / "new")[0] == 0


def test_what_lies_at_a_url_is_not_replaced_either(run, weights, ask):
    url = "memory://converted/run"
    assert ask("convert", run, url)[0] == 0
    refused(ask("convert", weights, url), f"{url} holds the checkpoints step-2")
    refused(ask("convert", run, url), f"{url}/step-2 is a checkpoint already")
    refused(ask("convert", url, f"{url}/step-2"), f"{url}/step-2 is what is read")
    refused(
        ask("convert", url, f"{url}/step-2/deeper"), f"{url}/step-2/deeper/step-2 lies in {url}/step-2, which is read"
    )
    open_storage("memory://converted").delete_tree("")


def test_a_step_that_is_not_there_is_wrong_usage(run, ask):
    for args in (["verify", run, "--step"], ["diff", run, run, "--a-step"], ["convert", run, "x", "--step"]):
        for step, why in (("7", "step-7: there is nothing"), ("-1", "step must be an int of at least 0")):
            code, out = ask(*args, step)
            assert code == exit_codes.USAGE
            assert why in out


def test_two_tensors_of_one_name_are_told_and_none_is_lost(tmp_path, ask):
    checkpoint.save(tmp_path / "run", {"a/b": resilin.ones(2), "a": {"b": resilin.zeros(2)}, 1: 2, "1": 3})
    for args in (
        ["diff", tmp_path / "run", tmp_path / "run"],
        ["convert", tmp_path / "run", tmp_path / "x.safetensors"],
    ):
        code, out = ask(*args)
        assert code == exit_codes.USAGE
        assert "run has two things that are called 'a/b'" in out
    assert ask("diff", tmp_path / "run", tmp_path / "run", "--key", "a/b")[0] == exit_codes.OK  # that with the "/"
    assert ask("convert", tmp_path / "run", tmp_path / "whole")[0] == exit_codes.OK  # as a checkpoint keeps both
    whole = checkpoint.load(tmp_path / "whole")
    assert bool(whole["a/b"].all())
    assert not whole["a"]["b"].any()


def test_a_state_without_tensors_gives_no_file(tmp_path, ask):
    checkpoint.save(tmp_path / "run", {"epoch": 1})
    code, out = ask("convert", tmp_path / "run", tmp_path / "m.safetensors")
    assert code == exit_codes.USAGE
    assert "has no tensors to write" in out


def test_urls_are_paths_too(ask):
    state = trained()
    checkpoint.save("memory://commands/run", state, step=7)
    assert ask("ls", "memory://commands/run")[0] == 0
    assert ask("verify", "memory://commands/run")[0] == 0
    assert ask("convert", "memory://commands/run", "memory://commands/m.safetensors", "--key", "model")[0] == 0
    assert ask("diff", "memory://commands/m.safetensors", "memory://commands/run", "--b-key", "model")[0] == 0
    open_storage("memory://commands").delete_tree("")


def test_a_storage_that_is_not_there_is_unreachable(ask, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setattr("resilin.checkpoint.remote.FsspecStorage.__init__.__defaults__", (None, 1.0, 1, SYSTEM))
    code, out = ask("ls", "s3://bucket/run")
    assert code == exit_codes.UNREACHABLE
    assert "s3://bucket/run" in out


def test_the_help_says_what_the_exit_codes_mean():
    done = subprocess.run(
        [sys.executable, "-m", "resilin.launcher.main", "checkpoint", "verify", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0
    assert "  1  something is torn, damaged" in done.stdout
