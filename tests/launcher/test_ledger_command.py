"""`resilin ledger verify`: which samples are missing or repeated, and which step did it."""

import json

import pytest

from resilin.data import ElasticSampler
from resilin.elastic.ledger import Entry, Ledger
from resilin.launcher import exit_codes, main


@pytest.fixture
def book(tmp_path):
    """`book(left_out)` writes the ledger of two epochs of 10 samples, in steps of 4, without some steps."""

    def write(left_out=(), name="ledger"):
        path = tmp_path / name
        ledger = Ledger(str(path))
        for step in range(6):
            epoch, at = divmod(step, 3)
            if step not in left_out:
                ledger.append(Entry(epoch, step, at * 4, min(4, 10 - at * 4), 1, 0, samples=10, length=10, seed=7))
        ledger.close()
        return str(path)

    return write


def order(epoch):
    sampler = ElasticSampler(10, batch_size=10, shards=1, seed=7)
    return sampler.plan(0, 1, epoch=epoch, position=0, step=0).indices.tolist()


def verify(capsys, *args):
    code = main.main(["ledger", "verify", *args])
    return code, capsys.readouterr().out


def test_a_ledger_in_which_every_sample_counted_once(book, capsys):
    assert verify(capsys, book()) == (0, "6 steps, 20 samples in 2 epochs: every sample once\n")


def test_lost_samples_are_named_by_number_with_the_steps_around_the_hole(book, capsys):
    code, out = verify(capsys, book(left_out=[4]))
    assert code == exit_codes.FAILED
    assert out.splitlines() == [
        "5 steps, 16 samples in 2 epochs: WRONG",
        "  epoch 1: positions [4, 8) lost before step 5 (generation 1), after step 3 (generation 1)",
        f"    samples {', '.join(map(str, order(1)[4:8]))}",
        "  steps 0 to 5: 1 missing",
    ]


def test_repeated_samples_are_named_as_json_with_both_steps(tmp_path, capsys):
    path = tmp_path / "ledger"
    ledger = Ledger(str(path))
    for step, (at, size) in enumerate([(0, 6), (4, 6)]):
        ledger.append(Entry(0, step, at, size, step + 1, 0, samples=10, length=10, seed=None))
    ledger.close()
    code, out = verify(capsys, str(path), "--json")
    assert code == exit_codes.FAILED
    (problem,) = json.loads(out)["problems"]
    assert (problem["what"], problem["positions"], problem["samples"]) == ("repeated", [4, 6], [4, 5])
    assert "before step 1 (generation 2), by step 0 (generation 1)" in problem["text"]


def test_a_job_that_stopped_early_is_complete_on_request_only(book, capsys):
    path = book(left_out=[5])
    assert verify(capsys, path)[0] == exit_codes.FAILED
    assert verify(capsys, path, "--unfinished")[0] == 0


def test_a_whole_epoch_that_is_not_there_is_missed_when_the_number_is_given(book, capsys):
    code, out = verify(capsys, book(), "--epochs", "3")
    assert code == exit_codes.FAILED
    assert "epoch 2: no step was committed, expected 3 epochs" in out


def test_several_files_are_one_ledger(book, capsys):
    assert verify(capsys, book(left_out=[1, 2]), book(left_out=[0, 3, 4, 5], name="other"))[0] == 0


def test_older_ledgers_need_the_number_of_samples(tmp_path, capsys):
    path = tmp_path / "old"
    path.write_text('{"epoch":0,"step":0,"position":0,"size":4,"generation":1,"rank":0}\n')
    assert main.main(["ledger", "verify", str(path)]) == exit_codes.USAGE
    assert "does not say how many samples" in capsys.readouterr().err
    assert verify(capsys, str(path), "--samples", "4")[0] == 0
    assert verify(capsys, str(path), "--samples", "5")[0] == exit_codes.FAILED


def test_an_order_that_changes_in_mid_epoch_is_wrong(tmp_path, capsys):
    path = tmp_path / "ledger"
    lines = [Entry(0, step, step * 5, 5, 1, 0, samples=10, length=10, seed=step).to_line() for step in range(2)]
    path.write_bytes(b"".join(lines))
    code, out = verify(capsys, str(path))
    assert code == exit_codes.FAILED
    assert "step 1 (generation 1) has another order than step 0 (generation 1): seed 1, 10 of 10 samples" in out


def test_a_torn_line_in_the_middle_is_named_and_the_others_are_judged(book, capsys):
    path = book()
    with open(path, "rb") as file:
        lines = file.readlines()
    with open(path, "wb") as file:
        file.writelines([*lines[:3], lines[3][:17] + b"\n", *lines[3:]])
    code, out = verify(capsys, path)
    assert code == exit_codes.USAGE
    head, torn = out.splitlines()
    assert head == "6 steps, 20 samples in 2 epochs: every sample once, as far as the ledger can be read"
    assert torn.startswith(f"  {path}, line 4: expected an object with epoch, ")
    assert torn.endswith("(left out)")
    code, out = verify(capsys, path, "--json")
    told = json.loads(out)
    assert (code, told["ok"], len(told["unreadable"]), told["problems"]) == (exit_codes.USAGE, False, 1, [])


@pytest.mark.parametrize("text", [None, "no ledger\n"], ids=["absent", "something else"])
def test_what_is_no_ledger_is_a_mistake_of_usage(tmp_path, capsys, text):
    path = tmp_path / "file"
    if text is not None:
        path.write_text(text)
    assert main.main(["ledger", "verify", str(path)]) == exit_codes.USAGE
    assert str(path) in capsys.readouterr().err
