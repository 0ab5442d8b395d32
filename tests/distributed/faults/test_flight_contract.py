"""What a writer of flight records accepts a reader gives back, field by field; what no reader believes none writes."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import extent
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilin._base.flight import HEADER_BYTES, Recorder, read
from resilin._base.flight_record import GROUP_BYTES, MAX_DIMS, Call, CallState, Place, sealed
from resilin.distributed.wire import flight_recorder, loader
from resilin.distributed.wire.flight_recorder import GroupLog, PythonLog
from resilin.distributed.wire.frames import Descriptor, Kind, unpack
from resilin.distributed.wire.reduce_op import DTYPE_CODES, ReduceOp
from resilin.elastic.hangs import process_probe, stall_record
from resilin.elastic.hangs.stall_record import Stall, Standing
from resilin.errors import UsageError

WRITERS = [
    "python",
    pytest.param("native", marks=pytest.mark.skipif(loader.native is None, reason="built without a C++ compiler")),
]
WORDS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=9)
PEER = {"send", "recv"}


@st.composite
def places(draw: st.DrawFn) -> Place:
    size = draw(st.sampled_from([1, 2, 3, 64, 1 << 24]) | st.integers(1, 1 << 24))
    return Place(
        draw(WORDS).encode(), draw(st.integers(0, (1 << 32) - 1)), draw(st.integers(-1, 1 << 62)),
        draw(st.sampled_from([0, size - 1])), size,
    )  # fmt: skip


def said(place: Place) -> st.SearchStrategy[dict[str, Any]]:
    """What any call may say: every kind, op and dtype, every root of the group, any number of shards."""
    return st.fixed_dictionaries(
        {
            "what": st.sampled_from([kind.name.lower() for kind in Kind] + sorted(PEER)),
            "sequence": st.integers(-1, (1 << 40) - 1),
            "dtype": st.sampled_from(list(DTYPE_CODES)),
            "shape": st.lists(st.integers(-1, 1 << 40), max_size=MAX_DIMS + 2).map(tuple),
            "op": st.sampled_from([None, *ReduceOp]),
            "root": st.integers(-1, place.size - 1) | st.sampled_from([-1, place.size - 1]),
            "shards": st.sampled_from([0, 1, place.size, place.size + 1]) | st.integers(0, (1 << 31) - 1),
            "tag": st.integers(-(1 << 31), (1 << 31) - 1),
            "state": st.sampled_from([CallState.QUEUED, CallState.RUNNING, CallState.DONE, CallState.FAILED]),
            "described": st.booleans(),
        }
    )


def log_of(made: Recorder, writer: str, place: Place) -> GroupLog:
    if writer == "python":
        return PythonLog(made, *place)
    return flight_recorder.native_log(flight_recorder.native_flight(made), *place)


def written(log: GroupLog, one: dict[str, Any]) -> None:
    """As `calls` and `messages` do."""
    if one["what"] in PEER:
        entry: Any = log.message(one["what"].encode(), np.empty((0, 3), one["dtype"]), one["root"], one["tag"])
    else:
        entry = log.mark(one["what"].encode())
        if one["described"]:
            entry.describe(one["dtype"], one["shape"], one["op"], one["root"], one["shards"])
        if one["state"] > CallState.QUEUED:
            entry.start(one["sequence"])
    if one["state"] > CallState.RUNNING:
        entry.end(one["state"] == CallState.FAILED)


def is_what_was_written(call: Call, one: dict[str, Any], place: Place) -> bool:
    wanted: dict[str, Any] = {
        "group": place.group.decode(), "key": place.key, "generation": place.generation, "rank": place.rank,
        "size": place.size, "what": one["what"],
    }  # fmt: skip
    if one["what"] in PEER:
        state = CallState.RUNNING if one["state"] == CallState.QUEUED else one["state"]
        wanted |= {"root": one["root"], "tag": one["tag"], "state": state, "shards": 0, "dtype": str(one["dtype"])}
    else:
        begun = one["state"] > CallState.QUEUED
        wanted |= {"state": one["state"], "sequence": one["sequence"] if begun else -1, "tag": 0}
        wanted["told"] = one["described"]
        if one["described"]:
            wanted |= {"root": one["root"], "shards": one["shards"], "shape": one["shape"][:MAX_DIMS]}
            wanted |= {"dtype": str(one["dtype"]), "op": one["op"].name if one["op"] is not None else ""}
        else:
            wanted |= {"root": -1, "shards": 0, "shape": (), "dtype": "", "op": ""}
    return wanted.items() <= {field.name: getattr(call, field.name) for field in fields(call)}.items()


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=extent.examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_whatever_is_written_is_read_field_by_field(tmp_path: Path, writer: str, data: st.DataObject) -> None:
    path = tmp_path / "a.flight"
    path.unlink(missing_ok=True)
    place = data.draw(places())
    calls = data.draw(st.lists(said(place), min_size=1, max_size=6))
    with contextlib.closing(Recorder(path, "here", 8)) as made:
        log = log_of(made, writer, place)
        for one in calls:
            written(log, one)
        found = read(path)
    assert (found.damage, len(found.calls)) == ("", len(calls))
    for call, one in zip(found.calls, calls, strict=True):
        assert is_what_was_written(call, one, place), (call, one)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"root": 3}, "root 3 in a group of 3: expected 0 to 2, or -1 for none"),
        ({"root": 1 << 30}, "root 1073741824 in a group of 3"),
        ({"root": -2}, "root -2 in a group of 3"),
        ({"shards": -1}, "-1 shards: expected 0 or more"),
        ({"shape": (4, -2)}, "shape (4, -2): expected extents of 0 or more, or -1 for any"),
        ({"sequence": -2}, "call number -2: expected 0 or more, or -1 for none"),
    ],
)
def test_what_a_reader_would_leave_out_is_refused_when_it_is_written(
    tmp_path: Path, writer: str, wrong: dict[str, Any], said: str
) -> None:
    with contextlib.closing(Recorder(tmp_path / "a.flight", "here", 4)) as made:
        entry = log_of(made, writer, Place(b"g", 1, 0, 1, 3)).collective(Kind.TREE_ALL_REDUCE)
        call = {"shape": (4,), "root": -1, "shards": 0, "sequence": 0, **wrong}

        def write() -> None:
            entry.start(call["sequence"])
            entry.describe(np.dtype(np.int8), call["shape"], None, call["root"], call["shards"])

        with pytest.raises(UsageError, match=rf"flight recorder: {re.escape(said)}.*a reader would leave out the rec"):
            write()
        found = read(tmp_path / "a.flight")
    assert (found.damage, len(found.calls)) == ("", 1), "and what was there stays"


@pytest.mark.parametrize(("rank", "size"), [(3, 3), (-1, 3), (0, 0), (0, (1 << 24) + 1)])
def test_a_rank_that_its_group_does_not_have_gets_no_log(rank: int, size: int) -> None:
    with pytest.raises(UsageError, match="a reader would leave out the record"):
        sealed(Place(b"g", 1, 0, rank, size))


@settings(max_examples=extent.examples(300), deadline=None)
@given(places(), st.data())
def test_what_agents_tell_one_another_of_a_call_is_that_call_but_for_times_and_lines(
    place: Place, data: st.DataObject
) -> None:
    one = data.draw(said(place))
    call = Call(
        state=data.draw(st.sampled_from([CallState.QUEUED, CallState.RUNNING])),
        group=place.group.decode(), key=place.key,
        generation=place.generation, rank=place.rank, size=place.size, sequence=one["sequence"], what=one["what"],
        dtype=str(one["dtype"]), shape=one["shape"], op="" if one["op"] is None else one["op"].name, root=one["root"],
        told=one["described"],
        shards=one["shards"], tag=one["tag"], line="x.py:3 f", by="all_gather_object", made=1.0, started=1.0, ended=0.0,
    )  # fmt: skip
    stall = Stall(
        generation=1, round=1, workers=(Standing(rank=0, pid=1, doing="idle", calls=stall_record.compact([call])),)
    )
    (who,) = stall_record.from_json(json.loads(json.dumps(asdict(stall)))).workers
    (found,) = who.flight().calls
    untold = {"line": "", "by": "", "made": 0.0, "started": 0.0, "ended": 0.0}
    assert asdict(found) | untold == asdict(call) | untold
    assert str(found) == str(call)


@settings(max_examples=extent.examples(300), deadline=None)
@given(st.data())
def test_a_descriptor_comes_back_from_its_bytes(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(Kind)))
    tree = kind is Kind.TREE_ALL_REDUCE
    mine = Descriptor(
        data.draw(st.integers(0, (1 << 40) - 1)), kind, data.draw(st.sampled_from([0, 3, 255])),
        data.draw(st.sampled_from([0, 254, 255])), -1 if tree else data.draw(st.integers(-1, 1 << 24)),
        data.draw(st.lists(st.integers(-1, 1 << 40), max_size=8).map(tuple)), data.draw(st.integers(0, 7)),
        data.draw(st.integers(1, (1 << 31) - 1)) if tree else 0,
    )  # fmt: skip
    assert unpack(mine.pack()) == mine


def test_a_sum_along_a_tree_says_its_shards_and_no_root() -> None:
    mine = Descriptor(7, Kind.TREE_ALL_REDUCE, 0, int(ReduceOp.SUM), shape=(3,), shards=4)
    assert str(mine).endswith(" SUM of 4 shards")
    assert "root" not in str(mine)


def test_names_that_begin_alike_stay_apart_when_they_are_too_long_for_a_record() -> None:
    names = [f"default/local/{'-'.join(map(str, range(first, 40)))}" for first in range(2)] + ["ü" * 40, "ü" * 41]
    kept = [flight_recorder._field(name) for name in names]
    assert len(set(kept)) == len(names)
    assert all(len(each) <= GROUP_BYTES and each.decode() for each in kept)
    assert flight_recorder._field("default/group/3") == b"default/group/3"


@pytest.mark.parametrize("damage", ["version", "record", "header"])
def test_what_of_a_recorder_cannot_be_read_is_said(tmp_path: Path, damage: str) -> None:
    path = tmp_path / f"{socket.gethostname()}_7.flight"
    with contextlib.closing(Recorder(path, "here", 4)) as made:
        made.end(made.begin(Place(b"g", 1, 0, 0, 2), b"join", b""), failed=False)
        made.start(made.begin(Place(b"g", 1, 0, 0, 2), b"barrier", b""), 0)
    whole = bytearray(path.read_bytes())
    if damage == "version":
        whole[7:8] = b"4"
        told = r"another version of resilin wrote it"
    elif damage == "header":
        whole[20] ^= 1
        told = r"its header is damaged"
    else:
        whole[HEADER_BYTES + 8] = 0xFF
        told = r"1 records make no sense"
    path.write_bytes(whole)
    found = process_probe.calls(tmp_path, 7)
    assert re.search(told, found.unread), found.unread
    assert len(found.calls) == (1 if damage == "record" else 0)
    assert process_probe.calls(tmp_path, 8) == process_probe.Calls((), process_probe.NO_RECORDER)
