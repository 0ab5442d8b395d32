"""Ledgers, schedules and records that somebody has written by hand: judged within what their bytes may cost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from resilin.elastic import failure, ledger
from resilin.elastic.chaos import records, schedule
from resilin.errors import UsageError
from resilin.launcher import config_file
from resilin.launcher import ledger as command

MOST_S, MOST_TOLD = 20.0, 1500


@contextmanager
def cheap() -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < MOST_S


def book(tmp_path: Path, *entries: dict[str, Any]) -> str:
    path = tmp_path / "ledger"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return str(path)


def entry(**more: Any) -> dict[str, Any]:
    return {"epoch": 0, "step": 1, "position": 0, "size": 1, "generation": 1, "rank": 0, "after": 0,
            "samples": 1, "length": 1, "seed": 0} | more  # fmt: skip


@pytest.mark.parametrize("name", ["epoch", "step", "position", "size", "generation", "rank", "samples", "length"])
@pytest.mark.parametrize("number", [-1, 1 << 64, 10**4000])
def test_numbers_that_no_ledger_has_are_errors_of_their_line(tmp_path: Path, name: str, number: int) -> None:
    path = book(tmp_path, entry(), entry(**{name: number}))
    with cheap():
        found, errors = ledger.sift(path)
    assert len(found) == 1
    assert "line 2: expected" in str(errors[0])
    assert len(str(errors[0])) < MOST_TOLD


def test_epochs_and_steps_without_an_entry_are_told_as_one_range(tmp_path: Path) -> None:
    path = book(tmp_path, entry(), entry(epoch=(1 << 24) - 1, step=(1 << 63), after=1))
    with cheap():
        verdict = ledger.verify(ledger.read(path))
    assert "epochs 1 to 16777214: no step was committed" in str(verdict)
    assert f"steps 1 to {1 << 63}: {(1 << 63) - 2} missing" in str(verdict)


def test_a_million_steps_whose_numbers_were_chosen_cost_as_much_as_others(tmp_path: Path) -> None:
    steps = [
        ledger.Entry(0, number * ((1 << 61) - 1) % (1 << 64), number, 1, number << 40, 0) for number in range(30_000)
    ]
    with cheap():
        verdict = ledger.verify(steps, samples_per_epoch=30_000)
    assert not verdict.ok


def test_samples_are_named_only_as_far_as_that_costs_no_more_than_an_order_of_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from resilin.launcher import main as launcher

    huge = 1 << 50
    path = book(
        tmp_path, entry(samples=huge, length=huge), entry(step=2, position=huge - 1, samples=huge, length=huge, after=1)
    )
    with cheap():
        code = launcher.main(["ledger", "verify", path])
    assert code == 1
    assert f"positions [1, {huge - 1}) lost" in capsys.readouterr().out
    assert huge > command._MOST_SAMPLES


@pytest.mark.parametrize("depth", [65, 100_000])
def test_schedules_and_settings_that_are_nested_to_any_depth_are_refused(tmp_path: Path, depth: int) -> None:
    lists = "[" * depth + "]" * depth
    for name, text in {
        "a.json": lists,
        "b.json": '{"faults": [' + lists + "]}",
        "c.toml": "faults = " + lists,
        "d.toml": f"faults = [{{do = {lists}}}]",
    }.items():
        path = tmp_path / name
        path.write_text(text)
        with cheap(), pytest.raises(UsageError, match=r"nested too deeply|expected a") as caught:
            schedule.load(path)
        assert len(str(caught.value)) < MOST_TOLD
    (tmp_path / "flags.toml").write_text("max-restarts = " + lists)
    with cheap(), pytest.raises(UsageError, match=r"expected TOML.*nested too deeply"):
        config_file.read(str(tmp_path / "flags.toml"), ["max_restarts"])


def test_errors_of_schedules_and_settings_do_not_quote_megabytes(tmp_path: Path) -> None:
    text = "x" * (1 << 19)
    for name, body in {
        "a.json": {"faults": [text]},
        "b.json": {"faults": [{"do": "kill", text: 1}]},
        "c.json": {"faults": [{"do": text}]},
        "d.json": {"faults": [{"do": "kill", "rank": text}]},
        "e.json": {"faults": [{"do": "kill", "at": text}]},
    }.items():
        (tmp_path / name).write_text(json.dumps(body))
        with cheap(), pytest.raises(UsageError) as caught:
            schedule.load(tmp_path / name)
        assert len(str(caught.value)) < MOST_TOLD, name
    flags = tmp_path / "flags.toml"
    for line in (f"a = {{{text} = 1}}", f"{text} = 1", f"a = 1979-05-27T07:32:00Z # {text}", f'a = "{text}'):
        flags.write_text(line)
        with cheap(), pytest.raises(UsageError) as caught:
            config_file.read(str(flags), ["a"])
        assert len(str(caught.value)) < MOST_TOLD, line[:20]


@pytest.mark.parametrize(
    "text", ["[" * 100_000 + "]" * 100_000, "[1]", '{"fault": 1}', "{", '{"' + "x" * 99999 + '":1}']
)
def test_what_no_process_of_a_disturbed_job_wrote_is_named_by_its_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "fired-0.json").write_text(text)
    (tmp_path / "result-1.json").write_text(text)
    for read in (records.fired, records.results):
        with pytest.raises(UsageError, match="expected what a process of the job wrote") as caught:
            read(tmp_path)
        assert len(str(caught.value)) < MOST_TOLD


def test_an_error_file_that_is_nested_or_endless_is_none(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("[" * 100_000)
    assert failure.read_error_file(path) == {}
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    assert failure.read_error_file(path) == {}
