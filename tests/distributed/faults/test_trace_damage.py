"""`resilin trace` on files that are damaged, and on what only has the name of such a file: the rest is reported."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import extent
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilin._base import flight
from resilin._base.flight import HEADER_BYTES, Recorder
from resilin._base.flight_record import RECORD_BYTES, Place
from resilin.launcher import main

Said = pytest.CaptureFixture[str]

RECORDS = 3
SIZE = HEADER_BYTES + RECORDS * RECORD_BYTES
TOLD_BYTES = 196  # of the header, with its checksum: the rest means nothing


def _job(folder: Path) -> Path:
    """The files of three ranks, of which rank 1 never came to all_reduce #1; that of rank 0."""
    for rank in range(3):
        made = Recorder(folder / f"{rank}.flight", socket.gethostname(), RECORDS, "job")
        place = Place(b"default", 77, 1, rank, 3)
        made.end(made.begin(place, b"join", b"a.py:1 f"), failed=False)
        reduced = made.begin(place, b"all_reduce", b"a.py:2 f")
        made.start(reduced, 0)
        made.describe(reduced, b"float32", (3, 4), b"SUM", -1)
        if rank != 1:
            message = made.begin(place, b"recv", b"a.py:3 f")
            made.describe(message, b"float64", (2,), b"", 1)
            made.start(message, -1)
        if rank == 1:
            made.end(reduced, failed=False)
        made.close()
    return folder / "0.flight"


def _no_number(word: str) -> NoReturn:
    raise AssertionError(f"{word} in JSON")


def _traced(folder: Path, said: Said) -> tuple[str, dict[str, Any], list[str]]:
    """What is printed, the calls by file, and the notes."""
    code = main.main(["trace", str(folder), "-v", "--calls", "9", "--after", "0"])
    out, err = said.readouterr()
    assert (code in (0, 1), err) == (True, ""), (code, out, err)
    main.main(["trace", str(folder), "--json"])
    found = json.loads(said.readouterr().out, parse_constant=_no_number)
    return out, {Path(one["path"]).name: one for one in found["files"]}, found["notes"]


def _others(files: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in files.items() if name != "0.flight"}


def test_one_damaged_byte_wherever_it_is_costs_no_more_than_its_record_or_its_file(
    tmp_path: Path, capsys: Said, turns: Callable[..., int]
) -> None:
    path = _job(tmp_path)
    whole = path.read_bytes()
    assert len(whole) == SIZE
    _, healthy, _ = _traced(tmp_path, capsys)
    draw = random.Random(5)
    for at in range(0, SIZE, turns(short=7, full=1)):
        value = draw.choice([0x7F, 0xFF, whole[at] ^ 1, whole[at] ^ 0x80, draw.randrange(256)])
        path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
        out, files, notes = _traced(tmp_path, capsys)
        assert _others(files) == _others(healthy), at
        assert all(line.isprintable() for line in out.split("\n")), at
        assert [line in out for line in notes] == [True] * len(notes)
        if at < TOLD_BYTES and value != whole[at]:
            assert len(notes) == 1, (at, value)
            assert "0.flight" in notes[0]
        if not notes:
            assert [c["group"] for c in files["0.flight"]["calls"]] == ["default"] * RECORDS, at


@settings(max_examples=extent.examples(50), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_many_damaged_bytes_cost_no_more_than_the_file(tmp_path: Path, capsys: Said, data: st.DataObject) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    path = _job(tmp_path)
    _, healthy, _ = _traced(tmp_path, capsys)
    contents = bytearray(path.read_bytes())
    odd = st.sampled_from([0, 1, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)
    for at, value in data.draw(st.dictionaries(st.integers(0, SIZE - 1), odd, max_size=60)).items():
        contents[at] = value
    path.write_bytes(contents[: data.draw(st.integers(0, SIZE) | st.just(SIZE))])
    _, files, _ = _traced(tmp_path, capsys)
    assert _others(files) == _others(healthy)


def test_a_record_of_another_group_generation_or_rank_than_was_written_is_left_out(tmp_path: Path) -> None:
    """One such byte would make a group that hides the real one: the newest generation of a name counts."""
    path = _job(tmp_path)
    whole = path.read_bytes()
    place = Place(b"default", 77, 1, 0, 3)
    for at in (12, 16, 24, 30, 40, 44, 184, 190):  # rank, size, generation, key, group of the first record
        byte = HEADER_BYTES + at
        path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 2]) + whole[byte + 1 :])
        found = flight.read(path)
        assert found.damage == "1 records make no sense", at
        assert {(c.group.encode(), c.key, c.generation, c.rank, c.size) for c in found.calls} == {tuple(place)}


def test_a_number_that_no_ring_holds_beside_the_others_is_left_out(tmp_path: Path) -> None:
    path = _job(tmp_path)
    with path.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write((1 + (RECORDS << 40)).to_bytes(8, "little"))
    found = flight.read(path)
    assert (found.recorded, len(found.calls), found.damage) == (3, 2, "1 records make no sense")


def _named_alike(folder: Path, kind: str) -> None:
    path = folder / "x.flight"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "dangling":
        path.symlink_to(folder / "nowhere")
    else:  # larger than any memory
        with path.open("wb") as file:
            file.truncate(1 << 40)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "dangling", "sparse"])
def test_what_only_has_the_name_of_a_file_is_told_in_a_line(tmp_path: Path, capsys: Said, kind: str) -> None:
    _job(tmp_path)
    _named_alike(tmp_path, kind)
    _, files, notes = _traced(tmp_path, capsys)
    assert sorted(files) == ["0.flight", "1.flight", "2.flight"]
    (note,) = notes
    assert note.startswith("not read: ")
    assert "x.flight" in note
    assert main.main(["trace", str(tmp_path / "0.flight"), str(tmp_path / "x.flight")]) == 1  # by name, too
    assert "not read: " in capsys.readouterr().out or kind == "folder"


def test_of_a_file_that_has_grown_only_what_it_says_is_read(tmp_path: Path, capsys: Said) -> None:
    path = _job(tmp_path)
    os.truncate(path, 1 << 40)
    _, files, notes = _traced(tmp_path, capsys)
    assert (len(files["0.flight"]["calls"]), notes) == (RECORDS, [])


def test_a_link_to_a_file_is_read(tmp_path: Path, capsys: Said) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a.flight").symlink_to(_job(tmp_path / "logs"))
    assert main.main(["trace", str(tmp_path / "linked")]) == 1
    assert "not read" not in capsys.readouterr().out
